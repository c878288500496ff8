"""Runs the lines of a job with an engine of its own."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

from chairlift.api import types
from chairlift.api.choices import Batching
from chairlift.api.errors import RequestError
from chairlift.cli.batch.entries import MAX_LIVE_BYTES, Result, Task, body_of
from chairlift.core.events import AnswerBuilder
from chairlift.engine.engine import Engine
from chairlift.engine.prepare.prepared import Prepared
from chairlift.server.convert.messages import from_finished
from chairlift.server.protocols.openai.embeddings import EmbeddingsJob
from chairlift.server.protocols.openai.job import Answer
from chairlift.v1 import generation_pb2 as pb

_NEVER: Final = types.Schedule(queue_timeout_s=float("inf"), time_limit_s=float("inf"))
_QUEUED_BATCHES: Final = 2
"""Batches of requests that wait in the engine's queue, so that no row is free for long."""
_SORTED_BATCHES: Final = 8
"""Static batching: so many batches of requests are put in order of length at a time."""


@dataclass(slots=True, eq=False)
class _Live:
    """A line that has begun."""

    task: Task
    num_left: int
    """Requests without a result."""
    answer: Answer | None
    """The answer of a line that asks for text."""
    vectors: list[tuple[Any, int]]
    ids: set[int] = field(default_factory=set)
    """Ids of its requests in the engine."""
    is_over: bool = False


@dataclass(slots=True, eq=False)
class _Part:
    """One request of a line."""

    live: _Live
    place: int
    prepared: Prepared
    builders: list[AnswerBuilder]

    @property
    def length(self) -> int:
        """Return the tokens that it may have at its end."""
        return len(self.prepared.prompt) + self.prepared.max_tokens


