"""What the server reports about itself, over gRPC and to the live page: settings, model, load."""

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from google.protobuf import timestamp_pb2

from chairlift import _core
from chairlift.api.config import EngineConfig, KvCacheDtype, Quantize
from chairlift.api.errors import EngineState, Reason
from chairlift.api.recent import percentile
from chairlift.api.types import WaitCause
from chairlift.engine.prepare.stopping import MAX_STOP_STRINGS, MAX_STOP_TOKEN_IDS
from chairlift.engine.prepare.text_queue import MAX_MESSAGES
from chairlift.server.calls.context import ServerContext
from chairlift.server.config import ServerConfig
from chairlift.server.convert.messages import MAX_REQUEST_ID_BYTES, wait_cause
from chairlift.server.limits.shares import Shares, holders_of
from chairlift.server.metrics import TenantFigures
from chairlift.server.rpc.status import duration
from chairlift.v1 import server_pb2 as pb

if TYPE_CHECKING:
    from chairlift.core.tenant_view import BlockMap

_STATES: Final = {
    EngineState.STARTING: pb.SERVER_STATE_STARTING,
    EngineState.SERVING: pb.SERVER_STATE_SERVING,
    EngineState.RESTARTING: pb.SERVER_STATE_STARTING,
    EngineState.DRAINING: pb.SERVER_STATE_DRAINING,
    EngineState.DEAD: pb.SERVER_STATE_DEAD,
}

FEATURES: Final = (
    "abort",
    "adapters",
    "block_map",
    "chat",
    "constraints",
    "credit",
    "echo",
    "embeddings",
    "explain",
    "logit_bias",
    "logprobs",
    "multiple_answers",
    "penalties",
    "plan_memory",
    "priority",
    "prompt_logprobs",
    "resume",
    "tokenize",
    "tools",
    "update",
    "watch_load",
    "watch_steps",
)
"""Names in `GetServerInfo`: what a client may use beyond plain generation."""

MAX_WATCHES: Final = 64
"""Calls of `WatchLoad`, `WatchSteps` and feeds of pages at a time; each holder has a share."""


class Overview:
    """Messages about the server; one per server.

    Attributes:
        started_ns: When the server was built, on the engine's clock.
        is_open: Whether every caller sees the figures of every tenant.
    """

    def __init__(self, server: ServerContext, config: EngineConfig, settings: ServerConfig) -> None:
        self._server = server
        self._config = config
        self._settings = settings
        self.is_open = settings.auth_tokens is None and settings.tls_client_ca is None
        self.started_ns = time.monotonic_ns()
        self._started_at = timestamp_pb2.Timestamp()
        self._started_at.GetCurrentTime()
        self._watches = Shares("watches", MAX_WATCHES)

    def process(self) -> pb.GetServerInfoResponse:
        """Return the process and its settings; while the model is loading, too."""
        engine = self._server.gate.loaded
        config = self._config if engine is None else engine.config
        return pb.GetServerInfoResponse(
            version=_core.__version__,
            state=_STATES[self._server.gate.phase],
            start_time=self._started_at,
            device="cpu" if engine is None else engine.engine.device.torch_device.type,
            kernels=_core.cpu_features(),
            batching=config.batching.value,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_queued_requests=config.max_queued_requests,
            batch_size=config.batch_size or config.max_num_seqs,
            block_size=config.block_size,
            num_blocks=0 if engine is None else engine.load().num_blocks,
            prefix_cache=config.prefix_cache,
            default_max_tokens=config.default_max_tokens or 0,
            queue_timeout=duration(config.queue_timeout_s),
            time_limit=duration(config.time_limit_s),
            max_receive_bytes=self._settings.max_receive_bytes,
            step_budget=None if config.step_budget_s is None else duration(config.step_budget_s),
            features=FEATURES,
            max_text_bytes=config.max_text_bytes,
            max_concurrent_streams=self._settings.max_concurrent_streams,
            max_stop_strings=MAX_STOP_STRINGS,
            max_stop_token_ids=MAX_STOP_TOKEN_IDS,
            max_chat_messages=MAX_MESSAGES,
            max_request_id_bytes=MAX_REQUEST_ID_BYTES,
        )

    def model(self, tenant: str) -> pb.GetModelInfoResponse:
        """Return the served model, with the adapters of a tenant.

        Raises:
            RequestError: The model is still loading.
        """
        engine = self._server.gate.engine().engine
        model, defaults = engine.model_config, engine.model_config.generation
        quantize = self._config.quantize
        stored = model.stored_format if quantize is Quantize.NONE else None
        dtype, kv_dtype = str(model.dtype).removeprefix("torch."), self._config.kv_cache_dtype
        return pb.GetModelInfoResponse(
            name=self._server.model_names[0],
            aliases=self._server.model_names[1:],
            architecture=model.architecture,
            vocab_size=model.spec.vocab_size,
            max_model_len=engine.max_model_len - engine.num_unseen_tokens,
            max_context_len=engine.max_context_len - engine.num_unseen_tokens,
            eos_token_ids=model.eos_token_ids,
            dtype=dtype,
            num_layers=model.spec.num_layers,
            hidden_size=model.spec.hidden_size,
            sampling_defaults=pb.SamplingDefaults(
                temperature=1.0 if defaults.temperature is None else defaults.temperature,
                top_k=defaults.top_k or 0,
                top_p=1.0 if defaults.top_p is None else defaults.top_p,
                min_p=defaults.min_p or 0.0,
            ),
            has_chat_template=engine.tokenizer.has_chat_template,
            quantization=stored or quantize.value,
            adapters=engine.adapters.names(tenant),
            kv_cache_dtype=dtype if kv_dtype is KvCacheDtype.AUTO else kv_dtype.value,
        )

    def activity(self, tenant: str) -> Callable[[], Iterator[TenantFigures]]:
        """Return the figures of the tenants that one may see: its own, or all of an open server."""
        activity = self._server.metrics.activity
        return activity.all if self.is_open else functools.partial(activity.of, tenant)

    def load(self, tenants: Iterator[TenantFigures], blocks: "BlockMap | None" = None) -> pb.Load:
        """Return the load of the engine.

        Args:
            tenants: Whose figures it has.
            blocks: The map of the KV blocks, if it is wanted.

        Raises:
            RequestError: The model is still loading.
        """
        engine = self._server.gate.engine()
        message = to_load(engine.load())
        message.num_steps = engine.progress.num_steps
        message.tenants.extend(map(_tenant_activity, tenants))
        percentiles = self._server.metrics.intervals.percentiles(50, 99)
        if percentiles is not None:
            message.inter_token_latency_p50.CopyFrom(duration(percentiles[0]))
            message.inter_token_latency_p99.CopyFrom(duration(percentiles[1]))
        if blocks is not None:
            columns = {name: cells.tolist() for name, cells in blocks._asdict().items()}
            message.block_map.CopyFrom(pb.BlockMap(**columns))
        return message

    @contextmanager
    def watching(self, connection: str, tenant: str) -> Iterator[None]:
        """Count a call that never ends by itself.

        Raises:
            RequestError: The connection, the tenant or the server has too many.
        """
        watch = self._watches.take(holders_of(connection, tenant))
        try:
            yield
        finally:
            watch.release()


