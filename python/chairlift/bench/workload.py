"""Workloads of measurements: read from a file, or drawn from a seed."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from chairlift.api.errors import ConfigError
from chairlift.bench.arrivals import Arrivals


@dataclass(frozen=True, slots=True)
class Item:
    """One request: greedy, end-of-sequence ignored, so that every engine does the same work."""

    prompt_token_ids: Sequence[int]
    max_tokens: int
    """Length of the answer, padding included."""
    arrival_s: float = 0.0
    """After the start."""
    num_padding: int = 0
    """Tokens at the end of the answer that are computed and not counted."""


def read_workload(path: Path) -> list[Item]:
    """Read lines of `{"prompt_token_ids": [..], "max_tokens": N}`.

    Raises:
        ConfigError: The file cannot be read; the message names the first bad line.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        message = f"cannot read workload {path}: {reason}"
        raise ConfigError(message) from None
    work = []
    for number, line in enumerate(lines, start=1):
        try:
            entry = json.loads(line)
            work.append(Item([int(i) for i in entry["prompt_token_ids"]], int(entry["max_tokens"])))
        except (ValueError, KeyError, TypeError):
            message = (
                f'{path}:{number}: expected {{"prompt_token_ids": [..], "max_tokens": N}}, '
                f"got {line[:60]!r}"
            )
            raise ConfigError(message) from None
    if not work:
        message = f"{path} holds no request"
        raise ConfigError(message)
    return work


def chat_workload(
    num_requests: int,
    *,
    seed: int,
    vocab_size: int,
    max_tokens: int,
    arrivals: Arrivals | None = None,
) -> list[Item]:
    """Draw lengths of prompts (log-normal, median 24) and answers (exponential with a cap).

    The exponential distribution with a cap is that of Anyscale's comparison of policies (2023); its
    lengths are scaled down for CPUs, which keeps the ratios between the policies.

    Args:
        num_requests: How many.
        seed: The same work for the same seed.
        vocab_size: Token ids are below it.
        max_tokens: Cap of an answer; the mean before the cap is a third of it.
        arrivals: When they arrive; None: all at once.
    """
    import numpy as np

    random = np.random.default_rng(seed)
    prompts = np.clip(random.lognormal(np.log(24), 0.7, num_requests), 4, 160).astype(int)
    answers = np.clip(random.exponential(max_tokens / 3, num_requests), 1, max_tokens).astype(int)
    token_ids = [random.integers(0, vocab_size, prompt).tolist() for prompt in prompts]
    items = [Item(ids, int(answer)) for ids, answer in zip(token_ids, answers, strict=True)]
    return arriving(items, arrivals or Arrivals(), seed)


def arriving(items: Sequence[Item], arrivals: Arrivals, seed: int) -> list[Item]:
    """Return requests with times of arrival, which depend on nothing but their number and seed."""
    import numpy as np

    times = arrivals.times_s(np.random.default_rng([seed, 1]), len(items))
    return [replace(item, arrival_s=float(t)) for item, t in zip(items, times, strict=True)]


def padded(items: Sequence[Item]) -> list[Item]:
    """Return requests whose answers are computed to the length of the longest of all."""
    longest = max(item.max_tokens for item in items)
    return [
        replace(item, max_tokens=longest, num_padding=longest - item.max_tokens) for item in items
    ]
