"""`chairlift top`: a live view of a server, from its own streams of load and steps."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console
from rich.live import Live

from chairlift.api.errors import ChairliftError, ConfigError, Reason, RequestError, ServerError
from chairlift.cli.config_sources import check_environment
from chairlift.cli.remote import DEFAULT_TARGET, Target, TlsCa, TlsCert, TlsKey, no_connection
from chairlift.cli.top_state import TopState
from chairlift.cli.top_view import TopView, as_json, state_name
from chairlift.cli.values import duration

if TYPE_CHECKING:
    from chairlift.client import AsyncClient

RETRY_S: Final = 0.5
SHORTEST_INTERVAL_S: Final = 0.1
"""The server's."""


def top(
    *,
    target: Target = DEFAULT_TARGET,
    interval: Annotated[str, duration("--interval", help="Between frames.")] = "500ms",
    once: Annotated[bool, typer.Option("--once", help="Print one frame and end.")] = False,
    json_lines: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per frame.")
    ] = False,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
) -> None:
    """Watch a server live: rows, queue, KV memory, latencies, tenants. q or Ctrl-C ends it."""
    check_environment()
    console = Console()
    if not (once or json_lines or console.is_terminal):
        message = "the live view needs a terminal: take --once or --json"
        raise ConfigError(message)
    state = TopState(target, interval_s=float(interval))
    tls = {"tls_ca": tls_ca, "tls_cert": tls_cert, "tls_key": tls_key}
    frames = _frames(state, float(interval), tls)
    with suppress(KeyboardInterrupt):
        if once or json_lines:
            asyncio.run(_print(console, state, frames, once=once, json_lines=json_lines))
        else:
            asyncio.run(_live(console, state, frames, max(float(interval), SHORTEST_INTERVAL_S)))


async def _print(
    console: Console, state: TopState, frames: AsyncIterator[int], *, once: bool, json_lines: bool
) -> None:
    async for number in frames:
        # The first frame has no rates yet.
        if once and number == 0 and not state.error:
            continue
        if json_lines:
            print(json.dumps(as_json(state)), flush=True)
        else:
            console.print(TopView(state))
        if once:
            return


async def _live(
    console: Console, state: TopState, frames: AsyncIterator[int], interval_s: float
) -> None:
    """Show the view until q, on a screen of its own, so that the terminal is restored."""
    with Live(TopView(state), console=console, screen=True, auto_refresh=False) as live:

        async def follow() -> None:
            async for _ in frames:
                pass

        async def show() -> None:
            # Not with the frames: a missing frame must be visible, too.
            while True:
                live.refresh()
                await asyncio.sleep(interval_s)

        following, showing = asyncio.create_task(follow()), asyncio.create_task(show())
        typed = asyncio.Event()
        waiting = asyncio.create_task(typed.wait())
        with _interrupts(typed), _keys(typed):
            tasks = {following, showing, waiting}
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        await _end(showing)
        await _end(following)


async def _end(task: asyncio.Task[None]) -> None:
    """Cancel a task until it ends: a call may take the first cancel for an error of its own."""
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=RETRY_S)
    if not task.cancelled():
        task.result()


@contextmanager
def _interrupts(typed: asyncio.Event) -> Iterator[None]:
    """Set an event at Ctrl-C, even if a shell makes its background jobs ignore it."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, typed.set)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


@contextmanager
def _keys(typed: asyncio.Event) -> Iterator[None]:
    """Set an event when q is typed; a terminal otherwise waits for the end of a line."""
    if not sys.stdin.isatty():
        yield
        return
    import termios
    import tty

    fd, loop = sys.stdin.fileno(), asyncio.get_running_loop()
    before = termios.tcgetattr(fd)

    def on_key() -> None:
        if os.read(fd, 1) in (b"q", b"Q", b""):
            typed.set()

    tty.setcbreak(fd)
    loop.add_reader(fd, on_key)
    try:
        yield
    finally:
        loop.remove_reader(fd)
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


async def _frames(
    state: TopState, interval_s: float, tls: dict[str, str | None]
) -> AsyncIterator[int]:
    """Update the state and yield when to draw it; numbers count from each connection.

    Raises:
        ChairliftError: There was no server at the start, or it refuses the token.
    """
    # Failed handshakes are shown in the view; gRPC's own lines would overwrite it.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from chairlift.client import connect_async

    while True:
        token = os.environ.get("CHAIRLIFT_TOKEN")
        try:
            async with connect_async(state.target, token=token, **tls) as client:
                async for number in _watch(client, state, interval_s):
                    yield number
            state.lost("")
        except (ServerError, RequestError) as error:
            if isinstance(error, RequestError) and error.reason is Reason.UNAUTHENTICATED:
                raise
            if state.info is None:
                if isinstance(error, ServerError):
                    raise ChairliftError(no_connection(state.target, error)) from None
                raise
            state.lost(str(error))
        yield 0
        await asyncio.sleep(RETRY_S)


async def _watch(client: "AsyncClient", state: TopState, interval_s: float) -> AsyncIterator[int]:
    info = await client.server_info()
    state.connected(info, (await client.model_info()).name)
    steps = await client.watch_steps()

    async def follow() -> None:
        with suppress(ServerError, RequestError):
            async for step in steps:
                state.add(step)

    following = asyncio.create_task(follow())
    try:
        number = 0
        async for load in client.watch_load(interval_s, block_map=True):
            # A server listens before its model is loaded.
            if state_name(state) == "starting":
                state.info = await client.server_info()
            state.take(load)
            yield number
            number += 1
    finally:
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following
