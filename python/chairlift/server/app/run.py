"""A server as a process: signals, garbage collection, deadlines of a shutdown, exit codes."""

import asyncio
import gc
import logging
import math
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

from chairlift import _core
from chairlift.api.config import EngineConfig
from chairlift.api.logs import fields
from chairlift.server.app.server import Server
from chairlift.server.config import ServerConfig
from chairlift.server.ops.files import with_files
from chairlift.server.ops.watchdog import FAULT_EXIT

_log = logging.getLogger(__name__)

LEAK_EXIT: Final = 3
"""Exit code of a server that shut down in order but had leaked KV blocks."""
_EXIT_S: Final = 15.0
"""Time after the grace of a drain: gRPC waits for handlers without a bound."""
_LOST_PORT_GRACE_S: Final = 2.0
"""Grace of open streams when the port is lost: their clients can reconnect only afterwards."""
_SWITCH_INTERVAL_S: Final = 0.0005
"""How long a busy event loop may delay the engine thread; Python's default is 5 ms."""


async def run_server(
    engine_config: EngineConfig,
    server_config: ServerConfig,
    on_ready: Callable[[str], None] | None = None,
    *,
    on_http: Callable[[str], None] | None = None,
    on_page: Callable[[str], None] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    guard: _core.ProcessGuard | None = None,
) -> int:
    """Serve until SIGTERM or SIGINT; a second signal cuts the grace short.

    Args:
        engine_config: Settings of the engine.
        server_config: Settings of the server, the model's name included.
        on_ready: Called with the address when requests are accepted.
        on_http: Called after it with the URL of the HTTP port, if there is one.
        on_page: Called after that with the URL of the live page, if it is served.
        on_progress: Called on another thread with the bytes of the weights read and in total.
        guard: Guard of the process: it ends the process even if this call has returned and
            threads keep it alive. Default: a guard that holds until this call returns.

    Returns:
        The exit code: 0; 70 if the engine was lost for good and another process may succeed; 3 if
        KV blocks were still in use after the last request had ended.

    Raises:
        ConfigError: A setting or an address is wrong.
        ModelError: The model cannot be loaded.
    """
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    with ExitStack() as undo:
        if guard is None:
            guard = undo.enter_context(_core.ProcessGuard(FAULT_EXIT))
        server_config = with_files(server_config)
        server = Server(engine_config, server_config, guard)
        stop, second_signal = undo.enter_context(_signals())
        guard.watch_signals(server_config.drain_grace_s + _EXIT_S)
        # From here on a signal ends the server in order, even while the port is being bound.
        address = await server.bind()
        load = asyncio.create_task(server.load(on_progress))
        try:
            await _first(load, stop)
            if load.done():
                load.result()
                # A full garbage collection walks all objects, modules and model included: 50 to
                # 130 ms without a token, every few thousand calls. These objects are permanent.
                gc.collect()
                gc.freeze()
                model = server_config.model_names[0]
                ready = fields(address=address, http=server.http_url, model=model)
                _log.info("serving", extra=ready)
                if on_ready is not None:
                    on_ready(address)
                if on_http is not None and server.http_url is not None:
                    on_http(server.http_url)
                if on_page is not None and server.page_url is not None:
                    on_page(server.page_url)
                await _first(asyncio.create_task(server.gate.draining.wait()), stop)
        finally:
            load.cancel()
            has_died = server.gate.draining.is_set()
            max_s = _LOST_PORT_GRACE_S if server.has_lost_port else math.inf
            grace_s = min(server_config.drain_grace_s, max_s)
            guard.exit_within(grace_s + _EXIT_S)
            hurrying = asyncio.create_task(_on_second_signal(second_signal, guard))
            await server.stop(grace_s, second_signal)
            # The interpreter must not end under the thread of a load that is cancelled.
            await asyncio.wait({load})
            hurrying.cancel()
    code = FAULT_EXIT if has_died else LEAK_EXIT if server.has_leaked else 0
    _log.info("stopped", extra=fields(exit_code=code))
    return code


async def _on_second_signal(second_signal: asyncio.Event, guard: _core.ProcessGuard) -> None:
    """Shorten the shutdown after a second signal."""
    await second_signal.wait()
    guard.exit_within(_EXIT_S)


@contextmanager
def _signals() -> Iterator[tuple[asyncio.Event, asyncio.Event]]:
    """Yield the events that the first and the second SIGTERM or SIGINT set."""
    first, second = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (second if first.is_set() else first).set()

    loop, numbers = asyncio.get_running_loop(), (signal.SIGTERM, signal.SIGINT)
    for number in numbers:
        loop.add_signal_handler(number, on_signal)
    try:
        yield first, second
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


async def _first(task: asyncio.Task[Any], event: asyncio.Event) -> None:
    """Wait until the task is done or the event is set."""
    waiter = asyncio.create_task(event.wait())
    await asyncio.wait((task, waiter), return_when=asyncio.FIRST_COMPLETED)
    waiter.cancel()
