"""What is asked of the scheduler, from the engine's words to its own."""

from chairlift import _core
from chairlift.engine.prepare import Prepared, PreparedChange
from chairlift.scheduler import nanoseconds
from chairlift.types import RequestState, WaitCause, Waiting


def add_request(scheduler: _core.Scheduler, now: int, prepared: Prepared) -> _core.Added:
    """Queues a request.

    Args:
        scheduler: To take it.
        now: Nanoseconds of the engine's clock.
        prepared: The request.

    Raises:
        Refused: By the scheduler.
    """
    times = prepared.times
    return scheduler.add(
        now,
        prepared.prompt,
        max_tokens=prepared.max_tokens,
        num_answers=prepared.num_answers,
        min_tokens=prepared.min_tokens,
        stop=prepared.stop,
        stop_token_ids=prepared.stop_token_ids,
        include_stop=prepared.include_stop,
        detokenize=prepared.output.text or bool(prepared.stop),
        skip_special_tokens=prepared.output.skip_special_tokens,
        tenant=prepared.tenant,
        salt=prepared.prefix_cache.salt,
        cache_read=prepared.prefix_cache.read,
        cache_write=prepared.prefix_cache.write,
        queue_deadline=_deadline(now, times.queue_timeout_s),
        first_token_by=_deadline(now, times.time_to_first_token_s),
        deadline=_deadline(now, times.time_limit_s),
        credit=prepared.credit,
        priority=times.priority,
    )


def change_request(
    scheduler: _core.Scheduler, now: int, request_id: int, change: PreparedChange
) -> bool:
    """Changes a request in whatever state it is; gives whether it was live.

    Args:
        scheduler: Whose request it is.
        now: Nanoseconds of the engine's clock.
        request_id: From `Accepted`.
        change: Holds from the next step on.
    """
    ending, times = change.ending, change.times
    return scheduler.change(
        now,
        request_id,
        max_tokens=None if ending is None else ending.max_tokens,
        min_tokens=0 if ending is None else ending.min_tokens,
        stop=() if ending is None else ending.stop,
        stop_token_ids=() if ending is None else ending.stop_token_ids,
        include_stop=ending is not None and ending.include_stop,
        priority=None if times is None else times.priority,
        queue_timeout=None if times is None else nanoseconds(times.queue_timeout_s),
        time_to_first_token=None if times is None else nanoseconds(times.time_to_first_token_s),
        time_limit=None if times is None else nanoseconds(times.time_limit_s),
        credit=change.credit,
        credit_is_final=change.credit_is_final,
        paused=change.paused,
    )


def explain_request(scheduler: _core.Scheduler, request_id: int) -> Waiting | None:
    """Tells how a request stands; None if it has ended or never was.

    Args:
        scheduler: Whose request it is.
        request_id: From `Accepted`.
    """
    waiting = scheduler.explain(request_id)
    if waiting is None:
        return None
    return Waiting(
        state=RequestState(waiting.state),
        cause=None if waiting.cause is None else WaitCause(waiting.cause),
        num_before=waiting.num_before,
        num_computed_tokens=waiting.num_computed_tokens,
        num_tokens=waiting.num_tokens,
    )


def _deadline(now: int, after_s: float | None) -> int | None:
    delay = nanoseconds(after_s)
    return None if delay is None else now + delay
