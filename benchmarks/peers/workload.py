"""The work that every system gets: the same token ids and output lengths."""

import json
import random
from pathlib import Path


def write_workload(path: Path, num_requests: int, vocab_size: int, seed: int = 7) -> None:
    """Draws lengths from log-normal laws: prompts of 128 tokens in the median, answers of 96.

    Lines are those of `chairlift bench offline --workload`.
    """
    rng = random.Random(seed)
    lines = []
    for _ in range(num_requests):
        num_prompt = max(16, min(512, int(rng.lognormvariate(0, 0.7) * 128)))
        num_output = max(8, min(384, int(rng.lognormvariate(0, 0.7) * 96)))
        prompt = [rng.randrange(3, vocab_size) for _ in range(num_prompt)]
        lines.append(json.dumps({"prompt_token_ids": prompt, "max_tokens": num_output}) + "\n")
    path.write_text("".join(lines), encoding="utf-8")
