"""The accept loop of grpc.aio: it survives every path, and its loss is reported.

grpc.aio 1.84 and later accept every call of every connection in one task, and that task decodes the
path of a call whose method is not registered. A path that is not UTF-8 raises there, before any
interceptor: the task ends, the port closes, open streams get no status, and the process lives on.
Since all methods of this server are registered, a call of another method can only be refused:
`grpc_server` refuses these calls in a task of their own, which does not decode the path.

Any other fault that ends the accept loop or the port is reported once, and the server ends.

All of this builds on parts of grpcio that are not public. With a release that has others the server
runs on the accept loop of that release, as it is, with one warning.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

import grpc
from grpc._cython import cygrpc

from chairlift.server.rpc.listen import TcpAddress, UnixAddress

_log = logging.getLogger(__name__)

_UNREGISTERED: Final = "(not registered)"

_PROBE_PERIOD_S: Final = 1.0
_PROBE_TIMEOUT_S: Final = 2.0
_MAX_MISSED_PROBES: Final = 3
_HELLO: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""Preface and settings of HTTP/2: gRPC answers with its own, or over TLS ends the connection."""


_Base: Any = getattr(cygrpc, "AioServer", object)


class _AioServer(_Base):  # type: ignore[misc]  # grpc has no types
    """The core of a `grpc.aio` server, with another treatment of two events.

    grpcio before 1.84 has another accept loop: it decodes a path in the task of its call, and never
    calls `_make_request_call_future`.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        pool: Any,
        handlers: Any,
        interceptors: Sequence[Any],
        *options: Any,
    ) -> None:
        super().__init__(loop, pool, handlers, interceptors, *options)
        self.on_end: Callable[[BaseException], None] | None = None
        self._fault: BaseException | None = None
        self._event_loop = loop
        self._seen_by = tuple(interceptors or ())
        self._tasks: set[asyncio.Future[Any]] = set()

    def _make_request_call_future(self, method: bytes | None) -> asyncio.Future[Any]:
        """Return a future of the next call of a method; None is any method not registered."""
        request = super()._make_request_call_future(method)
        if method is None:
            request = self._event_loop.create_task(self._refuse_all(request))
        # The core writes into the state of a request until it has ended it. The accept loop cancels
        # what is pending when a fault or a shutdown ends it, which would free that state. Requests
        # fail at a shutdown; asyncio would report the failure of those that the loop gave up.
        self._keep(request)
        request.add_done_callback(_retrieve)
        return asyncio.shield(request)

    def _serving_task_crash_handler(self, task: asyncio.Future[Any]) -> None:
        """Report the end of the accept loop where a fault ended it."""
        self._fault = asyncio.CancelledError() if task.cancelled() else task.exception()
        if self._fault is not None and self.on_end is not None:
            self.on_end(self._fault)

    async def shutdown(self, grace: float | None) -> None:
        """End all calls, at the latest after the grace."""
        try:
            await super().shutdown(grace)
        except BaseException as error:
            if error is not self._fault:
                raise
            # The first call raises what ended the accept loop, and ends no call.
            await super().shutdown(grace)

    async def _refuse_all(self, request: asyncio.Future[Any]) -> None:
        """Refuse calls until a request for the next one fails: then the server is shutting down."""
        loop, resolver = self._event_loop, cygrpc._MethodResolver([], {})
        while True:
            state = await request
            refusal = cygrpc._handle_rpc(_UNREGISTERED, resolver, self._seen_by, state, loop, False)
            call = cygrpc._schedule_rpc_coro(refusal, state, loop, _UNREGISTERED)
            self._keep(loop.create_task(call))
            request = super()._make_request_call_future(None)

    def _keep(self, task: asyncio.Future[Any]) -> None:
        """Hold a reference to a task until it is done; the event loop itself holds none."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _retrieve(task: asyncio.Future[Any]) -> None:
    """Mark the exception of a task as seen."""
    if not task.cancelled():
        task.exception()


def grpc_server(
    interceptors: Sequence[Any],
    options: Sequence[tuple[str, Any]],
    on_end: Callable[[BaseException], None],
) -> grpc.aio.Server:
    """Return a `grpc.aio` server whose accept loop survives every path.

    Args:
        interceptors: The server's; they see calls of unknown methods too.
        options: Channel arguments.
        on_end: Called if a fault ends the accept loop: no call is accepted any more. Not called
            with a release of grpcio that is not known; `until_lost` notices the loss there, too.
    """
    if not _is_known():
        return _plain_server(interceptors, options)
    original = cygrpc.AioServer
    cygrpc.AioServer = _AioServer
    try:
        server = grpc.aio.server(interceptors=interceptors, options=options)
    finally:
        cygrpc.AioServer = original
    core = getattr(server, "_server", None)
    if not isinstance(core, _AioServer):
        return _plain_server(interceptors, options)
    core.on_end = on_end
    return server


def _is_known() -> bool:
    """Return whether this release of grpcio has the parts that `_AioServer` uses."""
    core = getattr(cygrpc, "AioServer", None)
    if core is None or not hasattr(core, "_serving_task_crash_handler"):
        return False
    names = ("_MethodResolver", "_handle_rpc", "_schedule_rpc_coro")
    has_requests = hasattr(core, "_make_request_call_future")
    return not has_requests or all(hasattr(cygrpc, name) for name in names)


def _plain_server(
    interceptors: Sequence[Any], options: Sequence[tuple[str, Any]]
) -> grpc.aio.Server:
    text = "grpcio %s has another accept loop: a call with a malformed path may end it"
    _log.warning(text, grpc.__version__)
    return grpc.aio.server(interceptors=interceptors, options=options)


async def until_lost(
    address: TcpAddress | UnixAddress,
    period_s: float = _PROBE_PERIOD_S,
    on_answer: Callable[[], None] = lambda: None,
) -> None:
    """Return when a listener that has answered before misses three probes.

    Args:
        address: Where it listens. A socket file that is deleted is no loss of the listener.
        period_s: Between two probes.
        on_answer: Called at each answer.
    """
    num_missed, has_answered = 0, False
    while num_missed < _MAX_MISSED_PROBES:
        await asyncio.sleep(period_s)
        try:
            async with asyncio.timeout(_PROBE_TIMEOUT_S):
                await _probe(address)
        except (ConnectionRefusedError, TimeoutError):
            num_missed += has_answered
        except OSError:
            # Out of file descriptors, say: that is no sign of a lost listener.
            num_missed = 0
        else:
            num_missed, has_answered = 0, True
            on_answer()


async def _probe(address: TcpAddress | UnixAddress) -> None:
    """Connect, and wait for anything at all."""
    if isinstance(address, UnixAddress):
        reader, writer = await asyncio.open_unix_connection(address.path)
    else:
        host = _reachable(address.host)
        reader, writer = await asyncio.open_connection(host, address.port)
    try:
        writer.write(_HELLO)
        await reader.read(1)
    except ConnectionResetError:
        pass  # An answer, too.
    finally:
        writer.close()


def _reachable(host: str) -> str:
    """Return an address by which this machine reaches a listener; `0.0.0.0` is all of them."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
