"""Loads and unloads adapters while the engine serves, for callers on its event loop.

An adapter is read and packed on another thread; the engine's thread only puts it into a slot,
between two steps. A change that has begun goes on to its end also where its caller is gone.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final, TypeVar

from chairlift.api.errors import Reason, refusal
from chairlift.engine.engine import Engine
from chairlift.engine.lora.types import AdapterInfo
from chairlift.model.lora.folder import AdapterFolder

Result = TypeVar("Result")

STEP_TIMEOUT_S: Final = 30.0
"""How long a change waits for the engine's thread, which answers between two steps."""
_LAST_STEPS_S: Final = 10.0
"""How long requests that were failed may stay in the steps in flight."""
_POLL_S: Final = 0.02


class AdapterChanges:
    """The changes of one engine's adapters."""

    def __init__(self, call: Callable[[Callable[[Engine], Any]], "Future[Any]"]) -> None:
        """Keep the way to the engine.

        Args:
            call: Runs a function on the engine's thread, between two steps.
        """
        self._call = call
        self._tasks: set[asyncio.Task[Any]] = set()

    async def load(
        self,
        engine: Engine,
        name: str,
        folder: Path | AdapterFolder,
        tenants: Sequence[str] = (),
        *,
        is_on_demand: bool = False,
    ) -> AdapterInfo:
        """Load an adapter; requests may name it when this returns.

        Args:
            engine: Whose thread runs.
            name: New.
            folder: A folder in the form in which PEFT saves it.
            tenants: Those that may use it; none is all.
            is_on_demand: It makes room for another one when nothing uses it.

        Raises:
            RequestError: The name is malformed or in use, there is no room, or the engine's thread
                does not answer in time.
            ModelError: The adapter cannot be loaded.
        """
        adapter = engine.adapters.begin_load(name, folder, tenants, is_on_demand=is_on_demand)
        return await self._to_the_end(self._load(engine, adapter))

    async def make_room(self) -> bool:
        """Free a slot, unless one is free; see `Adapters.make_room`.

        Raises:
            RequestError: The engine's thread does not answer in time.
        """
        return await self._run(lambda engine: engine.adapters.make_room())

    async def unload(self, engine: Engine, name: str, timeout_s: float) -> int:
        """Unload an adapter: new requests for it are refused from now on.

        Args:
            engine: Whose thread runs.
            name: Name of the adapter.
            timeout_s: How long its requests may go on; those that have not ended by then fail.

        Returns:
            How many failed.

        Raises:
            RequestError: There is none of that name, or the engine's thread does not answer in
                time; then another call goes on with it.
        """
        return await self._to_the_end(self._unload(engine, name, timeout_s))

    async def _load(self, engine: Engine, adapter: AdapterInfo) -> AdapterInfo:
        adapters = engine.adapters
        try:
            packed = await asyncio.to_thread(adapters.read, adapter)
            loaded = await self._run(lambda _: adapters.install(adapter, packed))
        finally:
            adapters.drop(adapter)
        assert loaded is not None, "nothing else ends the load"
        return loaded

    async def _unload(self, engine: Engine, name: str, timeout_s: float) -> int:
        adapter = engine.adapters.begin_unload(name)
        ends_at = time.monotonic() + timeout_s
        failed: set[int] = set()

        def fail(engine: Engine) -> None:
            for request_id in engine.adapters.end_unload(adapter):
                if engine.abort(request_id, Reason.UNKNOWN_ADAPTER):
                    failed.add(request_id)

        while await self._run(lambda engine: engine.adapters.end_unload(adapter)):
            if time.monotonic() >= ends_at + _LAST_STEPS_S:
                raise refusal(Reason.ENGINE_BUSY)
            if time.monotonic() >= ends_at:
                await self._run(fail)
            await asyncio.sleep(_POLL_S)
        return len(failed)

    async def _run(self, work: Callable[[Engine], Result]) -> Result:
        """Run a function on the engine's thread.

        Raises:
            RequestError: The thread does not answer in time.
        """
        answer: asyncio.Future[Result] = asyncio.wrap_future(self._call(work))
        try:
            return await asyncio.wait_for(answer, STEP_TIMEOUT_S)
        except TimeoutError:
            raise refusal(Reason.ENGINE_BUSY) from None

    async def _to_the_end(self, change: Coroutine[Any, Any, Result]) -> Result:
        task = asyncio.create_task(change)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return await asyncio.shield(task)

    def _forget(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            # Its caller may be gone: an error that nothing asks for would be logged.
            task.exception()
