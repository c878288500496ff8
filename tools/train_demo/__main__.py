"""Train the demo model from nothing: `python -m tools.train_demo --out DIR`.

The text, the tokenizer and the weights all come from the seed, so the same ``--steps`` on the same
machine make the same model.
"""

import argparse
import itertools
import json
import math
import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import torch
from tokenizers import Tokenizer
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from tools.train_demo.packing import Packer
from tools.train_demo.text import END_OF_TEXT, END_OF_TURN, documents
from tools.train_demo.tokenizer import (
    MAX_LENGTH,
    VOCAB_SIZE,
    save_tokenizer,
    token_id,
    train_tokenizer,
)

TOKENS_PER_STEP: Final = 2048
# Mostly short sequences, which are cheaper; the long ones teach every position of the context.
LENGTHS: Final = {256: 0.76, 512: 0.16, 1024: 0.05, 2048: 0.03}
PEAK_LEARNING_RATE: Final = 3e-3
WARM_UP: Final = 0.03
SAMPLE_PROMPTS: Final = (
    "Once upon a time",
    "Count from 3 to 9:",
    "<|user|>What is the colour of the sky?<|end|><|assistant|>",
    "<|user|>Tell me a story about a dragon.<|end|><|assistant|>",
)
TOKENIZER_DOCUMENTS: Final = 20_000
HELD_OUT_SEED_OFFSET: Final = 1_000_003


@dataclass(frozen=True)
class Budget:
    """How long to train: a number of steps, or else a number of minutes."""

    steps: int | None
    minutes: float

    def spent(self, step: int, elapsed_s: float) -> float:
        """Return the share of the budget that is spent, from 0 to 1."""
        share = step / self.steps if self.steps else elapsed_s / (60 * self.minutes)
        return min(share, 1.0)


@dataclass
class Report:
    """What the run came to, as it is written to ``training.json``."""

    steps: int = 0
    tokens: int = 0
    minutes: float = 0.0
    train_loss: float = math.nan
    held_out_loss: float = math.nan
    parameters: int = 0


def learning_rate(share: float) -> float:
    """Return the learning rate at a share of the budget: a short warm-up, then half a cosine."""
    if share < WARM_UP:
        return PEAK_LEARNING_RATE * (0.02 + share / WARM_UP)
    along = (share - WARM_UP) / (1 - WARM_UP)
    return PEAK_LEARNING_RATE * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * along)))


def make_model(tokenizer: Tokenizer) -> LlamaForCausalLM:
    """Return the model with fresh weights."""
    end_of_text = token_id(tokenizer, END_OF_TEXT)
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=MAX_LENGTH,
        rms_norm_eps=1e-5,
        # One over the root of the width. With the usual 0.02, which suits wider models, the
        # attention starts out uniform and the loss falls three times as slowly.
        initializer_range=0.06,
        tie_word_embeddings=True,
        bos_token_id=end_of_text,
        eos_token_id=end_of_text,
        pad_token_id=end_of_text,
    )
    return LlamaForCausalLM(config)


def make_optimizer(model: LlamaForCausalLM) -> torch.optim.Optimizer:
    """Return AdamW; norms are not decayed."""
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    groups = [
        {"params": matrices, "weight_decay": 0.1},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=PEAK_LEARNING_RATE, betas=(0.9, 0.95))


def held_out_loss(model: LlamaForCausalLM, tokenizer: Tokenizer, seed: int) -> float:
    """Return the mean loss over documents of another seed, which training never draws."""
    packer = Packer(tokenizer, seed + HELD_OUT_SEED_OFFSET)
    with torch.no_grad():
        losses = [_loss(model, packer.batch(8, 256)).item() for _ in range(12)]
    return sum(losses) / len(losses)


def sample(model: LlamaForCausalLM, tokenizer: Tokenizer, prompt: str) -> str:
    """Return the greedy continuation of a prompt."""
    ids = torch.tensor([tokenizer.encode(prompt).ids])
    # Whether its decorators leave it a type depends on the version of `transformers`.
    output = cast("Any", model).generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=60,
        do_sample=False,
        eos_token_id=_stop_ids(tokenizer),
        pad_token_id=token_id(tokenizer, END_OF_TEXT),
    )
    return str(tokenizer.decode(output[0].tolist(), skip_special_tokens=False))


