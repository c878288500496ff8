"""Count how many requests of a flood are answered before one of another tenant.

Run `python fair.py ADDRESS TOKEN_OF_THE_FLOOD TOKEN_OF_THE_OTHER`.
"""

import asyncio
import sys
from contextlib import AsyncExitStack

from chairlift.client import AsyncClient, connect_async

NUM_REQUESTS = 24


async def main(address: str, flood_token: str, other_token: str) -> None:
    """Send the flood, then the one request; print how many were answered before its first token."""
    num_answered = 0

    async def answered(client: AsyncClient) -> None:
        nonlocal num_answered
        await client.generate("A story:", max_tokens=32, ignore_eos=True).text()
        num_answered += 1

    async with AsyncExitStack() as stack:
        # Each request has a connection of its own, as those of many users have.
        tokens = [flood_token] * NUM_REQUESTS + [other_token]
        clients = [
            await stack.enter_async_context(connect_async(address, token=token)) for token in tokens
        ]
        await asyncio.gather(*[client.load() for client in clients])  # all are connected now
        *flood, other = clients
        tasks = [asyncio.create_task(answered(client)) for client in flood]
        # The flood waits, unless it was fast or was refused: then a task has ended.
        while (await other.load()).num_waiting < NUM_REQUESTS // 2:
            if any(task.done() for task in tasks):
                break
            await asyncio.sleep(0.01)
        await anext(aiter(other.generate("Once upon a time", max_tokens=8, ignore_eos=True)))
        print(f"{num_answered} of {NUM_REQUESTS} requests of the flood were answered before")
        await asyncio.gather(*tasks)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
