"""What a driven workload leaves: the times of its requests, and a line for each step."""

import itertools
from dataclasses import dataclass, field
from typing import NamedTuple

from chairlift.api.figures import Run, unwritten_share
from chairlift.core.step_rows import RowWork
from chairlift.engine.step import StepOutput, StepRecord
from chairlift.timeline.builder import StepTimes, StepWork, TimelineBuilder, work_of
from chairlift.timeline.values import Timeline


@dataclass(slots=True)
class DrivenRequest:
    """The times of one request, in seconds after the start."""

    arrival_s: float
    num_prompt: int
    num_padding: int = 0
    """Tokens at the end of the answer that are computed and not counted."""
    num_output: int = 0
    """Tokens of the answer so far."""
    event_times_s: list[float] = field(default_factory=list)
    """Times of the events with tokens."""
    finished_s: float | None = None

    @property
    def ttft_s(self) -> float | None:
        """Time from the arrival to the first token."""
        return self.event_times_s[0] - self.arrival_s if self.event_times_s else None

    @property
    def itl_s(self) -> list[float]:
        """Gaps between the events with tokens."""
        return [after - before for before, after in itertools.pairwise(self.event_times_s)]

    @property
    def tpot_s(self) -> float | None:
        """Time for each token behind the first; None for an answer of fewer than two."""
        if self.finished_s is None or self.num_output < 2:
            return None
        return (self.finished_s - self.event_times_s[0]) / (self.num_output - 1)

    @property
    def latency_s(self) -> float | None:
        """Time from the arrival to the end."""
        return None if self.finished_s is None else self.finished_s - self.arrival_s


class Step(NamedTuple):
    """One step."""

    start_s: float
    """After the first step's start."""
    duration_s: float
    num_rows: int
    num_tokens: int
    is_decode: bool
    """Whether every row computed one token: the last that it had sampled."""
    num_waiting: int
    kv_tokens: int
    """Written, after the step."""
    kv_slots: int
    """Allocated, after the step."""


@dataclass(slots=True)
class Measured:
    """Measurements of a workload."""

    block_size: int
    requests: list[DrivenRequest] = field(default_factory=list)
    seconds: float = 0.0
    steps: list[Step] = field(default_factory=list)
    kv_waste: float = 0.0
    """Sum over the steps."""
    records: list[StepRecord] = field(default_factory=list)
    """Records of the first steps."""
    num_records: int = 0
    """How many of them are kept."""
    num_blocks: int = 0
    """KV blocks of the pool."""
    _first_ns: int | None = None

    def note_step(self, output: StepOutput) -> None:
        """Note a step that ran."""
        record, load = output.record, output.load
        assert record is not None
        if self._first_ns is None:
            self._first_ns = record.started_ns
        self.num_blocks = load.num_blocks
        num_blocks = load.num_blocks - load.num_free_blocks
        self.kv_waste += unwritten_share(load.num_kv_tokens, num_blocks, self.block_size)
        self.steps.append(
            Step(
                start_s=(record.started_ns - self._first_ns) * 1e-9,
                duration_s=record.duration_s,
                num_rows=len(record.num_tokens),
                num_tokens=int(record.num_tokens.sum()),
                is_decode=bool((record.done.work == RowWork.DECODE).all()),
                num_waiting=record.num_waiting,
                kv_tokens=load.num_kv_tokens,
                kv_slots=num_blocks * self.block_size,
            )
        )
        if len(self.records) < self.num_records:
            self.records.append(record)

    def first_steps(self, name: str, num_rows: int) -> Timeline | None:
        """Return what the rows did in the steps whose records were kept; None without any.

        Args:
            name: Name of the timeline.
            num_rows: Rows of the batch.
        """
        if not self.records:
            return None
        builder = TimelineBuilder(name, num_rows, self.num_blocks)
        for record, step in zip(self.records, self.steps, strict=False):
            times = StepTimes(
                record.started_ns,
                round(record.duration_s * 1e9),
                step.num_waiting,
                step.kv_slots // self.block_size,
                tuple(round(part * 1e9) for part in record.times),
            )
            done = record.done
            rows = StepWork(
                record.row_numbers,
                record.request_ids,
                work_of(done.work, done.finished),
                record.num_tokens,
                done.num_accepted,
            )
            builder.add_step(times, rows, done.preempted)
        return builder.build()

    def run(self) -> Run:
        """Return the sums."""
        requests = self.requests
        return Run(
            num_requests=len(requests),
            num_prompt_tokens=sum(request.num_prompt for request in requests),
            num_output_tokens=sum(r.num_output - r.num_padding for r in requests),
            seconds=self.seconds,
            num_steps=len(self.steps),
            num_rows=sum(step.num_rows for step in self.steps),
            num_tokens=sum(step.num_tokens for step in self.steps),
            kv_waste=self.kv_waste,
            ttft_s=[r.ttft_s for r in requests if r.ttft_s is not None],
            tpot_s=[r.tpot_s for r in requests if r.tpot_s is not None],
            itl_s=[gap for request in requests for gap in request.itl_s],
            latency_s=[r.latency_s for r in requests if r.latency_s is not None],
        )
