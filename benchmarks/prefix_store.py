"""The prefix store: the first token of a second turn after a restart, and what storing costs.

    .venv/bin/python -m benchmarks.prefix_store --folder /path/on/a/disk

Three cases of the second turn of a prompt, each in a process of its own: computed, loaded with the
files in the page cache, and loaded after they were dropped from it. Then new prompts one after
another, with a store that writes each block and without one, in alternating rounds. One line of
JSON for each result.
"""

import argparse
import json
import os
import secrets
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from chairlift import Engine
from chairlift.api.types import Request, Sampling, Stopping, Tokens

from benchmarks.peers.model import make_model

STORE_BYTES = "8GiB"


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


def answer(engine: Engine, tokens: list[int], max_tokens: int) -> tuple[float, list[int]]:
    """Answer a prompt; return the seconds to the first token, and the tokens."""
    engine.add(
        Request(tokens, Sampling(temperature=0.0), Stopping(max_tokens=max_tokens, ignore_eos=True))
    )
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


def storing(model: Path, folder: Path, length: int, rounds: int) -> None:
    """Print how fast new prompts are with a store that writes every block, and without."""
    speeds: dict[bool, list[float]] = {True: [], False: []}
    stores = {True: folder / "storing", False: None}
    for turn_number in range(rounds):
        for has_store, seconds in speeds.items():
            with serving(model, stores[has_store]) as engine:
                answer(engine, prompt(99, 512), 4)
                began = time.perf_counter()
                for number in range(4):
                    seed = 100 + 10 * turn_number + number + 1000 * has_store
                    answer(engine, prompt(seed, length // 4), 64)
                seconds.append(time.perf_counter() - began)
                stats = engine.prefix_store_stats()
                written, dropped = (stats.written, stats.dropped) if stats else (0, 0)
                assert (written + dropped > 0) == has_store
    ratio = statistics.median(speeds[False]) / statistics.median(speeds[True])
    line = {"case": "storing", "speed_of_plain": ratio, "with_s": speeds[True]}
    print(json.dumps({**line, "without_s": speeds[False]}), flush=True)


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
