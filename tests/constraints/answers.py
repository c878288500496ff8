"""Answers to random schemas, checked by the `jsonschema` package."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from chairlift.api.types import (
    Chat,
    ChatMessage,
    Constraint,
    FinishReason,
    Request,
    Sampling,
    Stopping,
)
from chairlift.engine.engine import Engine
from jsonschema import Draft202012Validator

from tests.constraints.schemas import random_schema
from tests.engine.drive import end, run, text

MAX_TOKENS = 500
AT_ONCE = 128

Asked = tuple[int, Any, Request]


@dataclass
class Tally:
    """What became of the answers."""

    reasons: Counter[str] = field(default_factory=Counter)
    wrong: list[tuple[int, str]] = field(default_factory=list)
    """Answers that have stopped and are not what their schema describes."""
    num_tokens: int = 0


def batched(items: list[Asked]) -> Iterator[list[Asked]]:
    """Yield the items, `AT_ONCE` at a time."""
    for first in range(0, len(items), AT_ONCE):
        yield items[first : first + AT_ONCE]


def answer_schemas(engine: Engine, seeds: Iterable[int], *, temperature: float = 1.0) -> Tally:
    """Ask for a value of each schema, many at once, and check those that are complete."""
    tally, prepared = Tally(), []
    for seed in seeds:
        schema = random_schema(seed)
        prompt = Chat([ChatMessage("user", f"Write JSON for this schema: {json.dumps(schema)}")])
        request = Request(
            prompt,
            Sampling(temperature=temperature, seed=seed),
            Stopping(max_tokens=MAX_TOKENS),
            constraint=Constraint(json_schema=schema),
            truncate_prompt=400,
        )
        prepared.append((seed, schema, request))
    # Some at a time: a request has a time limit, which counts from its submission.
    answers = (
        answer
        for some in batched(prepared)
        for answer in run(engine, [request for *_, request in some])
    )
    for events, (seed, schema, _) in zip(answers, prepared, strict=True):
        finished = end(events)
        reason = getattr(finished.reason, "value", str(finished.reason))
        tally.reasons[reason] += 1
        tally.num_tokens += finished.usage.output_tokens
        if finished.reason is FinishReason.STOP and not is_valid(text(events), schema):
            tally.wrong.append((seed, text(events)))
    return tally


def is_valid(answer: str, schema: object) -> bool:
    """Return whether a text is a value that the schema describes."""
    try:
        value = json.loads(answer)
    except ValueError:
        return False
    checker = Draft202012Validator.FORMAT_CHECKER
    return Draft202012Validator(schema, format_checker=checker).is_valid(value)
