"""`ServerService`: what the server is and how busy it is."""

import asyncio
import functools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import grpc
from google.protobuf import timestamp_pb2

from chairlift import _core
from chairlift.api.config import EngineConfig, KvCacheDtype, Quantize
from chairlift.api.errors import ConfigError, EngineState, Reason, RequestError
from chairlift.api.recent import percentile
from chairlift.engine.prepare.stopping import MAX_STOP_STRINGS, MAX_STOP_TOKEN_IDS
from chairlift.engine.prepare.text_queue import MAX_MESSAGES, caller
from chairlift.server.calls.context import ServerContext
from chairlift.server.config import ServerConfig
from chairlift.server.convert.messages import MAX_REQUEST_ID_BYTES, check_model, seconds
from chairlift.server.limits.shares import Shares, holders_of
from chairlift.server.metrics import TenantFigures
from chairlift.server.rpc.status import duration
from chairlift.server.rpc.status_interceptor import ServicerContext
from chairlift.server.rpc.writer import Writer
from chairlift.server.services.steps import StepFeeds
from chairlift.v1 import server_pb2 as pb
from chairlift.v1 import server_pb2_grpc

if TYPE_CHECKING:
    from chairlift.engine.async_engine import AsyncEngine
    from chairlift.model.memory.plan import MemoryPlan

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

_SHORTEST_INTERVAL_S: Final = 0.1
_STEPS_INTERVAL_S: Final = 0.05
"""Interval between two messages to a watcher of steps: each takes about 0.1 ms."""

MAX_WATCHES: Final = 64
"""Calls of `WatchLoad` and `WatchSteps` at a time; each connection and tenant has a share."""


