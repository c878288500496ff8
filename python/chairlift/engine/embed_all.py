"""Vectors and scores of many inputs, with an engine that has nothing else to do."""

from collections.abc import Iterable, Iterator

from chairlift.api.errors import RequestError
from chairlift.api.pooled import Pooled
from chairlift.api.types import Failed, Finished, Request
from chairlift.engine.answer_all import Steps


def pool_all(engine: Steps, requests: Iterable[Request]) -> Iterator[tuple[int, Pooled]]:
    """Run requests to their ends; yield each one's place and result as it ends.

    So many requests as the queue holds are in memory at a time, however many there are.

    Args:
        engine: Without other work.
        requests: Each with `pooling`.

    Raises:
        RequestError: A request is refused or fails; the others are aborted.
        RuntimeError: The engine has other work, whose events would be lost.
    """
    if engine.has_work:
        message = "the engine has requests of its own; step it until has_work is False"
        raise RuntimeError(message)
    live: dict[int, tuple[int, Pooled]] = {}
    incoming = enumerate(requests)
    has_more = True
    try:
        while has_more or live:
            has_more = has_more and _fill_queue(engine, incoming, live)
            engine.flush()
            for event in engine.step():
                if isinstance(event, Finished):
                    yield live.pop(event.request_id)
                elif isinstance(event, Failed):
                    raise RequestError(event.reason, event.message, field=event.field)
    finally:
        if live and not engine.is_down:
            for request_id in live:
                engine.abort(request_id)
            while engine.step() or engine.num_in_flight:
                pass


def _fill_queue(
    engine: Steps, incoming: Iterator[tuple[int, Request]], live: dict[int, tuple[int, Pooled]]
) -> bool:
    """Add requests while the queue has room; return whether there may be more."""
    for _ in range(engine.config.max_queued_requests - engine.load().num_waiting):
        place, request = next(incoming, (0, None))
        if request is None:
            return False
        prepared = engine.prepare(request)
        assert prepared.pooled is not None, "each request asks for a vector or scores"
        live[engine.add(prepared).request_id] = place, prepared.pooled
    return True
