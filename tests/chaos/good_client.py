"""A client that does nothing wrong, and how long its tokens take."""

import asyncio
import time

from chairlift.v1 import generation_pb2 as pb

from tests.chaos.figures import percentile
from tests.chaos.traffic import Ask

TOKENS = 60


class GoodClient:
    """Asks one request after the other; every answer has to be whole and right."""

    def __init__(self, lab, stub):
        self._lab = lab
        self._stub = stub
        self.gaps_s = []
        """Between tokens, and from a request to its first."""
        self.num_requests = 0

    async def during(self, work):
        """Asks while a coroutine or future runs; gives its result."""
        done = asyncio.ensure_future(work)
        while not done.done():
            await self.ask()
        return await done

    async def for_requests(self, num):
        """Asks so many."""
        for _ in range(num):
            await self.ask()

    async def ask(self):
        """Asks once."""
        traffic = self._lab.traffic
        ask = Ask("good", self.num_requests % len(traffic.prompts), TOKENS)
        command = traffic.command(ask)
        tokens, last = [], time.monotonic()
        async for response in self._stub.GenerateOne(pb.GenerateOneRequest(start=command.start)):
            now = time.monotonic()
            self.gaps_s.append(now - last)
            last = now
            tokens += [i for event in response.events for i in event.tokens.token_ids]
        assert tokens == traffic.answers[ask.prompt][:TOKENS]
        self.num_requests += 1

    def p99_s(self):
        """Of the gaps."""
        return percentile(self.gaps_s, 99)


async def beside(lab, server, work):
    """Runs work beside a good client; gives its result, and the good client's figures in words."""
    async with server.stub() as stub:
        alone, beside = GoodClient(lab, stub), GoodClient(lab, stub)
        await alone.for_requests(5)
        result = await beside.during(work)
    ratio = beside.p99_s() / alone.p99_s()
    words = (
        f"a good client's p99 gap {beside.p99_s() * 1e3:.1f} ms"
        f" ({ratio:.1f} x alone), {beside.num_requests:,} answers right"
    )
    return result, words
