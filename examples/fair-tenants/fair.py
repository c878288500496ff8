"""Count how many requests of a flood are answered before one of another tenant.

Run `python fair.py ADDRESS TOKEN_OF_THE_FLOOD TOKEN_OF_THE_OTHER`.
"""

import asyncio
import sys

from chairlift.client import AsyncGeneration, connect_async, new_start

NUM_REQUESTS = 40


async def main(address: str, flood_token: str, other_token: str) -> None:
    """Send the flood, then the one request; print how many were answered before its first token."""
    num_answered = 0

    async def answered(generation: AsyncGeneration) -> None:
        nonlocal num_answered
        await generation.text()
        num_answered += 1

    async with (
        connect_async(address, token=flood_token) as flood,
        connect_async(address, token=other_token) as other,
    ):
        prompts = [f"Story {number}:" for number in range(NUM_REQUESTS)]
        starts = [new_start(prompt, max_tokens=16, ignore_eos=True) for prompt in prompts]
        tasks = [asyncio.create_task(answered(g)) for g in await flood.generate_all(starts)]
        while (await flood.load()).num_running == 0:
            await asyncio.sleep(0.01)
        generation = other.generate("Once upon a time", max_tokens=8, ignore_eos=True)
        await anext(aiter(generation))
        print(f"{num_answered} of {NUM_REQUESTS} requests of the flood were answered before")
        await asyncio.gather(*tasks)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