def train(budget: Budget, out: Path, seed: int) -> Report:
    """Train tokenizer and model, and writes both to the folder."""
    random.seed(seed)
    torch.manual_seed(seed)
    print("training the tokenizer", flush=True)
    tokenizer = train_tokenizer(itertools.islice(documents(seed), TOKENIZER_DOCUMENTS))
    model = make_model(tokenizer)
    report = Report(parameters=sum(p.numel() for p in model.parameters()))
    print(f"training a model of {report.parameters:,} parameters", flush=True)
    _run_steps(model, tokenizer, budget, seed, report)
    model.eval()  # type: ignore[no-untyped-call]
    model.to(torch.bfloat16)  # type: ignore[arg-type]
    report.held_out_loss = held_out_loss(model, tokenizer, seed)
    save(model, tokenizer, report, out)
    return report


def save(model: LlamaForCausalLM, tokenizer: Tokenizer, report: Report, out: Path) -> None:
    """Write the model folder, laid out as Hugging Face does."""
    out.mkdir(parents=True, exist_ok=True)
    model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
        bos_token_id=token_id(tokenizer, END_OF_TEXT),
        pad_token_id=token_id(tokenizer, END_OF_TEXT),
        eos_token_id=_stop_ids(tokenizer),
        do_sample=True,
        temperature=0.7,
        top_p=0.95,
    )
    model.save_pretrained(out)
    save_tokenizer(tokenizer, out)
    config_path = out / "config.json"
    config: dict[str, Any] = json.loads(config_path.read_text(encoding="utf-8"))
    # Readers older than transformers 5 look for the key at the top level.
    config["rope_theta"] = config.get("rope_parameters", {}).get("rope_theta", 10_000.0)
    config_path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    (out / "training.json").write_text(json.dumps(vars(report), indent=2) + "\n", encoding="utf-8")


def main() -> None:
    """Read the command line and trains."""
    parser = argparse.ArgumentParser(description="Train the demo model.")
    parser.add_argument("--out", type=Path, required=True, help="folder to write the model to")
    parser.add_argument("--minutes", type=float, default=30.0, help="time to train")
    parser.add_argument("--steps", type=int, help="steps to train, instead of a time")
    parser.add_argument("--threads", type=int, help="CPU threads (default: all)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    report = train(Budget(options.steps, options.minutes), options.out, options.seed)
    print(json.dumps(vars(report)))


def _run_steps(
    model: LlamaForCausalLM, tokenizer: Tokenizer, budget: Budget, seed: int, report: Report
) -> None:
    optimizer = make_optimizer(model)
    packer = Packer(tokenizer, seed)
    rng = random.Random(seed)
    start = time.perf_counter()
    while (share := budget.spent(report.steps, time.perf_counter() - start)) < 1:
        length = rng.choices(list(LENGTHS), weights=list(LENGTHS.values()))[0]
        loss = _loss(model, packer.batch(TOKENS_PER_STEP // length, length))
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(share)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        report.steps += 1
        report.tokens += TOKENS_PER_STEP
        # A running mean: one batch alone is too noisy to read a trend from.
        previous = loss.item() if math.isnan(report.train_loss) else report.train_loss
        report.train_loss = 0.98 * previous + 0.02 * loss.item()
        report.minutes = (time.perf_counter() - start) / 60
        if report.steps % 50 == 0:
            _show(report, budget, model, tokenizer)


def _show(report: Report, budget: Budget, model: LlamaForCausalLM, tokenizer: Tokenizer) -> None:
    share = budget.spent(report.steps, 60 * report.minutes)
    left = report.minutes * (1 - share) / share
    speed = report.tokens / (60 * report.minutes)
    print(
        f"step {report.steps:5d}  {share:4.0%}  loss {report.train_loss:.3f}"
        f"  {speed:,.0f} tokens/s  {left:.1f} min left",
        flush=True,
    )
    if report.steps % 300 == 0:
        for prompt in SAMPLE_PROMPTS:
            print(f"    {sample(model, tokenizer, prompt)!r}", flush=True)


def _loss(model: LlamaForCausalLM, ids: torch.Tensor) -> torch.Tensor:
    loss = model(input_ids=ids, labels=ids, use_cache=False).loss
    assert isinstance(loss, torch.Tensor)
    return loss


def _stop_ids(tokenizer: Tokenizer) -> list[int]:
    return [token_id(tokenizer, END_OF_TEXT), token_id(tokenizer, END_OF_TURN)]


if __name__ == "__main__":
    main()