class ServerServicer(server_pb2_grpc.ServerServiceServicer):
    """Answers from the settings, the model's configuration and the engine's last snapshot."""

    def __init__(self, server: ServerContext, config: EngineConfig, settings: ServerConfig) -> None:
        self._server = server
        self._config = config
        self._settings = settings
        self._is_open = settings.auth_tokens is None and settings.tls_client_ca is None
        self._started_at = timestamp_pb2.Timestamp()
        self._started_at.GetCurrentTime()
        self._watches = Shares("watches", MAX_WATCHES)
        self._feeds = StepFeeds(server.live, started_ns=time.monotonic_ns())

    def add_to(self, server: Any) -> None:
        """Register the methods; `WatchSteps` writes encoded messages."""
        name = pb.DESCRIPTOR.services_by_name["ServerService"].full_name
        watch_steps = grpc.unary_stream_rpc_method_handler(
            self.WatchSteps, pb.WatchStepsRequest.FromString
        )
        server_pb2_grpc.add_ServerServiceServicer_to_server(self, server)
        # The last handler of a name is the one that counts.
        server.add_registered_method_handlers(name, {"WatchSteps": watch_steps})

    async def GetServerInfo(
        self, request: pb.GetServerInfoRequest, context: ServicerContext
    ) -> pb.GetServerInfoResponse:
        """Return the process and its settings; answer while the model is loading, too."""
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

    async def GetModelInfo(
        self, request: pb.GetModelInfoRequest, context: ServicerContext
    ) -> pb.GetModelInfoResponse:
        """Return the served model."""
        engine = self._server.gate.engine().engine
        check_model(request.model, self._server.model_names)
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
            adapters=engine.adapters.names(self._server.authenticator.tenant(context)),
            kv_cache_dtype=dtype if kv_dtype is KvCacheDtype.AUTO else kv_dtype.value,
        )

    async def GetLoad(
        self, request: pb.GetLoadRequest, context: ServicerContext
    ) -> pb.GetLoadResponse:
        """Return a snapshot of the load."""
        engine = self._server.gate.engine()
        return pb.GetLoadResponse(load=_load(engine, self._activity(context)()))

    async def WatchLoad(self, request: pb.WatchLoadRequest, context: ServicerContext) -> None:
        """Write a snapshot now and then one per interval, until the server drains."""
        gate = self._server.gate
        engine = gate.engine()
        interval_s = 1.0
        if request.HasField("interval"):
            interval_s = max(seconds(request.interval, "interval"), _SHORTEST_INTERVAL_S)
        activity = self._activity(context)
        writer = Writer(context, self._server.write_timeout_s)
        with self._watching(context):
            while not gate.draining.is_set():
                response = pb.WatchLoadResponse(load=_load(engine, activity()))
                await writer.write(response)
                await _first(gate.draining, interval_s)

    def _activity(self, context: ServicerContext) -> Callable[[], Iterator[TenantFigures]]:
        """Return the tenants that the caller may see: itself, or all without authentication.

        Raises:
            RequestError: The token was withdrawn meanwhile, or the name is malformed.
        """
        activity = self._server.metrics.activity
        tenant = self._server.authenticator.tenant(context)
        return activity.all if self._is_open else functools.partial(activity.of, tenant)

    async def WatchSteps(self, request: pb.WatchStepsRequest, context: ServicerContext) -> None:
        """Write every step of the engine from now on, until the server drains."""
        gate = self._server.gate
        engine = gate.engine()
        tenant = self._server.authenticator.tenant(context)
        writer = Writer(context, self._server.write_timeout_s)
        with (
            self._watching(context),
            self._feeds.watch(tenant, engine.deliveries.watch_steps) as feed,
        ):
            drain = asyncio.create_task(_wake(gate.draining, self._feeds))
            try:
                await writer.begin()
                while not gate.draining.is_set():
                    await writer.write(await feed.take())
                    await _first(gate.draining, _STEPS_INTERVAL_S)
            finally:
                drain.cancel()

    @contextmanager
    def _watching(self, context: ServicerContext) -> Iterator[None]:
        """Count a call that never ends by itself.

        Raises:
            RequestError: The connection, the tenant or the server has too many.
        """
        holders = holders_of(context.peer(), self._server.authenticator.tenant(context))
        watch = self._watches.take(holders)
        try:
            yield
        finally:
            watch.release()

    async def PlanMemory(
        self, request: pb.PlanMemoryRequest, context: ServicerContext
    ) -> pb.PlanMemoryResponse:
        """Return the memory plan of the served model, under its own or other settings."""
        from chairlift.engine.loading.load import replan_memory

        serving = self._server.gate.engine()
        engine, settings = serving.engine, self._config
        check_model(request.model, self._server.model_names)
        # Its fields have the names of settings.
        changes = {field.name: value for field, value in request.ListFields()}
        changes.pop("model", None)
        if engine.draft_folder is not None:
            # The name of a draft model was resolved when it was loaded; another time may download.
            settings = settings.model_copy(update={"draft": str(engine.draft_folder)})

        def work() -> "MemoryPlan":
            # Reads the configuration of a draft model.
            return replan_memory(
                settings, engine.model_config, engine.device.free_bytes, **changes
            )[0]

        tenant = self._server.authenticator.tenant(context)
        try:
            plan = await serving.texts.run(
                work,
                tenant=caller(tenant, context.peer()),
                size=request.ByteSize(),
                within_s=context.time_remaining(),
            )
        except ConfigError as error:
            field, _, _ = str(error).partition(":")
            raise RequestError(Reason.BAD_PARAMETER, str(error), field=field) from None
        return pb.PlanMemoryResponse(
            weight_bytes=plan.weight_bytes,
            active_weight_bytes=plan.active_weight_bytes,
            kv_cache_bytes=plan.kv_cache_bytes,
            activation_bytes=plan.activation_bytes,
            num_blocks=plan.num_blocks - 1,
            block_bytes=plan.block_bytes,
            swap_bytes=plan.swap_bytes,
            num_host_blocks=plan.num_host_blocks,
            adapter_bytes=plan.adapter_bytes,
            state_bytes=plan.state_bytes,
            draft_bytes=plan.draft_bytes,
        )


async def _first(event: asyncio.Event, timeout_s: float) -> None:
    """Wait for the event, at most for the time."""
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return


async def _wake(draining: asyncio.Event, feeds: StepFeeds) -> None:
    await draining.wait()
    feeds.wake()


def _load(engine: "AsyncEngine", tenants: Iterator[TenantFigures]) -> pb.Load:
    message = to_load(engine.load())
    message.num_steps = engine.progress.num_steps
    message.tenants.extend(map(_tenant_activity, tenants))
    return message


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
        num_state_snapshots=load.num_state_snapshots,
        num_waiting_tokens=load.num_waiting_tokens,
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
