"""Loads the engine while the server already answers."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from typing import TYPE_CHECKING, TypeVar

from chairlift.api.config import EngineConfig
from chairlift.api.errors import ModelError
from chairlift.api.logs import fields
from chairlift.api.types import (
    Accepted,
    Failed,
    Pooling,
    PoolingTask,
    PrefixCache,
    Request,
    Sampling,
    Stopping,
)
from chairlift.server.ops.watchdog import Watchdog

if TYPE_CHECKING:
    from chairlift.engine.async_engine import AsyncEngine

_log = logging.getLogger(__name__)

Result = TypeVar("Result")

_MAX_CAUSE = 300
"""Most characters of an error that are shown."""

_STOP_S = 10.0
"""How long a load that is cancelled may take to end: an import of torch takes seconds."""


class _CancelledLoadError(Exception):
    """The load is cancelled: its thread ends at the next tensor."""


async def load_engine(
    model: str,
    config: EngineConfig,
    on_progress: Callable[[int, int], None] | None,
    *,
    watchdog: Watchdog,
    timeout_s: float,
) -> "AsyncEngine":
    """Load an engine on a thread; it is not started yet.

    A load that is cancelled ends at its next tensor, and this call waits for that: an interpreter
    that ends while a thread imports or computes may abort. A read that never returns (from a file
    server that is down) cannot be cancelled: the process exits with `FAULT_EXIT`, and its
    supervisor starts another.

    Args:
        model: Its name, as `resolve_model` takes it.
        config: Settings of the engine.
        on_progress: Called on the thread with the bytes of the weights read so far and in total.
        watchdog: Watchdog of the server.
        timeout_s: How long no weights may arrive, a download before them included.

    Raises:
        ConfigError: A setting does not fit the model.
        ModelError: The model cannot be loaded.
    """
    moved_at = time.monotonic()
    cancelled = threading.Event()

    def check() -> None:
        if cancelled.is_set():
            raise _CancelledLoadError

    def on_moved(done: int, total: int) -> None:
        nonlocal moved_at
        moved_at = time.monotonic()
        check()
        if on_progress is not None:
            on_progress(done, total)

    def load() -> "AsyncEngine":
        # Imported here: torch takes seconds to import, and the port should answer meanwhile.
        from chairlift.engine.async_engine import AsyncEngine
        from chairlift.engine.engine import Engine

        check()
        # Defaults depend on the device: only what was set is passed on.
        settings = config.model_dump(exclude_unset=True)
        return AsyncEngine.of(
            Engine(model, on_progress=on_moved, on_bad_adapter=_on_bad_adapter, **settings)
        )

    what = "nothing of the model was loaded for"
    with closing(watchdog.watch(what, lambda: time.monotonic() - moved_at, timeout_s)):
        return await _on_daemon_thread(load, cancelled)


def _on_bad_adapter(name: str, error: ModelError) -> None:
    """Log an adapter that cannot be loaded: the server starts without it."""
    _log.error("adapter not loaded", extra=fields(name=name, reason=str(error)))


async def probe(engine: "AsyncEngine") -> None:
    """Generate some tokens, so that a fault is found before the first client.

    With a time budget the scheduler learns the cost of steps from it: of long chunks and of single
    tokens.

    Raises:
        ModelError: The request fails.
    """
    pooling = engine.engine.pooling
    if not pooling.generates:
        task = PoolingTask.CLASSIFY if pooling.labels else PoolingTask.EMBED
        await _answer(engine, Request([0], pooling=Pooling(task)))
        return
    await _generate(engine, num_prompt=1, max_tokens=1)
    if engine.config.step_budget_s is not None:
        limit = min(engine.config.max_num_batched_tokens, engine.engine.max_context_len - 4)
        for num_prompt in (limit, max(1, limit // 4)):
            await _generate(engine, num_prompt=num_prompt, max_tokens=4)


async def _generate(engine: "AsyncEngine", *, num_prompt: int, max_tokens: int) -> None:
    request = Request(
        prompt=[0] * num_prompt,
        sampling=Sampling(temperature=0.0),
        stopping=Stopping(max_tokens=max_tokens, ignore_eos=True),
        prefix_cache=PrefixCache(read=False, write=False),
    )
    await _answer(engine, request)


async def _answer(engine: "AsyncEngine", request: Request) -> None:
    async for event in engine.generate(request):
        if isinstance(event, Accepted):
            engine.flush()
        elif isinstance(event, Failed):
            fault = engine.engine.fault
            message = f"the model does not answer: {_cause(fault) if fault else event.message}"
            raise ModelError(message) from fault


def _cause(fault: BaseException) -> str:
    """Return the root of a fault in one line; the prompt of the probe is no client's secret."""
    while fault.__cause__ is not None:
        fault = fault.__cause__
    text = " ".join(str(fault).split())[:_MAX_CAUSE]
    return f"{type(fault).__name__}: {text}" if text else type(fault).__name__


async def _on_daemon_thread(work: Callable[[], Result], cancelled: threading.Event) -> Result:
    """Run work on a daemon thread: the process can exit while it waits for a dead disk.

    Args:
        work: Called on the thread.
        cancelled: Set when this call is cancelled, which then waits up to `_STOP_S` for the thread.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Result] = loop.create_future()

    def set_result(result: Result | None, error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is None:
            done.set_result(result)  # type: ignore[arg-type]
        else:
            done.set_exception(error)

    def run() -> None:
        result, caught = None, None
        try:
            result = work()
        except BaseException as error:
            caught = error
        with suppress(RuntimeError):  # The loop is closed: the result is not needed.
            loop.call_soon_threadsafe(set_result, result, caught)

    threading.Thread(target=run, name="chairlift-load", daemon=True).start()
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        cancelled.set()
        await asyncio.wait({done}, timeout=_STOP_S)
        if done.done():
            done.exception()  # Retrieved: it is not the client's error.
        raise
