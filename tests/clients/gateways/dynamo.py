"""Dynamo's selection service beside a real prefix cache: both count the same overlap.

The engine is the demo model's without its forward pass; its prefix cache is small, so that prompts
evict each other. The service runs in its own environment (`dynamo_program.py`), subscribes over
ZeroMQ, and is asked for the overlap of each prompt before the engine answers it.
"""

import json
import random
import subprocess
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager
from pathlib import Path

from chairlift.api.types import Finished, Request, Stopping
from chairlift.bench.null_engine import NullEngine
from chairlift.engine.block_reports import BlockSnapshot
from chairlift.server.config import ServerConfig
from chairlift.server.kv_events.address import published
from chairlift.server.kv_events.kv_events import KvEvents
from chairlift.server.kv_events.publisher import Publisher

PACKAGE = "ai-dynamo-runtime==1.6.1"
NUM_CHANGES = 10_000
PROGRAM = Path(__file__).parent / "dynamo_program.py"


def check(python: Path, ports: Sequence[int]) -> None:
    """Compare the overlap of random prompts.

    Args:
        python: The interpreter of the environment with the service.
        ports: Two that are free.
    """
    where = "127.0.0.1:{}?replay=127.0.0.1:{}".format(*ports)
    (value,) = published(ServerConfig(kv_events=(where,)), prefix_cache=True)
    assert value.endpoint is not None
    events = KvEvents([""])
    stream = events.streams[""]
    with NullEngine(max_num_seqs=4, max_model_len=1024) as engine:
        engine.report_blocks([""], events)

        def ask(_: int) -> "Future[tuple[int, BlockSnapshot]]":
            answer: Future[tuple[int, BlockSnapshot]] = Future()
            snapshot = engine.block_snapshot()
            answer.set_result((stream.number, snapshot))
            return answer

        events.begin(ask)
        publisher = Publisher(events, stream, value.endpoint, engine.config.block_size)
        with closing(publisher), service(python, ports) as overlap:
            num_prompts, num_tokens = compare(engine, overlap, lambda: stream.number)
    print(f"dynamo: the overlap of {num_prompts} prompts agrees, {num_tokens} tokens")
    print("dynamo: passed")


def compare(
    engine: NullEngine, overlap: Callable[[list[int], int], int], number: Callable[[], int]
) -> tuple[int, int]:
    """Answer random prompts; return how many, and the tokens that were found of them."""
    draw, size = random.Random(44), engine.config.block_size
    begin = [[draw.randrange(256) for _ in range(900)] for _ in range(6)]
    num_changes = num_prompts = num_tokens = 0
    while num_changes < NUM_CHANGES:
        rest = [draw.randrange(256) for _ in range(draw.randrange(1, 100))]
        prompt = draw.choice(begin)[: draw.randrange(1, 900)] + rest
        told = overlap(prompt, number()) * size
        before = engine.load().num_cached_blocks
        engine.add(Request(prompt, stopping=Stopping(max_tokens=2, ignore_eos=True)))
        ends = []
        while engine.has_work:
            ends += [event for event in engine.step() if isinstance(event, Finished)]
        found = ends[-1].usage.cached_tokens
        # The last token is always computed.
        assert found == min(told, (len(prompt) - 1) // size * size), (told, found, len(prompt))
        stored = (len(prompt) - found) // size
        num_changes += 2 * stored - (engine.load().num_cached_blocks - before)
        num_prompts += 1
        num_tokens += found
    assert num_tokens > 0
    return num_prompts, num_tokens


@contextmanager
def service(python: Path, ports: Sequence[int]) -> Iterator[Callable[[list[int], int], int]]:
    """Start the service; yield what asks it for the blocks of a prompt that the server has."""
    command = [python, "-P", PROGRAM, *map(str, ports)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        to, of = process.stdin, process.stdout

        def overlap(prompt: list[int], number: int) -> int:
            to.write(json.dumps({"token_ids": prompt, "number": number}) + "\n")
            to.flush()
            return int(of.readline())

        try:
            yield overlap
        finally:
            to.close()
            process.terminate()