class LocalRunner:
    """Runs tasks with an engine that has no other work."""

    def __init__(self, engine: Engine) -> None:
        """Take an engine."""
        self._engine = engine
        config = engine.config
        self._by_length = config.batching is Batching.STATIC
        self._batch = batch = config.batch_size or config.max_num_seqs
        # Static batches are sorted within a window, which waits whole.
        self._window = _SORTED_BATCHES * batch if self._by_length else 1
        queued = self._window if self._by_length else _QUEUED_BATCHES * batch
        self._max_queued = min(queued, config.max_queued_requests)
        self._waiting: deque[_Part] = deque()
        self._parts: dict[int, _Part] = {}
        self._live_bytes = 0
        self._is_exhausted = False
        self._results: list[tuple[Task, Result]] = []

    def run(self, tasks: Iterator[Task]) -> Iterator[tuple[Task, Result]]:
        """Yield the result of each task as it ends.

        Raises:
            EngineDownError: The model fails for every request.
        """
        engine = self._engine
        while True:
            self._fill(tasks)
            yield from self._take_results()
            if not self._parts and not self._waiting:
                if self._is_exhausted:
                    return
                continue
            output = engine.advance()
            for event in engine.events(output):
                self._on_event(event)
            yield from self._take_results()
            if output.record is None:
                # The queue has all that may wait: a batch that is not full now will not be.
                engine.flush()

    def _take_results(self) -> Iterator[tuple[Task, Result]]:
        results, self._results = self._results, []
        yield from results

    def _fill(self, tasks: Iterator[Task]) -> None:
        """Queue requests while there is room; static batching begins a window at the end of one."""
        num_waiting = self._engine.load().num_waiting
        if self._by_length and num_waiting >= self._batch:
            return
        room = self._max_queued - num_waiting
        while room > 0 and (self._waiting or self._read(tasks)):
            part = self._waiting[0]
            num_answers = part.prepared.num_answers
            # A request that asks for more answers than there can be is refused, not kept waiting.
            if room < num_answers and self._parts:
                return
            self._waiting.popleft()
            room -= num_answers
            self._add(part)

    def _read(self, tasks: Iterator[Task]) -> bool:
        """Prepare the requests of the next tasks; return whether there are any."""
        parts: list[_Part] = []
        # Refused tasks are results too, and have to be taken.
        while len(parts) < self._window and len(self._results) < self._max_queued:
            if self._live_bytes >= MAX_LIVE_BYTES:
                break
            task = next(tasks, None)
            if task is None:
                self._is_exhausted = True
                break
            parts += self._prepare(task)
        if self._by_length:
            parts.sort(key=lambda part: part.length)
        self._waiting.extend(parts)
        return bool(parts)

    def _prepare(self, task: Task) -> list[_Part]:
        """Return the requests of a task; none where one is refused."""
        job = task.job
        requests = [_without_limits(request) for request in task.requests]
        answer = None if isinstance(job, EmbeddingsJob) else job.answer(task.origin)
        live = _Live(task, len(requests), answer, [(None, 0)] * len(requests))
        self._live_bytes += task.size
        parts = []
        try:
            for place, request in enumerate(requests):
                prepared = self._engine.prepare(request)
                builders = [
                    AnswerBuilder(place, prepared.output) for _ in range(prepared.num_answers)
                ]
                parts.append(_Part(live, place, prepared, builders))
        except RequestError as error:
            self._end(live, task.translate(error))
            return []
        return parts

    def _add(self, part: _Part) -> None:
        live = part.live
        if live.is_over:
            return
        try:
            request_id = self._engine.add(part.prepared).request_id
        except RequestError as error:
            self._end(live, live.task.translate(error))
            return
        live.ids.add(request_id)
        self._parts[request_id] = part

    def _on_event(self, event: types.Event) -> None:
        part = self._parts.get(event.request_id)
        if part is None:
            return
        match event:
            case types.Tokens():
                part.builders[event.index].add(event)
            case types.Finished():
                self._on_finished(part, event)
            case types.Failed():
                del self._parts[event.request_id]
                error = RequestError(event.reason, event.message, field=event.field)
                self._end(part.live, part.live.task.translate(error))

    def _on_finished(self, part: _Part, event: types.Finished) -> None:
        live, pooled = part.live, part.prepared.pooled
        if event.last:
            del self._parts[event.request_id]
            live.ids.discard(event.request_id)
        if live.is_over:
            return
        if pooled is not None:
            live.vectors[part.place] = pooled.vector(), pooled.num_tokens
        else:
            self._add_answer(part, event)
        live.num_left -= event.last
        if not live.num_left:
            self._end(live, _body(live))

    def _add_answer(self, part: _Part, event: types.Finished) -> None:
        live, job = part.live, part.live.task.job
        assert live.answer is not None, "a request without a vector has text"
        assert not isinstance(job, EmbeddingsJob), job
        number = part.place * job.num_answers + event.index
        answer = part.builders[event.index].finish(event)
        live.answer.tokens(number, as_tokens(answer))
        live.answer.finished(number, from_finished(event, job.output))

    def _end(self, live: _Live, result: Result) -> None:
        """Note the result of a line; its other requests end without one."""
        if live.is_over:
            return
        live.is_over = True
        self._live_bytes -= live.task.size
        for request_id in live.ids:
            self._engine.abort(request_id)
        self._results.append((live.task, result))


def _without_limits(request: types.Request) -> types.Request:
    return replace(request, schedule=_NEVER)


def _body(live: _Live) -> dict[str, Any]:
    job = live.task.job
    if isinstance(job, EmbeddingsJob):
        return job.answer(live.vectors)
    assert live.answer is not None, job
    return body_of(live.answer)


def as_tokens(answer: types.Answer) -> pb.Tokens:
    """Return an answer as one message, as a server sends it at its end."""
    tokens = pb.Tokens(
        text=answer.text,
        num_tokens=len(answer.token_ids),
        reasoning=answer.reasoning,
        tool_calls=[
            pb.ToolCall(index=n, id=call.id, name=call.name, arguments_json=str(call.arguments))
            for n, call in enumerate(answer.tool_calls)
        ],
    )
    if answer.logprobs is not None:
        candidates = answer.candidates or []
        tokens.token_ids.extend(answer.token_ids)
        tokens.logprobs.logprobs.extend(answer.logprobs)
        tokens.logprobs.num_candidates = len(candidates[0]) if candidates else 0
        for token in candidates:
            tokens.logprobs.candidate_ids.extend(number for number, _ in token)
            tokens.logprobs.candidate_logprobs.extend(logprob for _, logprob in token)
    return tokens
