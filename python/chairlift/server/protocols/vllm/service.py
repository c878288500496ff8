"""The methods of `VllmEngine`."""

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from chairlift import _core
from chairlift.api.checks import check_count
from chairlift.api.config import EngineConfig
from chairlift.api.errors import Reason, RequestError
from chairlift.server.calls.context import ServerContext
from chairlift.server.calls.pooling_requests import pool
from chairlift.server.handoff.params import from_json
from chairlift.server.protocols.stubs import smg_common_pb2 as common
from chairlift.server.protocols.stubs import vllm_engine_pb2 as vllm
from chairlift.server.protocols.stubs import vllm_engine_pb2_grpc
from chairlift.server.protocols.vllm.answers import EngineCall
from chairlift.server.protocols.vllm.bundle import TokenizerBundle
from chairlift.server.protocols.vllm.convert import NAMES, to_embedding, to_request
from chairlift.server.protocols.vllm.kv_events import KvSubscriptions
from chairlift.server.rpc.status_interceptor import ServicerContext
from chairlift.server.rpc.writer import Writer

KV_PARAMS: Final = "kv_transfer_params_json"
MAX_ABORTED: Final = 4096
"""Ids of one `Abort`."""


class VllmEngineServicer(vllm_engine_pb2_grpc.VllmEngineServicer):
    """A worker of a gateway."""

    def __init__(
        self, server: ServerContext, config: EngineConfig, is_serving: Callable[[], bool]
    ) -> None:
        """Start.

        Args:
            server: The state that all calls share.
            config: The engine's settings.
            is_serving: Returns whether the engine answers requests.
        """
        self._server = server
        self._config = config
        self._is_serving = is_serving
        self._started_at = time.monotonic()
        self._bundle = TokenizerBundle()
        self._subscriptions = KvSubscriptions(server, config.block_size)

    def add_to(self, server: Any) -> None:
        """Register the methods."""
        vllm_engine_pb2_grpc.add_VllmEngineServicer_to_server(self, server)

    async def Generate(self, request: vllm.GenerateRequest, context: ServicerContext) -> None:
        """Run a request and write its tokens."""
        server = self._server
        engine = server.gate.admit()
        tenant = server.authenticator.tenant(context)
        limits = engine.engine.text_limits
        try:
            converted, output = to_request(request, tenant=tenant, limits=limits)
            handoff = None
            if request.HasField(KV_PARAMS):
                value = from_json(request.kv_transfer_params_json, KV_PARAMS)
                handoff = server.handoffs.take(value, KV_PARAMS)
            with server.outboxes.open() as outbox:
                call = EngineCall(
                    server,
                    outbox,
                    context,
                    converted,
                    output,
                    request.request_id,
                    is_stream=request.stream,
                    handoff=handoff,
                )
                await call.run()
        except RequestError as error:
            raise NAMES.translate(error) from None

    async def Abort(
        self, request: vllm.AbortRequest, context: ServicerContext
    ) -> vllm.AbortResponse:
        """End live requests of the caller's tenant, of any connection."""
        check_count(request.request_ids, "request_ids", MAX_ABORTED)
        engine = self._server.gate.engine()
        tenant = self._server.authenticator.tenant(context)
        for live in self._server.live.labelled(tenant, frozenset(request.request_ids)):
            engine.abort(live)
        return vllm.AbortResponse()

    async def HealthCheck(
        self, request: vllm.HealthCheckRequest, context: ServicerContext
    ) -> vllm.HealthCheckResponse:
        """Return whether a request sent now would be answered."""
        healthy = self._is_serving()
        phase = self._server.gate.phase.value
        return vllm.HealthCheckResponse(healthy=healthy, message="" if healthy else phase)

    async def GetModelInfo(
        self, request: vllm.GetModelInfoRequest, context: ServicerContext
    ) -> vllm.GetModelInfoResponse:
        """Return the served model."""
        engine = self._server.gate.engine().engine
        model, name = engine.model_config, self._server.model_names[0]
        given = model.generation
        names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
        defaults = {key: getattr(given, key) for key in names if getattr(given, key) is not None}
        # A gateway loads a tokenizer from a path that exists on its machine, or asks for it.
        return vllm.GetModelInfoResponse(
            model_path=name,
            is_generation=engine.pooling.generates,
            max_context_length=engine.max_context_len - engine.num_unseen_tokens,
            vocab_size=model.spec.vocab_size,
            served_model_name=name,
            model_type=model.architecture,
            architectures=[model.architecture],
            eos_token_ids=model.eos_token_ids,
            bos_token_id=model.bos_token_id or 0,
            max_req_input_len=engine.max_context_len - engine.num_unseen_tokens,
            default_sampling_params_json=json.dumps(defaults) if defaults else "",
        )

    async def GetServerInfo(
        self, request: vllm.GetServerInfoRequest, context: ServicerContext
    ) -> vllm.GetServerInfoResponse:
        """Return the process and its settings; answer while the model is loading, too."""
        engine = self._server.gate.loaded
        config = self._config if engine is None else engine.config
        handoffs = self._server.handoffs
        dtype = "" if engine is None else str(engine.engine.model_config.dtype)
        return vllm.GetServerInfoResponse(
            active_requests=len(self._server.live),
            uptime_seconds=time.monotonic() - self._started_at,
            server_type="chairlift",
            kv_connector=handoffs.connector,
            kv_role=handoffs.kv_role,
            kv_engine_id=handoffs.engine_id,
            pairing_protocol=handoffs.pairing,
            data_parallel_size=1,
            block_size=config.block_size,
            kv_cache_dtype=config.kv_cache_dtype.value,
            model_dtype=dtype,
            max_num_seqs=config.max_num_seqs,
        )

    async def GetLoads(
        self, request: vllm.GetLoadsRequest, context: ServicerContext
    ) -> vllm.GetLoadsResponse:
        """Return the load of the only rank."""
        if request.dp_rank:
            message = f"dp_rank: expected 0, the only rank, got {request.dp_rank}"
            raise RequestError(Reason.BAD_PARAMETER, message, field="dp_rank")
        engine = self._server.gate.engine()
        load, config = engine.load(), engine.config
        used = load.num_blocks - load.num_free_blocks - load.num_cached_blocks
        queries = load.num_prefix_queries
        scheduler = vllm.SchedulerLoad(
            num_running_reqs=load.num_running,
            num_waiting_reqs=load.num_waiting,
            num_total_reqs=load.num_running + load.num_waiting,
            num_used_tokens=load.num_kv_tokens,
            max_total_num_tokens=load.num_blocks * config.block_size,
            token_usage=used / load.num_blocks if load.num_blocks else 0.0,
            cache_hit_rate=load.num_prefix_hits / queries if queries else 0.0,
            max_running_requests=config.max_num_seqs,
            num_waiting_uncached_tokens=load.num_waiting_tokens,
        )
        return vllm.GetLoadsResponse(
            timestamp=datetime.now(UTC).isoformat(),
            version=_core.__version__,
            dp_rank_count=1,
            loads=[scheduler],
        )

    async def GetTokenizer(
        self, request: common.GetTokenizerRequest, context: ServicerContext
    ) -> None:
        """Write an archive of the tokenizer and the chat templates."""
        writer = Writer(context, self._server.write_timeout_s)
        for chunk in await self._bundle.chunks(self._server.gate.engine()):
            await writer.write(chunk)

    async def Embed(
        self, request: vllm.EmbedRequest, context: ServicerContext
    ) -> vllm.EmbedResponse:
        """Return the model's own vector of a tokenized input."""
        limits = self._server.gate.admit().engine.text_limits
        tenant = self._server.authenticator.tenant(context)
        try:
            converted = to_embedding(request, tenant=tenant, limits=limits)
            (pooled,) = await pool(
                self._server,
                [converted],
                tenant=tenant,
                connection=context.peer(),
                time_remaining=context.time_remaining,
                labels=[request.request_id or "0"],
            )
        except RequestError as error:
            raise NAMES.translate(error) from None
        vector = pooled.vector().tolist()
        return vllm.EmbedResponse(
            embedding=vector, prompt_tokens=pooled.num_tokens, embedding_dim=len(vector)
        )

    async def FlushCache(self, request: common.FlushCacheRequest, context: ServicerContext) -> None:
        """Refuse: the prefix cache evicts what is used least."""
        raise _unsupported("FlushCache")

    async def StartProfile(
        self, request: common.StartProfileRequest, context: ServicerContext
    ) -> None:
        """Refuse: there is no profiler in the server."""
        raise _unsupported("StartProfile")

    async def StopProfile(
        self, request: common.StopProfileRequest, context: ServicerContext
    ) -> None:
        """Refuse, as `StartProfile`."""
        raise _unsupported("StopProfile")

    async def SubscribeKvEvents(
        self, request: common.SubscribeKvEventsRequest, context: ServicerContext
    ) -> None:
        """Write the events of the prefix cache, those of the caller's tenant."""
        await self._subscriptions.run(request.start_sequence_number, context)


def _unsupported(method: str) -> RequestError:
    message = f"{method}: not supported by this version of the server"
    return RequestError(Reason.UNSUPPORTED, message, field=method)
