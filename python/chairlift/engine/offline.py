"""Answers to many requests at once, with no server."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from chairlift.engine.prepare import Prepared
from chairlift.errors import RequestError
from chairlift.types import Answer, Event, Failed, Finished, Request, Tokens

if TYPE_CHECKING:
    from chairlift.engine.engine import Engine


@dataclass(slots=True)
class _Draft:
    """An answer that grows."""

    place: int
    """Of the request among all."""
    wants_logprobs: bool
    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    def add(self, event: Tokens) -> None:
        self.texts.append(event.text)
        self.token_ids.extend(event.token_ids)
        if event.logprobs is not None:
            self.logprobs.extend(event.logprobs.logprobs)

    def finish(self, event: Finished) -> Answer:
        return Answer(
            text="".join(self.texts),
            token_ids=self.token_ids,
            reason=event.reason,
            usage=event.usage,
            timeline=event.timeline,
            logprobs=self.logprobs if self.wants_logprobs else None,
            index=event.index,
        )


def answer_all(engine: "Engine", requests: Iterable[Request]) -> list[Answer]:
    """Runs requests to their ends; takes the next ones as the queue has room.

    Returns:
        The answers of each request, in their order.

    Raises:
        RequestError: A request is refused or fails; the others are cancelled.
        RuntimeError: The engine has other work, whose events would be lost.
    """
    if engine.has_work:
        message = "the engine has requests of its own; step it until has_work is False"
        raise RuntimeError(message)
    drafts: dict[tuple[int, int], _Draft] = {}
    answers: dict[tuple[int, int], Answer] = {}
    incoming: deque[tuple[int, Request | Prepared]] = deque(enumerate(requests))
    idle_calls = 0
    try:
        while _fill_queue(engine, incoming, drafts):
            output = engine.advance()
            for event in engine.events(output):
                _take(event, drafts, answers)
            idle_calls = idle_calls + 1 if output.record is None else 0
            if idle_calls > 1:
                message = "the scheduler runs nothing although requests wait"
                raise RuntimeError(message)
            if idle_calls:
                # The queue holds all that it can: a batch that is not full now will never be.
                engine.flush()
    finally:
        if drafts and not engine.down:
            for request_id in {request_id for request_id, _ in drafts}:
                engine.cancel(request_id)
            while engine.step() or engine.num_in_flight:
                pass
    return [answers[place] for place in sorted(answers)]


def _fill_queue(
    engine: "Engine",
    incoming: deque[tuple[int, Request | Prepared]],
    drafts: dict[tuple[int, int], _Draft],
) -> bool:
    """Adds requests while the queue has room; gives whether any are live."""
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
            drafts[accepted.request_id, index] = _Draft(place, prepared.output.logprobs)
    return bool(drafts)


def _take(
    event: Event,
    drafts: dict[tuple[int, int], _Draft],
    answers: dict[tuple[int, int], Answer],
) -> None:
    match event:
        case Tokens():
            drafts[event.request_id, event.index].add(event)
        case Finished():
            draft = drafts.pop((event.request_id, event.index))
            answers[draft.place, event.index] = draft.finish(event)
        case Failed():
            for key in [key for key in drafts if key[0] == event.request_id]:
                del drafts[key]
            raise RequestError(
                event.reason, event.message, field=event.field, retry_after_s=event.retry_after_s
            )
