"""Two ranks of one thread beside one process with two: `python -m benchmarks.ranks --model FOLDER`.

The ranks share memory (`memory`), or have connections of this machine as if they were on two hosts
(`hosts`). A process of its own for each way, in turns: tokens per second of decode steps with 1 and
16 rows, and seconds of a prompt of 2,000 tokens. Then what the ranks exchange: the bytes of a step,
and the time of a gather between two ranks that do nothing else. One line of JSON each.
"""

import argparse
import json
import multiprocessing
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from chairlift import Engine, _core
from chairlift.api.choices import Quantize
from chairlift.api.config import EngineSettings
from chairlift.api.types import Request, Sampling, Stopping, Tokens
from chairlift.engine.ranks.lead import SPIN_S
from chairlift.engine.ranks.segment import Layout
from chairlift.model.config import ModelConfig

NUM_RANKS = 2
COMMON: EngineSettings = {
    "max_num_seqs": 16,
    "max_num_batched_tokens": 512,
    "prefix_cache": False,
    "drafts": "off",
}
WAYS = ONE, MEMORY, HOSTS = "one", "memory", "hosts"
NUM_PROMPT = 2000
NUM_STEPS = 48
NUM_GATHERS = 5000
_PATIENCE_S = 60.0


def main() -> None:
    """Print a line for each figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="folder")
    parser.add_argument("--quantize", default="none")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--way", choices=WAYS, help="measure one way, in this process")
    options = parser.parse_args()
    if options.way is not None:
        print(json.dumps(measure(options.model, options.way, options.quantize)))
        return
    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for _ in range(options.rounds):
        for way, rounds in found.items():
            command = [sys.executable, "-m", "benchmarks.ranks", "--way", way]
            command += ["--model", str(options.model), "--quantize", options.quantize]
            output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            rounds.append(json.loads(output.splitlines()[-1]))
            print(json.dumps({"way": way, **rounds[-1]}), flush=True)
    for way in WAYS[1:]:
        for name in found[way][0]:
            pairs = zip(found[ONE], found[way], strict=True)
            # Seconds are the other way round: more than 1 is faster.
            ratios = [
                one[name] / ranks[name] if name.endswith("_s") else ranks[name] / one[name]
                for one, ranks in pairs
            ]
            line = {"way": way, "figure": name, "ratio": statistics.median(ratios)}
            print(json.dumps(line | {"min": min(ratios), "max": max(ratios)}), flush=True)
    config = ModelConfig.load(options.model)
    for rows in (1, 16):
        line = {"rows": rows, "gathers": num_gathers(config), "bytes": rows * row_bytes(config)}
        for way, between in ((MEMORY, in_memory), (HOSTS, over_connections)):
            line[f"gather_us_{way}"] = between(rows, config.spec.hidden_size)
        print(json.dumps(line))


@contextmanager
def settings_of(way: str, model: Path) -> Iterator[EngineSettings]:
    """Give the settings of an engine of one way; a rank of another host lives in this context."""
    if way != HOSTS:
        yield {"tensor_parallel": NUM_RANKS if way == MEMORY else 1, "num_threads": NUM_RANKS}
        return
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as server:
        key = Path(folder) / "key"
        key.touch(0o600)
        key.write_bytes(os.urandom(32))
        address = f"127.0.0.1:{server.getsockname()[1]}"
        server.close()
        command = [sys.executable, "-m", "chairlift", "rank", str(model), "--num-threads", "1"]
        command += ["--rank", "1", "--leader", address, "--rank-key", str(key)]
        other = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            yield {
                "tensor_parallel": NUM_RANKS,
                "num_threads": 1,
                "rank_listen": address,
                "rank_key": str(key),
            }
        finally:
            other.kill()
            other.wait()


def measure(model: Path, way: str, quantize: str) -> dict[str, float]:
    """Return the figures of one way."""
    with settings_of(way, model) as settings:
        return figures_of(model, {**settings, **COMMON, "quantize": Quantize(quantize)})


def figures_of(model: Path, settings: EngineSettings) -> dict[str, float]:
    """Return the figures of an engine."""
    engine = Engine(model, **settings)
    found = {}
    for rows in (1, 16):
        found[f"decode_{rows}"] = decode(engine, rows)
    found["prompt_s"] = statistics.median(prompt(engine, start) for start in range(3))
    engine.close()
    return found


def decode(engine: Engine, rows: int) -> float:
    """Return the tokens per second of steps in which every row decodes."""
    ids = {engine.add(request(range(3, 35 + row), 2 * NUM_STEPS)).request_id for row in range(rows)}
    begun: set[int] = set()
    while begun != ids:
        begun.update(tokens_of(engine))
    for _ in range(4):
        engine.step()
    began, count = time.perf_counter(), 0
    for _ in range(NUM_STEPS):
        count += sum(1 for _ in tokens_of(engine))
    took = time.perf_counter() - began
    for request_id in ids:
        engine.abort(request_id)
    while engine.has_work:
        engine.step()
    return count / took


def prompt(engine: Engine, start: int) -> float:
    """Return the seconds to the first token of a long prompt."""
    began = time.perf_counter()
    engine.add(request(range(3 + start, 3 + start + NUM_PROMPT), 1))
    while engine.has_work:
        engine.step()
    return time.perf_counter() - began


def request(tokens: range, num_tokens: int) -> Request:
    """Return a request for so many tokens, the likeliest ones."""
    return Request(
        [*tokens], Sampling(temperature=0), Stopping(max_tokens=num_tokens, ignore_eos=True)
    )


def tokens_of(engine: Engine) -> Iterator[int]:
    """Run a step; yield the request of each of its tokens."""
    for event in engine.step():
        if isinstance(event, Tokens):
            yield from [event.request_id] * len(event.token_ids)


def num_gathers(config: ModelConfig) -> int:
    """Return the gathers of a decode step: four of each layer, and the logits."""
    return 4 * len(config.spec.layers) + 1


def row_bytes(config: ModelConfig) -> int:
    """Return the bytes that all ranks write for a row of a decode step."""
    spec = config.spec
    widths = [attention.query_size for attention in spec.attentions]
    widths += [layer.dense.intermediate_size for layer in spec.layers if layer.dense is not None]
    numbers = sum(widths) + 2 * spec.hidden_size * len(spec.layers)
    return numbers * config.dtype.itemsize + 4 * spec.vocab_size


def in_memory(rows: int, width: int) -> float:
    """Return the microseconds of a gather of two processes that share memory."""
    layout = Layout(NUM_RANKS, 16)
    descriptor = layout.create()

    def group(rank: int) -> _core.RankGroup:
        return layout.open(descriptor, rank, SPIN_S, _PATIENCE_S)

    return _gather_us(group, rows, width)


def over_connections(rows: int, width: int) -> float:
    """Return the microseconds of a gather of two processes with a connection."""
    key = os.urandom(32)
    listener = _core.RankListener("127.0.0.1:0", key)
    limits = _PATIENCE_S, SPIN_S, _PATIENCE_S

    def group(rank: int) -> _core.RankGroup:
        if rank == 0:
            return listener.meet(NUM_RANKS, *limits)
        return _core.RankGroup.join(listener.address, key, rank, *limits)

    return _gather_us(group, rows, width)


def _gather_us(group: Callable[[int], _core.RankGroup], rows: int, width: int) -> float:
    other = multiprocessing.get_context("fork").Process(
        target=_gathers, args=(group, 1, rows, width)
    )
    other.start()
    took = _gathers(group, 0, rows, width)
    other.join(_PATIENCE_S)
    return 1e6 * took / NUM_GATHERS


def _gathers(group: Callable[[int], _core.RankGroup], rank: int, rows: int, width: int) -> float:
    met = group(rank)
    part, whole = torch.zeros(rows, width // NUM_RANKS), torch.zeros(rows, width)
    widths = [width // NUM_RANKS] * NUM_RANKS
    met.gather(part, whole, widths)
    began = time.perf_counter()
    for _ in range(NUM_GATHERS):
        met.gather(part, whole, widths)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
