"""What drafts gain: the same requests with them and without, in alternation, on one machine.

Two engines of the same model take turns, so that both see the same state of the machine. Requests
are greedy: their answers are the same either way, which is checked.
"""

import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from chairlift.api.errors import ChairliftError
from chairlift.api.types import Failed, Finished, Request, Sampling, Schedule, Stopping, Tokens
from chairlift.bench.speculation_texts import Workload
from chairlift.core.step_rows import RowWork
from chairlift.engine.engine import Engine
from chairlift.engine.prepare.prepared import Prepared
from chairlift.engine.step import StepRecord

HOUR_S: Final = 3600.0

_RUN: Final = 8
"""Tokens that are looked for earlier in an answer."""
_MAX_REPEATED: Final = 0.2
"""Share of an answer's runs that occur before in it, beyond which it repeats itself."""

Proposer = Callable[[int, int], list[int]]
"""Returns drafts for a request, by its place among the requests and its number of tokens."""


@dataclass(slots=True)
class Counts:
    """What the steps of some requests did."""

    seconds: float = 0.0
    num_tokens: int = 0
    num_draws: int = 0
    """Rows of steps that drew the next token of an answer that had one."""
    num_drafts: int = 0
    num_accepted: int = 0
    answers: list[list[int]] = field(default_factory=list)

    @property
    def tokens_per_s(self) -> float:
        """Output tokens per second."""
        return self.num_tokens / self.seconds

    @property
    def tokens_per_draw(self) -> float:
        """Tokens that a request gains in a step."""
        return 1 + self.num_accepted / max(1, self.num_draws)

    @property
    def acceptance(self) -> float | None:
        """Share of the drafts that were right; None without drafts."""
        return self.num_accepted / self.num_drafts if self.num_drafts else None


class Comparison(NamedTuple):
    """A workload with drafts and without, medians of some pairs of runs."""

    num_requests: int
    with_drafts: Counts
    """Counts of the last pair."""
    tokens_per_s: float
    without_tokens_per_s: float
    gain: float
    """Median over the pairs of the ratio of their speeds."""


def request_of(engine: Engine, workload: Workload, place: int, max_tokens: int) -> Prepared:
    """Return a request of a workload, as a chat where the model has a template."""
    text = workload.prompts[place]
    has_template = engine.tokenizer.has_chat_template
    prompt = [{"role": "user", "content": text}] if has_template else text
    return engine.prepare(
        Request(
            prompt,
            Sampling(temperature=0),
            Stopping(max_tokens=max_tokens),
            schedule=Schedule(queue_timeout_s=HOUR_S, time_limit_s=HOUR_S),
            # A small model's context may hold the end of a prompt alone.
            truncate_prompt=engine.max_context_len - max_tokens,
        )
    )


def run(engine: Engine, requests: Sequence[Prepared], propose: Proposer | None = None) -> Counts:
    """Run requests together and count.

    Raises:
        ChairliftError: A request failed.
    """
    counts = Counts(answers=[[] for _ in requests])
    places: dict[int, int] = {}
    unwatch = engine.watch_steps(lambda record: _count(record, places, counts))
    began = time.perf_counter()
    try:
        for place, request in enumerate(requests):
            places[engine.add(request).request_id] = place
        while engine.has_work:
            if propose is not None:
                for request_id, place in places.items():
                    drafts = propose(place, len(counts.answers[place]))
                    engine.stepper.core.scheduler.draft(request_id, drafts)
            for event in engine.step():
                if isinstance(event, Tokens):
                    counts.answers[places[event.request_id]].extend(event.token_ids)
                elif isinstance(event, Finished):
                    del places[event.request_id]
                elif isinstance(event, Failed):
                    raise ChairliftError(event.message)
    finally:
        unwatch()
    counts.seconds = time.perf_counter() - began
    counts.num_tokens = sum(map(len, counts.answers))
    return counts


def _count(record: StepRecord, places: dict[int, int], counts: Counts) -> None:
    done = record.done
    columns = (record.request_ids, record.sampled, done.work, done.num_drafts, done.num_accepted)
    for request_id, sampled, work, num_drafts, num_accepted in zip(
        *(column.tolist() for column in columns), strict=True
    ):
        # A prompt, or one that is computed again after a preemption, has tokens and no drafts.
        if request_id in places and sampled and work != RowWork.PREFILL:
            counts.num_draws += 1
            counts.num_drafts += num_drafts
            counts.num_accepted += num_accepted


def repeats_itself(answer: Sequence[int]) -> bool:
    """Return whether an answer holds much of itself twice: a loop is easy to draft."""
    runs = list(zip(*(answer[i:] for i in range(_RUN)), strict=False))
    if not runs:
        return False
    seen: set[tuple[int, ...]] = set()
    repeated = 0
    for tokens in runs:
        repeated += tokens in seen
        seen.add(tokens)
    return repeated > _MAX_REPEATED * len(runs)


def compare(
    plain: Engine,
    drafting: Engine,
    requests: Sequence[Prepared],
    *,
    batch: int,
    pairs: int,
    tick: Callable[[], None],
    propose: Proposer | None = None,
) -> Comparison:
    """Measure requests with drafts and without, `batch` of them at a time.

    Raises:
        ChairliftError: A request failed, or an answer is not the same.
    """
    sides = {"plain": (plain, None), "drafting": (drafting, propose)}
    speeds: dict[str, list[float]] = {name: [] for name in sides}
    last: dict[str, Counts] = {}
    for pair in range(pairs):
        order = list(sides) if pair % 2 == 0 else list(reversed(sides))
        for name in order:
            engine, proposer = sides[name]
            last[name] = _run_in_batches(engine, requests, batch, proposer)
            speeds[name].append(last[name].tokens_per_s)
            tick()
        if last["plain"].answers != last["drafting"].answers:
            message = "an answer with drafts differs from the one without"
            raise ChairliftError(message)
    ratios = [b / a for a, b in zip(speeds["plain"], speeds["drafting"], strict=True)]
    return Comparison(
        len(requests),
        last["drafting"],
        statistics.median(speeds["drafting"]),
        statistics.median(speeds["plain"]),
        statistics.median(ratios),
    )


def _run_in_batches(
    engine: Engine, requests: Sequence[Prepared], batch: int, propose: Proposer | None
) -> Counts:
    total = Counts()
    for start in range(0, len(requests), batch):
        part = requests[start : start + batch]
        shifted = None if propose is None else _shifted(propose, start)
        counts = run(engine, part, shifted)
        total.seconds += counts.seconds
        total.num_tokens += counts.num_tokens
        total.num_draws += counts.num_draws
        total.num_drafts += counts.num_drafts
        total.num_accepted += counts.num_accepted
        total.answers += counts.answers
    return total


def _shifted(propose: Proposer, start: int) -> Proposer:
    return lambda place, num_tokens: propose(start + place, num_tokens)


def proposer(answers: Sequence[Sequence[int]], num_drafts: int, share: float) -> Proposer:
    """Return a proposer of which a share of the drafts is right, each by itself.

    Args:
        answers: What the requests answer.
        num_drafts: Drafts that it proposes for each step.
        share: From 0 to 1.
    """
    draw = random.Random(1)
    right = [[draw.random() < share for _ in answer] for answer in answers]

    def propose(place: int, num_tokens: int) -> list[int]:
        answer = answers[place]
        end = min(len(answer), num_tokens + num_drafts)
        # Any other token is wrong.
        return [
            answer[i] if right[place][i] else (answer[i] + 1) % 1000 for i in range(num_tokens, end)
        ]

    return propose
