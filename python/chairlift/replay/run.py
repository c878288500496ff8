"""Runs a trace through the real scheduler on a virtual clock: deterministic, without a model.

    arrivals, cancels, flushes ──▶ schedule ──▶ plan ──▶ StepTime moves the clock
                                      ▲                        │
                                      └──── update ◀── synthetic tokens, one per sampling row

Each answer has its recorded length, so that every policy does the same work. Python does a constant
number of array operations per step, whatever the number of rows.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from chairlift import _core
from chairlift.api.config import Batching
from chairlift.api.errors import ConfigError
from chairlift.api.figures import Run, unwritten_share
from chairlift.core.new_request import NewRequest
from chairlift.core.plan import PlanView
from chairlift.core.scheduler import new_scheduler
from chairlift.core.step_rows import StepRows
from chairlift.replay.format import Header, StepTime
from chairlift.replay.plan_rows import PlanRows, Work
from chairlift.replay.reservation import Reserve, ReservedMemory
from chairlift.replay.token_counts import NEVER, TokenCounts
from chairlift.replay.token_ids import VOCAB_SIZE, AnswerTokens, prompt_token_ids
from chairlift.replay.trace import Request, Trace

_NS: Final = 1e-9

# Commands due at the same time go in this order.
_ARRIVAL, _CANCEL, _FLUSH = range(3)

Int64Array = NDArray[np.int64]


class ReplayedStep(NamedTuple):
    """A step that has run; R rows computed tokens."""

    start: int
    """In nanoseconds, as the next one."""
    duration: int
    plan: PlanView
    indices: Int64Array
    """`[R]` the requests of its rows, as indices in the trace."""
    done: StepRows
    preempted: list[int]
    """Requests that lost a row before it, as indices in the trace."""
    num_waiting: int
    """After the step, those that wait for a reservation included."""
    num_used_blocks: int
    """After the step, those that are reserved included."""
    num_kv_tokens: int
    """Written in blocks after the step."""


OnStep = Callable[[ReplayedStep], None]


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of a replay."""

    run: Run
    step_rows: Int64Array
    """`[num_steps]` rows that computed something in each step."""
    step_tokens: Int64Array
    """`[num_steps]` tokens computed in each step."""
    num_prefix_hits: int
    """Blocks of prompts found in the prefix cache."""
    unanswered: dict[str, int]
    """Requests that were refused or failed, by reason, in the order of their reasons."""


def replay(
    trace: Trace,
    settings: Header,
    step_time: StepTime,
    on_step: OnStep | None = None,
    reserve: Reserve = Reserve.NONE,
) -> Replayed:
    """Run a trace; the same arguments give the same result on every machine.

    Args:
        trace: What arrives when, and how long its answers are.
        settings: The scheduler's; the trace's own header, or one that differs from it.
        step_time: Moves the clock.
        on_step: Called after each step.
        reserve: What of the KV memory a request reserves at its start.

    Raises:
        ConfigError: A setting is out of range, or memory is reserved and requests do not join at
            every step.
    """
    return _Replay(trace, settings, step_time, on_step, reserve).run()


def first_tokens_s(trace: Trace, settings: Header, step_time: StepTime) -> NDArray[np.float64]:
    """Return the seconds from the arrival of each request to its first token; NaN for none.

    Raises:
        ConfigError: A setting is out of range.
    """
    replay = _Replay(trace, settings, step_time, None, Reserve.NONE)
    replay.run()
    return replay.first_tokens_s()


def output_lengths(requests: list[Request]) -> list[int]:
    """Return the answer length of each request: the recorded one, or the mean of all recorded."""
    known = [request.num_output for request in requests if request.num_output is not None]
    mean = max(1, round(sum(known) / len(known))) if known else None
    return [
        min(request.max_tokens, request.num_output or mean or request.max_tokens)
        for request in requests
    ]


def scheduler_of(settings: Header) -> _core.Scheduler:
    """Build an idle scheduler that takes any token id and never looks at text.

    Raises:
        ConfigError: A setting is out of range.
    """
    return new_scheduler(
        settings,
        max_model_len=settings.max_model_len,
        vocab_size=VOCAB_SIZE,
        num_blocks=settings.num_kv_blocks,
        kv_windows=settings.kv_windows,
        hash_key=bytes(32),
        token_table=_core.TokenTable([], []),
        state_snapshots=settings.state_snapshots,
    )


