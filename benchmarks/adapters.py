"""What adapters cost: `python -m benchmarks.adapters [--model FOLDER]`.

One engine decodes a batch of the model alone and a batch whose rows have adapters in turn, in
alternating rounds; without a model it is the random Llama of 336 M parameters. One line of JSON for
each round, then the median of the ratios of both steps and their range. With `--one-thread` the
seconds are of the thread's own processor time, which other processes on the machine change less.
"""

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from chairlift import Engine
from chairlift.api.types import Request, Sampling, Stopping
from chairlift.model.config import ModelConfig
from chairlift.model.families import FAMILIES
from chairlift.model.lora.load import linears
from chairlift.model.tensors.model_tensors import model_tensors
from safetensors.torch import save_file

from benchmarks.peers.model import make_model


def main() -> None:
    """Print a line for each round, and the ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="folder; default: a random Llama of 336 M")
    parser.add_argument("--adapters", type=int, default=16)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--steps", type=int, default=24, help="of a round")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--quantize", default="none")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--one-thread", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = options.model or Path(folder) / "model"
        if options.model is None:
            make_model(model)
        adapter = write_adapter(Path(folder) / "adapter", model, options.rank)
        names = [f"a{number}" for number in range(options.adapters)]
        engine = Engine(
            model,
            adapters=dict.fromkeys(names, str(adapter)),
            max_adapter_rank=options.rank,
            max_num_seqs=options.rows,
            prefix_cache=False,
            quantize=options.quantize,
            dtype=options.dtype,
            num_threads=1 if options.one_thread else None,
        )
    clock = time.thread_time if options.one_thread else time.perf_counter
    ratios = []
    for turn in range(options.rounds):
        base = step_s(engine, [""] * options.rows, options.steps, clock)
        own = [names[row % len(names)] for row in range(options.rows)]
        adapted = step_s(engine, own, options.steps, clock)
        ratios.append(adapted / base)
        line = {"round": turn, "base_s": base, "adapted_s": adapted, "ratio": ratios[-1]}
        print(json.dumps(line), flush=True)
    found = {"ratio": statistics.median(ratios), "least": min(ratios), "most": max(ratios)}
    print(json.dumps(found))


def write_adapter(folder: Path, model: Path, rank: int) -> Path:
    """Write an adapter of random numbers for all linear layers of a model; return its folder."""
    config = ModelConfig.load(model)
    tensors = {}
    draw = torch.Generator().manual_seed(0)
    for layer in model_tensors(config.spec, FAMILIES[config.architecture].names).layers:
        for part in linears(layer):
            for name, outputs in zip(part.names, part.outputs, strict=True):
                for half, shape in (("A", (rank, part.inputs)), ("B", (outputs, rank))):
                    numbers = 0.01 * torch.randn(shape, generator=draw)
                    tensors[f"base_model.model.{name}.lora_{half}.weight"] = numbers.bfloat16()
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    targets = sorted({name.split(".")[-3] for name in tensors})
    settings = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": targets}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return folder


def step_s(engine: Engine, adapters: list[str], steps: int, clock: Callable[[], float]) -> float:
    """Return the median duration of a decode step of a row for each of the adapters."""
    draw = random.Random(0)
    for adapter in adapters:
        prompt = [draw.randrange(3, 250) for _ in range(16)]
        stopping = Stopping(max_tokens=steps + 16, ignore_eos=True)
        engine.add(Request(prompt, Sampling(temperature=0), stopping, adapter=adapter))
    durations = []
    while engine.has_work:
        began = clock()
        output = engine.advance()
        ended = clock()
        engine.events(output)
        record = output.record
        if (
            record is not None
            and len(record.num_tokens) == len(adapters) == record.num_tokens.sum()
        ):
            durations.append(ended - began)
    return statistics.median(durations[2:])


if __name__ == "__main__":
    main()
