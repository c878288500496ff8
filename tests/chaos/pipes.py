"""Waits for other processes, none of them for ever: a test that waits so cannot even fail."""

import asyncio

END_S = 60.0
"""Longer is a hang."""


async def next_message(pipe):
    """What the process at the other end says next."""
    assert await asyncio.to_thread(pipe.poll, END_S), f"nothing was received for {END_S} s"
    return pipe.recv()


async def end(process):
    """Its exit code."""
    await asyncio.to_thread(process.join, END_S)
    assert process.exitcode is not None, f"the process still runs after {END_S} s"
    return process.exitcode
