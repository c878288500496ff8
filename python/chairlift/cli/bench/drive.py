"""Runs a workload through the synchronous engine and measures it."""

import itertools
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from chairlift.api.errors import ChairliftError
from chairlift.api.figures import Run, unwritten_share
from chairlift.api.types import (
    Accepted,
    Failed,
    Finished,
    Pooling,
    Request,
    Sampling,
    Schedule,
    Stopping,
    Tokens,
)
from chairlift.cli.bench.workload import Item
from chairlift.engine.engine import Engine
from chairlift.engine.step import StepOutput

HOUR_S = 3600.0


@dataclass(slots=True)
class DrivenRequest:
    """The times of one request, in seconds after the start."""

    arrival_s: float
    token_times_s: list[float] = field(default_factory=list)
    """Times of the tokens, one entry per token."""
    finished_s: float | None = None


@dataclass(slots=True)
class Log:
    """Measurements of a workload while it runs; see `Run` for the sums."""

    requests: list[DrivenRequest] = field(default_factory=list)
    seconds: float = 0.0
    num_steps: int = 0
    num_rows: int = 0
    num_tokens: int = 0
    kv_waste: float = 0.0

    def run(self) -> Run:
        """Return the sums."""
        requests = self.requests
        return Run(
            num_requests=len(requests),
            num_output_tokens=sum(len(request.token_times_s) for request in requests),
            seconds=self.seconds,
            num_steps=self.num_steps,
            num_rows=self.num_rows,
            num_tokens=self.num_tokens,
            kv_waste=self.kv_waste,
            ttft_s=[c.token_times_s[0] - c.arrival_s for c in requests if c.token_times_s],
            itl_s=[
                after - before
                for request in requests
                for before, after in itertools.pairwise(request.token_times_s)
            ],
            latency_s=[c.finished_s - c.arrival_s for c in requests if c.finished_s is not None],
        )


def drive(
    engine: Engine,
    work: Sequence[Item],
    on_end: Callable[[], None] = lambda: None,
    *,
    pooling: Pooling | None = None,
) -> Run:
    """Run all of the work; requests are added on arrival, partial batches run after the last one.

    Args:
        engine: An engine without requests.
        work: Requests in the order of arrival.
        on_end: Called when a request has ended.
        pooling: Of all requests; None asks for text.

    Raises:
        ChairliftError: A request was refused or failed.
    """
    log = Log()
    requests: dict[int, DrivenRequest] = {}
    # Tokenizing and checking are not what is measured.
    pending = deque((item, engine.prepare(_request(item, pooling))) for item in work)
    start = time.perf_counter()
    while pending or engine.has_work:
        now = time.perf_counter() - start
        while pending and pending[0][0].arrival_s <= now:
            item, prepared = pending.popleft()
            accepted = engine.add(prepared)
            requests[accepted.request_id] = DrivenRequest(item.arrival_s)
            if not pending:
                engine.flush()
        output = engine.advance()
        for _ in range(_note_events(engine, output, requests, time.perf_counter() - start)):
            on_end()
        if output.record is not None:
            _note_step(log, output, engine.config.block_size)
        elif pending:
            time.sleep(0.0005)
    log.seconds = time.perf_counter() - start
    log.requests = list(requests.values())
    return log.run()


def warm_up(engine: Engine) -> None:
    """Run a short request, so that no first-time cost is measured."""
    drive(engine, [Item([0] * 8, 8)])


def _request(item: Item, pooling: Pooling | None) -> Request:
    return Request(
        list(item.prompt_token_ids),
        Sampling(temperature=0),
        Stopping(max_tokens=item.max_tokens, ignore_eos=True),
        schedule=Schedule(queue_timeout_s=HOUR_S, time_limit_s=HOUR_S),
        pooling=pooling,
    )


def _note_events(
    engine: Engine, output: StepOutput, requests: dict[int, DrivenRequest], now: float
) -> int:
    """Note the times of events; return how many requests ended."""
    num_ended = 0
    for event in engine.events(output):
        match event:
            case Tokens():
                requests[event.request_id].token_times_s += [now] * len(event.token_ids)
            case Finished():
                requests[event.request_id].finished_s = now
                num_ended += 1
            case Failed():
                raise ChairliftError(event.message)
            case Accepted():
                pass
    return num_ended


def _note_step(log: Log, output: StepOutput, block_size: int) -> None:
    assert output.record is not None
    log.num_steps += 1
    log.num_rows += len(output.record.num_tokens)
    log.num_tokens += int(output.record.num_tokens.sum())
    load = output.load
    log.kv_waste += unwritten_share(
        load.num_kv_tokens, load.num_blocks - load.num_free_blocks, block_size
    )
