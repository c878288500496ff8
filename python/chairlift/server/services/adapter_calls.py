"""`AdminService`: what changes the server; it takes an administrator's token."""

import asyncio
import logging
from typing import Final

from chairlift.api.checks import check_count
from chairlift.api.errors import ModelError, Reason, RequestError
from chairlift.api.logs import fields
from chairlift.engine.lora.types import MAX_TENANTS, AdapterInfo, AdapterState
from chairlift.server.calls.context import ServerContext
from chairlift.server.convert.fields import bad
from chairlift.server.convert.messages import seconds
from chairlift.server.rpc.status_interceptor import ServicerContext
from chairlift.v1 import admin_pb2 as pb
from chairlift.v1 import admin_pb2_grpc

_log = logging.getLogger(__name__)

_STATES: Final = {
    AdapterState.LOADING: pb.ADAPTER_STATE_LOADING,
    AdapterState.READY: pb.ADAPTER_STATE_READY,
    AdapterState.UNLOADING: pb.ADAPTER_STATE_UNLOADING,
}
_MAX_TENANT_BYTES: Final = 256
_DEFAULT_UNLOAD_S: Final = 30.0
_MAX_UNLOAD_S: Final = 600.0


class AdminServicer(admin_pb2_grpc.AdminServiceServicer):
    """Loads, unloads and lists the adapters of the engine."""

    def __init__(self, server: ServerContext) -> None:
        self._server = server

    async def LoadAdapter(
        self, request: pb.LoadAdapterRequest, context: ServicerContext
    ) -> pb.LoadAdapterResponse:
        """Load an adapter from the folder of adapters.

        Raises:
            RequestError: The caller is no administrator; a field is wrong; the adapter cannot be
                loaded; or there is no room for it.
        """
        administrator = self._server.authenticator.administrator(context)
        check_count(request.tenants, "tenants", MAX_TENANTS)
        if not all(1 <= len(name.encode()) <= _MAX_TENANT_BYTES for name in request.tenants):
            raise bad("tenants", f"expected names of 1 to {_MAX_TENANT_BYTES} bytes")
        engine = self._server.gate.admit()
        adapters, name = engine.engine.adapters, request.folder or request.name
        folder = await asyncio.to_thread(adapters.in_folder, name)
        try:
            loaded = await engine.adapters.load(
                engine.engine, request.name, folder, request.tenants
            )
        except ModelError as error:
            raise RequestError(Reason.BAD_PARAMETER, str(error), field="folder") from None
        details = fields(name=loaded.name, rank=loaded.rank, administrator=administrator)
        _log.info("adapter loaded", extra=details)
        return pb.LoadAdapterResponse(adapter=_adapter(loaded))

    async def UnloadAdapter(
        self, request: pb.UnloadAdapterRequest, context: ServicerContext
    ) -> pb.UnloadAdapterResponse:
        """Unload an adapter, and wait for the requests that use it.

        Raises:
            RequestError: The caller is no administrator, or there is no such adapter.
        """
        administrator = self._server.authenticator.administrator(context)
        timeout_s = _DEFAULT_UNLOAD_S
        if request.HasField("timeout"):
            timeout_s = seconds(request.timeout, "timeout")
            if timeout_s > _MAX_UNLOAD_S:
                raise bad("timeout", f"expected at most {_MAX_UNLOAD_S:g} s, got {timeout_s:g} s")
        engine = self._server.gate.admit()
        num_failed = await engine.adapters.unload(engine.engine, request.name, timeout_s)
        details = fields(name=request.name, num_failed=num_failed, administrator=administrator)
        _log.info("adapter unloaded", extra=details)
        return pb.UnloadAdapterResponse(num_failed=num_failed)

    async def ListAdapters(
        self, request: pb.ListAdaptersRequest, context: ServicerContext
    ) -> pb.ListAdaptersResponse:
        """Return all adapters.

        Raises:
            RequestError: The caller is no administrator.
        """
        self._server.authenticator.administrator(context)
        engine = self._server.gate.engine().engine
        return pb.ListAdaptersResponse(
            adapters=map(_adapter, engine.adapters.list()),
            max_adapters=engine.config.num_adapter_slots,
            max_adapter_rank=engine.config.max_adapter_rank,
        )


def _adapter(info: AdapterInfo) -> pb.Adapter:
    return pb.Adapter(
        name=info.name,
        state=_STATES[info.state],
        rank=info.rank,
        num_bytes=info.num_bytes,
        tenants=info.tenants,
        generation=info.generation,
    )
