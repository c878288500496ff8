"""Runs a workload through the synchronous engine and measures it."""

import time
from collections import deque
from collections.abc import Callable, Sequence

from chairlift.api.errors import ChairliftError
from chairlift.api.figures import Run
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
from chairlift.bench.driven_request import DrivenRequest
from chairlift.bench.measured import Measured
from chairlift.bench.workload import Item
from chairlift.engine.engine import Engine
from chairlift.engine.step import StepOutput

HOUR_S = 3600.0


def drive(
    engine: Engine,
    work: Sequence[Item],
    on_end: Callable[[], None] = lambda: None,
    *,
    pooling: Pooling | None = None,
) -> Run:
    """Run all of the work as `measure` does, and return the sums."""
    return measure(engine, work, on_end, pooling=pooling).run()


def measure(
    engine: Engine,
    work: Sequence[Item],
    on_end: Callable[[], None] = lambda: None,
    *,
    pooling: Pooling | None = None,
    concurrency: int | None = None,
    num_records: int = 0,
) -> Measured:
    """Run all of the work; requests are added on arrival, partial batches run after the last one.

    Args:
        engine: An engine without requests.
        work: Requests in the order of arrival.
        on_end: Called when a request has ended.
        pooling: Pooling of all requests; None asks for text.
        concurrency: Requests at a time: one that is due waits until another has ended, and that is
            when it arrives. None is any number.
        num_records: How many step records are kept, from the first on.

    Raises:
        ChairliftError: A request was refused or failed.
    """
    measured = Measured(engine.config.block_size, num_records=num_records)
    requests: dict[int, DrivenRequest] = {}
    num_live, max_live = 0, concurrency or len(work)
    # Tokenizing and checking are not what is measured.
    pending = deque((item, engine.prepare(_request(item, pooling))) for item in work)
    start = time.perf_counter()
    while pending or engine.has_work:
        now = time.perf_counter() - start
        while pending and num_live < max_live and pending[0][0].arrival_s <= now:
            item, prepared = pending.popleft()
            accepted = engine.add(prepared)
            arrival_s = item.arrival_s if concurrency is None else now
            num_prompt = len(item.prompt_token_ids)
            requests[accepted.request_id] = DrivenRequest(arrival_s, num_prompt, item.num_padding)
            num_live += 1
            if not pending:
                engine.flush()
        output = engine.advance()
        num_ended = _note_events(engine, output, requests, time.perf_counter() - start)
        num_live -= num_ended
        for _ in range(num_ended):
            on_end()
        if output.record is not None:
            measured.note_step(output)
        elif pending:
            time.sleep(0.0005)
    measured.seconds = time.perf_counter() - start
    measured.requests = list(requests.values())
    return measured


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
                request = requests[event.request_id]
                request.num_output += len(event.token_ids)
                request.event_times_s.append(now)
            case Finished():
                requests[event.request_id].finished_s = now
                num_ended += 1
            case Failed():
                raise ChairliftError(event.message)
            case Accepted():
                pass
    return num_ended
