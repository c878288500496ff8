"""The prefix store: the first token of a second turn after a restart, and what storing costs.

    .venv/bin/python -m benchmarks.prefix_store --folder /path/on/a/disk

Three cases of the second turn of a prompt, each in a process of its own: computed, loaded with the
files in the page cache, and loaded after they were dropped from it. Then pairs of new prompts, of
one the store writes each block and of the other none: medians of the ratios of their wall and
processor seconds, and how much longer the threads that compute waited for a processor, as a share
of the wall seconds; each with its 95 % interval. One line of JSON for each result.
"""

import argparse
import json
import os
import random
import resource
import secrets
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple, Self

from chairlift import Engine
from chairlift.api.types import PrefixCache, Request, Sampling, Stopping, Tokens

from benchmarks.peers.model import make_model

STORE_BYTES = "8GiB"
CACHED, NOT_CACHED = PrefixCache(), PrefixCache(write=False)
"""A request that does not write the prefix cache is not stored."""
ANSWER = 16
"""Tokens of an answer, where storing is measured."""


def prompt(seed: int, length: int) -> list[int]:
    """Return token ids that no other seed begins with."""
    return [(7919 * place + 104_729 * seed) % 31_000 + 5 for place in range(length)]


@contextmanager
def serving(model: Path, store: Path | None) -> Iterator[Engine]:
    """Load a model, with a store in a folder or without."""
    settings: dict[str, Any] = {}
    if store is not None:
        key = store.parent / "key"
        if not key.exists():
            key.touch(mode=0o600)
            key.write_bytes(secrets.token_bytes(32))
        settings = {
            "prefix_store": str(store),
            "prefix_store_bytes": STORE_BYTES,
            "prefix_store_key": str(key),
            "prefix_store_uses": 1,
        }
    with Engine(model, max_num_seqs=4, **settings) as engine:
        yield engine


def answer(
    engine: Engine, tokens: list[int], max_tokens: int, cache: PrefixCache = CACHED
) -> tuple[float, list[int]]:
    """Answer a prompt; return the seconds to the first token, and the tokens."""
    stopping = Stopping(max_tokens=max_tokens, ignore_eos=True)
    engine.add(Request(tokens, Sampling(temperature=0.0), stopping, prefix_cache=cache))
    began, first_s, output = time.perf_counter(), 0.0, list[int]()
    while engine.has_work:
        for event in engine.step():
            if isinstance(event, Tokens):
                first_s = first_s or time.perf_counter() - began
                output.extend(event.token_ids)
    return first_s, output


def turn(
    connection: Any,  # noqa: ANN401, of multiprocessing
    model: Path,
    store: Path | None,
    length: int,
    first: list[int] | None,
) -> None:
    """Answer the first turn, or the second behind the answer to the first; send time and tokens."""
    with serving(model, store) as engine:
        # Kernels and memory are warm, and the cost of a step is known.
        answer(engine, prompt(99, 512), 4)
        tokens = prompt(1, length)
        if first is not None:
            tokens = [*tokens, *first, *prompt(2, 32)]
        result = answer(engine, tokens, 32)
        stats = engine.prefix_store_stats()
        loaded = 0 if stats is None else stats.loaded
    connection.send((*result, loaded))


def in_process(*arguments: object) -> tuple[float, list[int], int]:
    """Run `turn` in a new process."""
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=turn, args=(theirs, *arguments))
    process.start()
    theirs.close()
    result: tuple[float, list[int], int] = ours.recv()
    process.join()
    return result


