"""A real checkpoint on this machine's GPU beside `transformers` in float32.

    python -m benchmarks.cuda.real_model MODEL --text FILE          one JSON object per line

Each beginning of each window of the text is a prompt for one token, so the figures are those of
the scheduler, the prefix cache and the kernels that serve. The divergence is computed over the 20
likeliest tokens and all others together, which is at most the whole divergence.
"""

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from chairlift.api.choices import KvCacheDtype
from chairlift.api.types import Output, Sampling, Stopping
from chairlift.checkpoints.files.folder import is_gguf, resolve_model
from chairlift.engine.engine import Engine
from chairlift.text.tokenizer import Tokenizer
from torch import Tensor
from transformers import AutoModelForCausalLM

NUM_CANDIDATES = 20
CACHES = (KvCacheDtype.AUTO, KvCacheDtype.FP8)


def reference(model: Path, windows: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the log probabilities of `transformers`, float32 `[windows, T, vocab_size]`."""
    source = (model.parent, model.name) if is_gguf(model) else (model, None)
    oracle = AutoModelForCausalLM.from_pretrained(source[0], gguf_file=source[1], dtype=dtype)
    # Transformers' own `to` has no type that a checker understands.
    torch.nn.Module.to(oracle, "cuda")
    with torch.inference_mode():
        scores = [oracle(window[None].cuda()).logits[0].float() for window in windows]
    return torch.log_softmax(torch.stack(scores), -1).cpu()


def answers(engine: Engine, windows: Tensor) -> Iterator[list[tuple[int, float]]]:
    """Yield the likeliest tokens after each beginning of each window."""
    for window in windows.tolist():
        prompts = [window[:end] for end in range(1, len(window) + 1)]
        output = Output(text=False, logprobs=True, candidates=NUM_CANDIDATES)
        stopping = Stopping(max_tokens=1, ignore_eos=True)
        for answer in engine.generate(prompts, Sampling(temperature=0), stopping, output):
            assert answer.candidates is not None
            yield list(answer.candidates[0])


def divergence(expected: Tensor, ids: Sequence[int], scores: Sequence[float]) -> float:
    """Return the divergence in nats over these tokens and all others together.

    Args:
        expected: Log probabilities of the reference `[vocab_size]`.
        ids: Tokens of the model.
        scores: Their log probabilities.
    """
    known = expected[list(ids)].double()
    given = torch.tensor(scores).double()
    rests = [max(1e-12, 1 - float(part.exp().sum())) for part in (known, given)]
    inside = float((known.exp() * (known - given)).sum())
    return inside + rests[0] * (math.log(rests[0]) - math.log(rests[1]))


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare each format of the cache, and `transformers` in bfloat16, with float32."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--windows", type=int, default=4)
    parser.add_argument("--window", type=int, default=512)
    chosen = parser.parse_args(arguments)
    model = resolve_model(chosen.model)
    ids = Tokenizer.load(model).encode(chosen.text.read_text("utf-8"), add_special_tokens=False)
    count = min(chosen.windows, len(ids) // chosen.window)
    if count == 0:
        parser.exit(1, f"text: expected at least {chosen.window} tokens, got {len(ids)}\n")
    windows = torch.tensor(ids[: count * chosen.window]).view(count, -1)
    expected = reference(model, windows, torch.float32).flatten(0, 1)
    rounded = reference(model, windows, torch.bfloat16).flatten(0, 1)
    top = rounded.topk(NUM_CANDIDATES)
    own = zip(top.indices.tolist(), top.values.tolist(), strict=True)
    report("transformers, bfloat16", expected, [list(zip(*row, strict=True)) for row in own])
    for cache in CACHES:
        with Engine(model, device="cuda", kv_cache_dtype=cache, dtype="bfloat16") as engine:
            report(f"bfloat16, cache {cache}", expected, list(answers(engine, windows)))


def report(name: str, expected: Tensor, rows: list[list[tuple[int, float]]]) -> None:
    """Print the mean divergence, and how often the likeliest token is that of the reference."""
    pairs = list(zip(expected, rows, strict=True))
    parts = [divergence(line, *zip(*row, strict=True)) for line, row in pairs]
    equal = sum(int(line.argmax()) == row[0][0] for line, row in pairs)
    figures = {"tokens": len(rows), "kl": sum(parts) / len(parts), "agreement": equal / len(rows)}
    print(json.dumps({"name": name, **figures}), flush=True)


if __name__ == "__main__":
    main()
