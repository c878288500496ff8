"""Load a server of the OpenAI API at a rate, and print what its clients see.

Run `python load.py URL MODEL [--requests N] [--rate PER_S] [--max-tokens N]`.
"""

import argparse
import asyncio
import itertools
import random
import statistics
import time

from openai import AsyncOpenAI

MIN_VALUES = 2


async def main(options: argparse.Namespace) -> None:
    """Send requests at random times, whatever the server does; print figures of all."""
    draw, tasks, start = random.Random(0), [], time.perf_counter()
    async with AsyncOpenAI(base_url=options.url, api_key="none", max_retries=0) as client:
        for number in range(options.requests):
            tasks.append(asyncio.create_task(times(client, options, number)))
            await asyncio.sleep(draw.expovariate(options.rate))
        all_times = [own for own in await asyncio.gather(*tasks) if len(own) > 1]
    seconds = time.perf_counter() - start
    first = [own[1] - own[0] for own in all_times]
    gaps = [b - a for own in all_times for a, b in itertools.pairwise(own[1:])]
    print(f"{len(all_times)} requests, {len(all_times) / seconds:.1f} a second")
    print(f"{'ms':<28}{'p50':>8}{'p99':>8}")
    for name, values in (("time to the first token", first), ("between two events", gaps)):
        if len(values) < MIN_VALUES:
            print(f"{name:<28} (too few)")
            continue
        parts = statistics.quantiles(values, n=100, method="inclusive")
        print(f"{name:<28}{1e3 * parts[49]:>8.1f}{1e3 * parts[98]:>8.1f}")


async def times(client: AsyncOpenAI, options: argparse.Namespace, number: int) -> list[float]:
    """Return when a request was sent, and when each piece of its text came, in seconds."""
    sent = time.perf_counter()
    stream = await client.completions.create(
        model=options.model,
        prompt=f"Story {number}:",
        max_tokens=options.max_tokens,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    pieces = (chunk async for chunk in stream if chunk.choices and chunk.choices[0].text)
    return [sent, *[time.perf_counter() async for _ in pieces]]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("model")
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--rate", type=float, default=8.0, help="requests a second")
    parser.add_argument("--max-tokens", type=int, default=64)
    asyncio.run(main(parser.parse_args()))
