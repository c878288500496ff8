"""Runs many requests to their ends with an engine that has nothing else to do."""

from collections import deque
from collections.abc import Iterable
from typing import Protocol

from chairlift import _core
from chairlift.api.config import EngineConfig
from chairlift.api.errors import RequestError
from chairlift.api.types import (
    Accepted,
    Answer,
    Event,
    Failed,
    Finished,
    PromptPiece,
    Request,
    Tokens,
)
from chairlift.core.events import AnswerBuilder
from chairlift.engine.prepare.prepared import Prepared
from chairlift.engine.step import StepOutput


class Steps(Protocol):
    """What this needs of an engine."""

    config: EngineConfig

    @property
    def has_work(self) -> bool:
        """Whether a request has not ended."""

    @property
    def is_down(self) -> bool:
        """Whether no step can run."""

    @property
    def num_in_flight(self) -> int:
        """Steps that have not ended."""

    @property
    def is_loading(self) -> bool:
        """Whether a request waits for blocks from disk."""

    def advance(self) -> StepOutput:
        """Run a step."""

    def step(self) -> list[Event]:
        """Run a step and return what happened."""

    def events(self, output: StepOutput) -> list[Event]:
        """Convert the events of a step."""

    def flush(self) -> None:
        """Let the requests that wait run in a partial batch."""

    def load(self) -> _core.Load:
        """Return a snapshot."""

    def prepare(self, request: Request) -> Prepared:
        """Check a request and fill its defaults."""

    def add(self, request: Request | Prepared) -> Accepted:
        """Queue a request."""

    def abort(self, request_id: int) -> bool:
        """End a request."""


def answer_all(engine: Steps, requests: Iterable[Request]) -> list[Answer]:
    """Run requests to their ends; add the next ones as the queue has room.

    Returns:
        The answers of each request, in their order.

    Raises:
        RequestError: A request is refused or fails; the others are aborted.
        RuntimeError: The engine has other work, whose events would be lost.
    """
    if engine.has_work:
        message = "the engine has requests of its own; step it until has_work is False"
        raise RuntimeError(message)
    drafts: dict[tuple[int, int], AnswerBuilder] = {}
    answers: dict[tuple[int, int], Answer] = {}
    incoming: deque[tuple[int, Request | Prepared]] = deque(enumerate(requests))
    idle_calls = 0
    try:
        while _fill_queue(engine, incoming, drafts):
            output = engine.advance()
            for event in engine.events(output):
                _take(event, drafts, answers)
            is_idle = output.record is None and not engine.is_loading
            idle_calls = idle_calls + 1 if is_idle else 0
            if idle_calls > 1:
                message = "the scheduler runs nothing although requests wait"
                raise RuntimeError(message)
            if idle_calls:
                # The queue holds all that it can: a batch that is not full now will never be.
                engine.flush()
    finally:
        if drafts and not engine.is_down:
            for request_id in {request_id for request_id, _ in drafts}:
                engine.abort(request_id)
            while engine.step() or engine.num_in_flight:
                pass
    return [answers[place] for place in sorted(answers)]


def _fill_queue(
    engine: Steps,
    incoming: deque[tuple[int, Request | Prepared]],
    drafts: dict[tuple[int, int], AnswerBuilder],
) -> bool:
    """Add requests while the queue has room; return whether any are live."""
    room = engine.config.max_queued_requests - engine.load().num_waiting
    while incoming:
        place, request = incoming.popleft()
        prepared = request if isinstance(request, Prepared) else engine.prepare(request)
        # A request that asks for more answers than there can be is refused, not kept waiting.
        if room < prepared.num_answers and drafts:
            incoming.appendleft((place, prepared))
            break
        accepted = engine.add(prepared)
        room -= prepared.num_answers
        for index in range(prepared.num_answers):
            drafts[accepted.request_id, index] = AnswerBuilder(place, prepared.output)
    return bool(drafts)


def _take(
    event: Event,
    drafts: dict[tuple[int, int], AnswerBuilder],
    answers: dict[tuple[int, int], Answer],
) -> None:
    match event:
        case PromptPiece():
            # Every answer of a request has its prompt.
            for (request_id, _), draft in drafts.items():
                if request_id == event.request_id:
                    draft.pieces.append(event)
        case Tokens():
            drafts[event.request_id, event.index].add(event)
        case Finished():
            draft = drafts.pop((event.request_id, event.index))
            answers[draft.position, event.index] = draft.finish(event)
        case Failed():
            for key in [key for key in drafts if key[0] == event.request_id]:
                del drafts[key]
            raise RequestError(
                event.reason, event.message, field=event.field, retry_after_s=event.retry_after_s
            )
