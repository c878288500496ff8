"""The work that every system gets: the same token ids and output lengths."""

import json
import random
from pathlib import Path


def _chat(rng: random.Random) -> tuple[int, int]:
    """Log-normal lengths: prompts of 128 tokens in the median, answers of 96."""
    num_prompt = max(16, min(512, int(rng.lognormvariate(0, 0.7) * 128)))
    return num_prompt, max(8, min(384, int(rng.lognormvariate(0, 0.7) * 96)))


def _documents(rng: random.Random) -> tuple[int, int]:
    """Long prompts and short answers, each length as likely as another."""
    return rng.randint(100, 900), rng.randint(8, 64)


def _prompt(_: random.Random) -> tuple[int, int]:
    """A prompt of 2,000 tokens, and the first token after it."""
    return 2_000, 1


def _answer(_: random.Random) -> tuple[int, int]:
    """200 tokens after 32."""
    return 32, 200


KINDS = {"chat": _chat, "documents": _documents, "prompt": _prompt, "answer": _answer}
"""Laws of the tokens of a prompt and of its answer."""


def write_workload(
    path: Path, num_requests: int, vocab_size: int, kind: str = "chat", seed: int = 7
) -> None:
    """Draw requests of a kind; lines are those of `chairlift bench offline --workload`."""
    rng = random.Random(seed)
    lines = []
    for _ in range(num_requests):
        num_prompt, num_output = KINDS[kind](rng)
        prompt = [rng.randrange(3, vocab_size) for _ in range(num_prompt)]
        lines.append(json.dumps({"prompt_token_ids": prompt, "max_tokens": num_output}) + "\n")
    path.write_text("".join(lines), encoding="utf-8")