def num_by_cause(load: _core.Load) -> dict[WaitCause, int]:
    """Return the waiting requests by what they wait for, without causes of none."""
    counts = {cause: getattr(load, f"num_waiting_{cause.value}") for cause in WaitCause}
    return {cause: count for cause, count in counts.items() if count}


def to_load(load: _core.Load) -> pb.Load:
    """Return the counts of the core as a message."""
    return pb.Load(
        num_waiting=load.num_waiting,
        num_running=load.num_running,
        num_waiting_suspended=load.num_waiting_suspended,
        num_running_suspended=load.num_running_suspended,
        num_rows_held=load.num_rows_held,
        num_blocks=load.num_blocks,
        num_free_blocks=load.num_free_blocks,
        num_cached_blocks=load.num_cached_blocks,
        num_kv_tokens=load.num_kv_tokens,
        num_preemptions=load.num_preemptions,
        num_recomputed_tokens=load.num_recomputed_tokens,
        num_host_blocks=load.num_host_blocks,
        num_free_host_blocks=load.num_free_host_blocks,
        num_swapped_tokens=load.num_swapped_tokens,
        num_prefix_queries=load.num_prefix_queries,
        num_prefix_hits=load.num_prefix_hits,
        num_prefix_hit_tokens=load.num_prefix_hit_tokens,
        num_state_snapshots=load.num_state_snapshots,
        num_waiting_tokens=load.num_waiting_tokens,
        waiting_by_cause=[
            pb.CauseCount(cause=wait_cause(cause), count=count)
            for cause, count in num_by_cause(load).items()
        ],
    )


def _tenant_activity(figures: TenantFigures) -> pb.TenantActivity:
    activity = pb.TenantActivity(
        tenant=figures.tenant,
        num_generated_tokens=figures.num_generated_tokens,
        num_started=figures.first_token.total(),
        reasons=[
            pb.ReasonCount(reason=reason.value, is_error=isinstance(reason, Reason), count=count)
            for reason, count in sorted(figures.reasons.items())
        ],
    )
    if figures.first_token:
        median, slowest = (percentile(figures.first_token, percent) for percent in (50, 99))
        activity.time_to_first_token_p50.CopyFrom(duration(median))
        activity.time_to_first_token_p99.CopyFrom(duration(slowest))
    return activity
