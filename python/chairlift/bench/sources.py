"""The work of a comparison: lengths that are drawn, a recipe, a trace or a file of prompts."""

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from chairlift.api.errors import ConfigError
from chairlift.bench.arrivals import Arrivals
from chairlift.bench.workload import Item, arriving, chat_workload
from chairlift.replay.trace import Trace

Encode = Callable[[str], list[int]]
"""Turns a text into token ids."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where the requests of a comparison come from."""

    title: str
    settings: dict[str, Any]
    """What decides its requests."""
    draw: Callable[[int, Encode], list[Item]]
    """Returns the requests for a size of the vocabulary; their times are the source's own."""
    num_requests: int
    has_times: bool = False
    """Whether the source has times of arrival."""

    def items(self, vocab_size: int, encode: Encode, arrivals: Arrivals | None) -> list[Item]:
        """Return the requests.

        Args:
            vocab_size: Token ids are below it.
            encode: Turns a text into token ids.
            arrivals: When they arrive; None: at the source's own times.
        """
        items = self.draw(vocab_size, encode)
        if arrivals is None:
            return items
        return arriving(items, arrivals, int(self.settings.get("seed", 0)))


def chat_source(num_requests: int, max_tokens: int, seed: int) -> Source:
    """Return the built-in lengths of a chat, all at once."""
    settings = {"requests": num_requests, "max_tokens": max_tokens, "seed": seed}

    def draw(vocab_size: int, _encode: Encode) -> list[Item]:
        return chat_workload(num_requests, seed=seed, vocab_size=vocab_size, max_tokens=max_tokens)

    return Source("chat lengths", {"source": "chat lengths"} | settings, draw, num_requests)


def recipe_source(name: str, num_requests: int | None, scale: float, seed: int) -> Source:
    """Return a recipe of `chairlift replay`.

    Raises:
        ConfigError: There is no such recipe.
    """
    from chairlift.replay.recipes import RECIPES, draw_trace

    if name not in RECIPES:
        message = f"recipe: expected one of {', '.join(RECIPES)}, got {name!r}"
        raise ConfigError(message)
    trace = draw_trace(name, num_requests=num_requests, seed=seed, scale=scale)
    count = len(trace.requests)
    settings = {"source": name, "requests": count, "scale": scale, "seed": seed}
    return Source(
        f"recipe {name}", settings, partial(_of_trace, trace, seed), count, has_times=True
    )


def trace_source(path: Path, num_requests: int | None, seed: int) -> Source:
    """Return a trace that a server has recorded, or the first requests of it.

    Raises:
        ConfigError: It cannot be read or is damaged.
    """
    from chairlift.replay.trace import read_trace

    trace = read_trace(path)
    trace.requests = trace.requests[:num_requests]
    count = len(trace.requests)
    settings = {"source": "trace", "file": _digest(path), "requests": count, "seed": seed}
    draw = partial(_of_trace, trace, seed)
    return Source(f"trace {path.name}", settings, draw, count, has_times=True)


def prompts_source(path: Path, num_requests: int | None, max_tokens: int, seed: int) -> Source:
    """Return the prompts of a file, all at once.

    Lines are `{"prompt": "text"}` or `{"prompt_token_ids": [..]}`, with `"max_tokens": N` where an
    answer has another length than the others.

    Raises:
        ConfigError: It cannot be read, or a line is no prompt; the message names the first.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        message = f"prompts: cannot read {path}: {getattr(error, 'strerror', None) or error}"
        raise ConfigError(message) from None
    found = [_prompt(path, i, line, max_tokens) for i, line in enumerate(lines, 1) if line.strip()]
    found = found[:num_requests]
    if not found:
        message = f"prompts: {path} holds no prompt"
        raise ConfigError(message)
    settings = {
        "source": "prompts",
        "file": _digest(path),
        "requests": len(found),
        "max_tokens": max_tokens,
        "seed": seed,
    }

    def draw(_vocab_size: int, encode: Encode) -> list[Item]:
        return [
            Item(encode(prompt) if isinstance(prompt, str) else prompt, length)
            for prompt, length in found
        ]

    return Source(f"prompts {path.name}", settings, draw, len(found))


def _prompt(path: Path, number: int, line: str, max_tokens: int) -> tuple[str | list[int], int]:
    try:
        entry = json.loads(line)
        length = entry.get("max_tokens", max_tokens)
        prompt = (
            entry["prompt"] if "prompt" in entry else [int(i) for i in entry["prompt_token_ids"]]
        )
        if prompt and isinstance(prompt, str | list) and isinstance(length, int) and length > 0:
            return prompt, length
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    message = (
        f'prompts: {path}:{number}: expected {{"prompt": "text"}} or '
        f'{{"prompt_token_ids": [..]}}, and "max_tokens": N or none, got {line[:60]!r}'
    )
    raise ConfigError(message)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _of_trace(trace: Trace, seed: int, vocab_size: int, _encode: Encode) -> list[Item]:
    """Return the requests of a trace; prompts with equal names of blocks have equal beginnings."""
    import numpy as np

    from chairlift.replay.run import output_lengths
    from chairlift.replay.token_ids import block_token_ids

    size, start = trace.header.block_size, trace.requests[0].arrival
    items = []
    for index, request in enumerate(trace.requests):
        names = request.blocks[: request.num_prompt // size]
        known = (block_token_ids(names, size) % vocab_size).tolist()
        random = np.random.default_rng([seed, 2, index])
        rest = random.integers(0, vocab_size, request.num_prompt - len(known)).tolist()
        items.append(Item([*known, *rest], 0, (request.arrival - start) * 1e-9))
    lengths = output_lengths(trace.requests)
    return [
        Item(item.prompt_token_ids, length, item.arrival_s)
        for item, length in zip(items, lengths, strict=True)
    ]


def check_context(items: Sequence[Item], max_context_len: int, source: Source) -> None:
    """Check that every request fits into the context of a model.

    Raises:
        ConfigError: A request is longer than the context of the model.
    """
    for number, item in enumerate(items, start=1):
        length = len(item.prompt_token_ids) + item.max_tokens
        if length > max_context_len:
            message = (
                f"{source.title}: request {number} has {length:,} tokens, prompt and answer, and "
                f"the model takes {max_context_len:,}; --scale divides the lengths of a recipe"
            )
            raise ConfigError(message)


@dataclass(frozen=True, slots=True)
class Offered:
    """How the requests of a comparison arrive, but for the rate."""

    burstiness: float = 1.0
    concurrency: int | None = None

    def at(self, rate_per_s: float | None) -> Arrivals | None:
        """Return the arrivals at a rate; None is the source's own times."""
        if self.concurrency is not None:
            return Arrivals(math.inf, concurrency=self.concurrency)
        return None if rate_per_s is None else Arrivals(rate_per_s, self.burstiness)
