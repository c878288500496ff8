"""A question to the engine thread, asked and answered on the event loop."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from chairlift.engine.events import refusal
from chairlift.engine.handle import Handle
from chairlift.engine.loop import EngineLoop, Explain
from chairlift.errors import Reason
from chairlift.types import Waiting

ANSWER_TIMEOUT_S = 5.0
"""The thread answers between two steps; one that takes longer is not waited for."""


async def ask_why(thread: EngineLoop, handles: Sequence[Handle]) -> list[Waiting | None]:
    """Asks how requests stand.

    Returns:
        One answer per handle; None for a request that is not live.

    Raises:
        RequestError: ENGINE_BUSY, the thread does not answer in time.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[list[Waiting | None]] = loop.create_future()

    def resolve(waiting: list[Waiting | None]) -> None:
        if not answer.done():
            answer.set_result(waiting)

    def reply(waiting: list[Waiting | None]) -> None:
        # The event loop may be closed: then nobody wants to know.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(resolve, waiting)

    thread.put(Explain(handles, reply))
    try:
        return await asyncio.wait_for(answer, ANSWER_TIMEOUT_S)
    except TimeoutError:
        raise refusal(Reason.ENGINE_BUSY) from None
