"""`ServerService`: what the server is and how busy it is."""

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import grpc

from chairlift.api.config import EngineConfig
from chairlift.api.errors import ConfigError, Reason, RequestError
from chairlift.engine.prepare.text_queue import caller
from chairlift.server.calls.context import ServerContext
from chairlift.server.convert.messages import check_model, seconds
from chairlift.server.rpc.status_interceptor import ServicerContext
from chairlift.server.rpc.writer import Writer
from chairlift.server.services.overview import Overview
from chairlift.server.services.steps import StepFeeds
from chairlift.v1 import server_pb2 as pb
from chairlift.v1 import server_pb2_grpc

if TYPE_CHECKING:
    from chairlift.model.memory.plan import MemoryPlan

_SHORTEST_INTERVAL_S: Final = 0.1
_STEPS_INTERVAL_S: Final = 0.05
"""Interval between two messages to a watcher of steps: each takes about 0.1 ms."""


class ServerServicer(server_pb2_grpc.ServerServiceServicer):
    """Answers from the settings, the model's configuration and the engine's last snapshot."""

    def __init__(self, server: ServerContext, config: EngineConfig, overview: Overview) -> None:
        self._server = server
        self._config = config
        self._overview = overview
        self._feeds = StepFeeds(server.live, started_ns=overview.started_ns)

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
        return self._overview.process()

    async def GetModelInfo(
        self, request: pb.GetModelInfoRequest, context: ServicerContext
    ) -> pb.GetModelInfoResponse:
        """Return the served model."""
        self._server.gate.engine()
        check_model(request.model, self._server.model_names)
        return self._overview.model(self._server.authenticator.tenant(context))

    async def GetLoad(
        self, request: pb.GetLoadRequest, context: ServicerContext
    ) -> pb.GetLoadResponse:
        """Return a snapshot of the load."""
        tenant = self._server.authenticator.tenant(context)
        return pb.GetLoadResponse(load=await self._load(tenant, with_map=request.block_map))

    async def WatchLoad(self, request: pb.WatchLoadRequest, context: ServicerContext) -> None:
        """Write a snapshot now and then one per interval, until the server drains."""
        gate = self._server.gate
        gate.engine()
        interval_s = 1.0
        if request.HasField("interval"):
            interval_s = max(seconds(request.interval, "interval"), _SHORTEST_INTERVAL_S)
        tenant = self._server.authenticator.tenant(context)
        writer = Writer(context, self._server.write_timeout_s)
        with self._overview.watching(context.peer(), tenant):
            while not gate.draining.is_set():
                load = await self._load(tenant, with_map=request.block_map)
                await writer.write(pb.WatchLoadResponse(load=load))
                await _first(gate.draining, interval_s)

    async def _load(self, tenant: str, *, with_map: bool) -> pb.Load:
        """Return the load; only its map waits for the end of a step, and is left out of a long one.

        Raises:
            RequestError: The model is still loading.
        """
        engine, activity = self._server.gate.engine(), self._overview.activity(tenant)
        blocks = None
        if with_map:
            with suppress(RequestError):
                blocks = (await engine.view(tenant, 0)).blocks
        return self._overview.load(activity(), blocks)

    async def WatchSteps(self, request: pb.WatchStepsRequest, context: ServicerContext) -> None:
        """Write every step of the engine from now on, until the server drains."""
        gate = self._server.gate
        engine = gate.engine()
        tenant = self._server.authenticator.tenant(context)
        writer = Writer(context, self._server.write_timeout_s)
        watching = self._overview.watching(context.peer(), tenant)
        with watching, self._feeds.watch(tenant, engine.deliveries.watch_steps) as feed:
            drain = asyncio.create_task(_wake(gate.draining, self._feeds))
            try:
                await writer.begin()
                while not gate.draining.is_set():
                    await writer.write(await feed.take())
                    await _first(gate.draining, _STEPS_INTERVAL_S)
            finally:
                drain.cancel()

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