class _Replay:
    def __init__(
        self,
        trace: Trace,
        settings: Header,
        step_time: StepTime,
        on_step: OnStep | None,
        reserve: Reserve,
    ) -> None:
        self._on_step = on_step
        self._trace = trace
        self._settings = settings
        self._step_time = step_time
        self._core = scheduler_of(settings)
        self._plan = np.zeros(self._core.plan_capacity, dtype=np.int32)
        self._rows = PlanRows(settings.max_num_seqs)
        self._now = 0
        self._commands = _commands(trace, with_flushes=settings.batching.value == "static")
        # By index in the trace; then the request in each slot of the scheduler.
        count = len(trace.requests)
        self._lengths = output_lengths(trace.requests)
        self._token_counts = TokenCounts(count)
        self._index_of_slot = np.zeros(self._core.num_slots, dtype=np.int64)
        # Indices of the requests that got a token in the last step.
        self._indices = np.zeros(0, dtype=np.int64)
        self._ids: dict[int, int] = {}
        self._index_of_id: dict[int, int] = {}
        self._reserved = _reserved_memory(trace, settings, self._lengths, reserve)
        self._answers = AnswerTokens(trace.requests, trace.tokens_per_name)
        # Sums.
        self._step_rows: list[int] = []
        self._step_tokens: list[int] = []
        self._kv_waste = 0.0
        self._unanswered: Counter[str] = Counter()

    def run(self) -> Replayed:
        commands, place = self._commands, 0
        while True:
            while place < len(commands) and commands[place][0] <= self._now:
                self._execute(*commands[place][1:])
                place += 1
            self._admit()
            step = self._core.schedule(self._now, self._plan)
            if step is not None:
                self._step(step)
                continue
            self._note_ends(self._core.take_events())
            due = [self._core.wake_at] if self._core.wake_at is not None else []
            due += [commands[place][0]] if place < len(commands) else []
            if not due:
                return self._result()
            self._now = max(self._now, min(due))

    def first_tokens_s(self) -> NDArray[np.float64]:
        arrivals = np.array([r.arrival for r in self._trace.requests], dtype=np.int64)
        first = self._token_counts.first_token
        return np.where(first == NEVER, np.nan, (first - arrivals) * _NS)

    def _execute(self, kind: int, index: int) -> None:
        if kind == _ARRIVAL:
            self._arrive(index)
        elif kind == _FLUSH:
            self._core.flush()
        elif index in self._ids:
            self._core.abort(self._now, self._ids[index])
        elif self._reserved is not None and self._reserved.drop(index):
            self._token_counts.ended[index] = self._now

    def _arrive(self, index: int) -> None:
        if self._reserved is None:
            self._add(index, self._now)
        elif not self._reserved.hold(index, self._now):
            self._unanswered["KV_RESERVATION"] += 1

    def _admit(self) -> None:
        """Give the scheduler the requests whose reservations fit."""
        while self._reserved is not None and (held := self._reserved.next()) is not None:
            self._add(held.request, held.arrived)

    def _add(self, index: int, since: int) -> None:
        """Give a request to the scheduler; its time limits count from `since`."""
        request, now = self._trace.requests[index], self._now
        new = NewRequest(
            prompt_token_ids(index, request, self._trace.tokens_per_name),
            max_tokens=self._lengths[index],
            detokenize=False,
            tenant=str(request.tenant),
            cache_read=request.cache_read,
            cache_write=request.cache_write,
            queue_deadline=_after(since, request.queue_timeout),
            first_token_by=_after(since, request.time_to_first_token),
            deadline=_after(since, request.time_limit),
            priority=request.priority,
        )
        try:
            added = self._core.add(now, new)
        except _core.Refused as error:
            self._unanswered[error.reason] += 1
            self._release(index)
            return
        room = self._core.max_context_len - request.num_prompt
        self._token_counts.target[index] = min(self._lengths[index], room)
        self._index_of_slot[added.slots] = index
        self._ids[index] = added.request_id
        self._index_of_id[added.request_id] = index

    def _step(self, step: int) -> None:
        work = self._rows.apply(self._plan)
        if not work.is_repeat:
            self._indices = self._index_of_slot[self._rows.slot[work.sampled_rows]]
        indices, token_counts = self._indices, self._token_counts
        num_output = token_counts.num_output(indices, is_repeat=work.is_repeat)
        tokens = self._answers.at(indices, num_output)
        start = self._now
        self._now += self._step_time.duration(work.num_tokens, work.num_context)
        events = self._core.update(self._now, step, tokens)
        if self._on_step is not None:
            view = PlanView.of(self._plan)
            owners = self._index_of_slot[self._rows.slot[view.rows]]
            done = StepRows.of(self._core)
            lost = [self._index_of_id[request_id] for request_id in done.preempted]
            waiting, used = self._num_waiting(), self._num_used_blocks()
            duration, written = self._now - start, self._core.load().num_kv_tokens
            self._on_step(
                ReplayedStep(start, duration, view, owners, done, lost, waiting, used, written)
            )
        num_complete = token_counts.count(indices, self._now, is_repeat=work.is_repeat)
        if self._reserved is not None or len(events) != len(indices) + num_complete:
            # A request ended otherwise than by the length of its answer.
            self._note_ends(events)
        self._note_step(work)

    def _note_ends(self, events: _core.Events) -> None:
        for event in events:
            match event:
                case _core.FinishedEvent():
                    index = self._index_of_id[event.request_id]
                    self._token_counts.ended[index] = event.account.finished
                    self._release(index)
                case _core.FailedEvent():
                    self._unanswered[event.reason] += 1
                    self._release(self._index_of_id[event.request_id])

    def _release(self, index: int) -> None:
        if self._reserved is not None:
            self._reserved.release(index)

    def _num_waiting(self) -> int:
        held = 0 if self._reserved is None else self._reserved.num_held
        return self._core.load().num_waiting + held

    def _num_used_blocks(self) -> int:
        if self._reserved is not None:
            return self._reserved.num_used_blocks
        load = self._core.load()
        return load.num_blocks - load.num_free_blocks

    def _note_step(self, work: Work) -> None:
        self._step_rows.append(work.num_rows)
        self._step_tokens.append(work.num_tokens)
        num_tokens, used = self._core.load().num_kv_tokens, self._num_used_blocks()
        self._kv_waste += unwritten_share(num_tokens, used, self._settings.block_size)

    def _result(self) -> Replayed:
        requests, token_counts = self._trace.requests, self._token_counts
        arrivals = np.array([r.arrival for r in requests], dtype=np.int64)
        prompts = np.array([r.num_prompt for r in requests], dtype=np.int64)
        num_output_tokens = token_counts.num_output_tokens()
        answered, begun = token_counts.ended != NEVER, token_counts.first_token != NEVER
        last = int(token_counts.ended[answered].max(initial=arrivals.min()))
        run = Run(
            num_requests=int(answered.sum()),
            num_prompt_tokens=int(prompts[answered].sum()),
            num_output_tokens=num_output_tokens,
            seconds=(last - int(arrivals.min())) * _NS,
            num_steps=len(self._step_rows),
            num_rows=sum(self._step_rows),
            num_tokens=sum(self._step_tokens),
            kv_waste=self._kv_waste,
            ttft_s=(token_counts.first_token - arrivals)[begun] * _NS,
            tpot_s=token_counts.times_per_token() * _NS,
            itl_s=token_counts.gaps().astype(np.float64) * _NS,
            latency_s=(token_counts.ended - arrivals)[answered] * _NS,
        )
        return Replayed(
            run=run,
            step_rows=np.array(self._step_rows),
            step_tokens=np.array(self._step_tokens),
            num_prefix_hits=self._core.load().num_prefix_hits,
            unanswered=dict(sorted(self._unanswered.items())),
        )