def drop_from_page_cache(store: Path) -> None:
    """Let the system forget the files of a store."""
    for path in store.glob("*.segment"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def second_turn(model: Path, folder: Path, length: int, rounds: int) -> None:
    """Print the times of the second turn, and that its tokens are equal."""
    store = folder / "second-turn"
    _, first, _ = in_process(model, store, length, None)
    times: dict[str, list[float]] = {"computed": [], "warm": [], "cold": []}
    expected, blocks = None, 0
    for _ in range(rounds):
        for case, seconds in times.items():
            if case == "cold":
                drop_from_page_cache(store)
            taken, output, loaded = in_process(
                model, None if case == "computed" else store, length, first
            )
            expected = expected or output
            assert output == expected, f"{case}: other tokens"
            assert (loaded > 0) == (case != "computed"), f"{case}: {loaded} blocks were loaded"
            blocks = max(blocks, loaded)
            seconds.append(taken)
    medians = {case: statistics.median(seconds) for case, seconds in times.items()}
    ratios = {case: medians[case] / medians["computed"] for case in ("warm", "cold")}
    line = {"case": "second turn", "prompt": length, "blocks": blocks, "first_token_s": medians}
    print(json.dumps({**line, "of_computed": ratios, "all_s": times}), flush=True)


class Seconds(NamedTuple):
    """What an answer takes, until all that is stored of it is written."""

    wall: float
    processor: float
    """Of all threads of the process."""
    waited: float
    """Threads other than the writing one had work and no processor."""
    writer: float
    """Processor seconds of the thread that writes; part of `processor`."""

    @classmethod
    def now(cls) -> Self:
        """Return the seconds so far, by the clocks of the system."""
        waited, writer = 0, 0
        for thread in Path("/proc/self/task").iterdir():
            ran_ns, waited_ns, _ = (thread / "schedstat").read_text().split()
            if (thread / "comm").read_text() == "prefix-writer\n":
                writer += int(ran_ns)
            else:
                waited += int(waited_ns)
        usage = resource.getrusage(resource.RUSAGE_SELF)
        processor = usage.ru_utime + usage.ru_stime
        return cls(time.perf_counter(), processor, waited / 1e9, writer / 1e9)

    def until(self, later: "Seconds") -> "Seconds":
        """Return what passed."""
        return Seconds(*(after - before for before, after in zip(self, later, strict=True)))


def answer_and_write(engine: Engine, tokens: list[int], cache: PrefixCache = CACHED) -> Seconds:
    """Answer a new prompt and wait until all of it is written, if it is to be."""

    def num_offered() -> int:
        stats = engine.prefix_store_stats()
        assert stats is not None
        return stats.written + stats.dropped

    expected = num_offered()
    if cache.write:
        # The last token of an answer is not computed.
        expected += (len(tokens) + ANSWER - 1) // engine.config.block_size
    began = Seconds.now()
    answer(engine, tokens, ANSWER, cache)
    while num_offered() < expected:
        time.sleep(1e-4)
    took = began.until(Seconds.now())
    assert num_offered() == expected
    return took


def with_interval(
    values: list[float], statistic: Callable[[Sequence[float]], float]
) -> dict[str, float]:
    """Return a statistic of values, and its 95 % interval by a bootstrap."""
    draw = random.Random(0)
    drawn = [statistic(draw.choices(values, k=len(values))) for _ in range(2000)]
    cuts = statistics.quantiles(drawn, n=40)
    return {"value": statistic(values), "low": cuts[0], "high": cuts[-1]}


def storing(model: Path, folder: Path, length: int, rounds: int) -> None:
    """Print how fast new prompts are where every block is written, and where none is.

    One engine answers pairs of prompts: the weights of two engines lie in two places, one of which
    may be faster. Which one of a pair is first alternates, so that a machine that grows slower, or
    faster, favours neither.
    """
    pairs: list[tuple[Seconds, Seconds]] = []
    with serving(model, folder / "storing") as engine:
        answer_and_write(engine, prompt(99, 512))
        for number in range(rounds):
            took = {}
            for cache in (CACHED, NOT_CACHED) if number % 2 else (NOT_CACHED, CACHED):
                tokens = prompt(100 + 2 * number + cache.write, length)
                took[cache.write] = answer_and_write(engine, tokens, cache)
            pairs.append((took[True], took[False]))
        stats = engine.prefix_store_stats()
        assert stats is not None
    stored = [pair[0] for pair in pairs]
    wall, median, mean = statistics.mean(s.wall for s in stored), statistics.median, statistics.mean
    line = {
        "case": "storing",
        "speed_of_plain": with_interval([b.wall / a.wall for a, b in pairs], median),
        "processor_of_plain": with_interval([a.processor / b.processor for a, b in pairs], median),
        "waited_more_of_wall": with_interval(
            [(a.waited - b.waited) / wall for a, b in pairs], mean
        ),
        "writer_of_processor": sum(s.writer for s in stored) / sum(s.processor for s in stored),
        "wall_s": [median(s.wall for s in side) for side in zip(*pairs, strict=True)],
        "processor_s": [median(s.processor for s in side) for side in zip(*pairs, strict=True)],
    }
    counts = {"written": stats.written, "dropped": stats.dropped}
    print(json.dumps({**line, **counts}), flush=True)


def main() -> None:
    """Measure both."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", type=Path, help="folder; default: a random Llama of 336 M")
    parser.add_argument("--folder", type=Path, help="where files are written; default: temporary")
    parser.add_argument("--prompt", type=int, default=4000, help="tokens of the first turn")
    parser.add_argument("--rounds", type=int, default=3)
    cases = {"second-turn": second_turn, "storing": storing}
    parser.add_argument("--only", choices=cases, help="measure one of them")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        model = args.model or Path(folder) / "model"
        if args.model is None:
            make_model(model)
        for name, measure in cases.items():
            if args.only in (None, name):
                measure(model, Path(folder), args.prompt, args.rounds)


if __name__ == "__main__":
    main()
