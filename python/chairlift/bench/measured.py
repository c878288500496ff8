"""What a driven workload leaves: its requests, its steps, and the first of their records."""

from dataclasses import dataclass, field

from chairlift.api.figures import Run, unwritten_share
from chairlift.bench.driven_request import DrivenRequest, durations_of
from chairlift.bench.steps import Step
from chairlift.core.step_rows import RowWork
from chairlift.engine.step import StepOutput, StepRecord
from chairlift.timeline.builder import StepTimes, StepWork, TimelineBuilder, work_of
from chairlift.timeline.values import Timeline


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
        requests, durations = self.requests, durations_of(self.requests)
        return Run(
            num_requests=len(requests),
            num_prompt_tokens=sum(request.num_prompt for request in requests),
            num_output_tokens=sum(r.num_output - r.num_padding for r in requests),
            seconds=self.seconds,
            num_steps=len(self.steps),
            num_rows=sum(step.num_rows for step in self.steps),
            num_tokens=sum(step.num_tokens for step in self.steps),
            kv_waste=self.kv_waste,
            ttft_s=durations["ttft"],
            tpot_s=durations["tpot"],
            itl_s=durations["itl"],
            latency_s=durations["latency"],
        )