def _reserved_memory(
    trace: Trace, settings: Header, lengths: list[int], reserve: Reserve
) -> ReservedMemory | None:
    if reserve is Reserve.NONE:
        return None
    if settings.batching is not Batching.CONTINUOUS:
        message = f"reserve: expected continuous batching alone, got {settings.batching.value}"
        raise ConfigError(message)
    num_tokens = [
        reserve.num_tokens(request.num_prompt, length, settings.max_model_len)
        for request, length in zip(trace.requests, lengths, strict=True)
    ]
    # Block 0 is the null block.
    return ReservedMemory(num_tokens, settings.num_kv_blocks - 1, settings.block_size)


def _after(now: int, delay: int | None) -> int | None:
    return None if delay is None else now + delay


def _commands(trace: Trace, *, with_flushes: bool) -> list[tuple[int, int, int]]:
    """Return the commands for the scheduler: time, kind, index of the request.

    A server flushes its scheduler under static batching only.
    """
    commands = [(r.arrival, _ARRIVAL, i) for i, r in enumerate(trace.requests)]
    commands += [
        (r.cancelled, _CANCEL, i) for i, r in enumerate(trace.requests) if r.cancelled is not None
    ]
    commands += [(t, _FLUSH, 0) for t in trace.flushes if with_flushes]
    return sorted(commands)


def recorded_run(trace: Trace) -> Run:
    """Return the figures of the recorded run; the trace must have steps."""
    steps, block_size = trace.steps, trace.header.block_size
    answered = [r for r in trace.requests if r.ended is not None]
    begun = [r for r in trace.requests if r.first_token is not None]
    start = min(r.arrival for r in trace.requests)
    last = max((r.ended for r in answered if r.ended is not None), default=start)
    gaps = [gap for step in steps for gap in step.itl]
    values, counts = np.array(gaps, dtype=np.int64).reshape(-1, 2).T
    return Run(
        num_requests=len(answered),
        num_prompt_tokens=sum(r.num_prompt for r in answered),
        num_output_tokens=sum(r.num_tokens for r in trace.requests),
        seconds=(last - start) * _NS,
        num_steps=len(steps),
        num_rows=sum(step.rows for step in steps),
        num_tokens=sum(step.tokens for step in steps),
        kv_waste=sum(unwritten_share(s.kv_tokens, s.kv_blocks, block_size) for s in steps),
        ttft_s=[((r.first_token or 0) - r.arrival) * _NS for r in begun],
        tpot_s=[
            ((r.ended or 0) - (r.first_token or 0)) / (r.num_tokens - 1) * _NS
            for r in answered
            if r.num_tokens > 1
        ],
        itl_s=np.repeat(values, counts).astype(np.float64) * _NS,
        latency_s=[((r.ended or 0) - r.arrival) * _NS for r in answered],
    )
