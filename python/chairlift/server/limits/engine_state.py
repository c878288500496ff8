"""Reads the load of the engine for the limits of the server."""

from chairlift import _core
from chairlift.api.config import Batching
from chairlift.server.limits.gate import Gate
from chairlift.server.limits.shares import Capacity


def load_of(gate: Gate) -> _core.Load | None:
    """Return a snapshot of the engine; None while the model is loading."""
    engine = gate.loaded
    return None if engine is None else engine.load()


def queue_capacity(gate: Gate, num_live: int) -> Capacity:
    """Return the capacity of the queue.

    Args:
        gate: A gate that has an engine.
        num_live: Live sequences that the server knows of.
    """
    engine = gate.engine()
    total = engine.config.max_queued_requests
    # The engine's own number is too small for a moment while a step is planned.
    num_waiting = max(engine.num_waiting, num_live - engine.load().num_running)
    return Capacity(total, total - num_waiting, max_running=engine.config.max_num_seqs)


def num_without_row(gate: Gate) -> int:
    """Return how many waiting requests find no free row."""
    engine = gate.engine()
    load = engine.load()
    # Suspended requests do not wait for a row, and give theirs away.
    num_free_rows = engine.config.max_num_seqs - load.num_running + load.num_running_suspended
    return max(0, engine.num_waiting - load.num_waiting_suspended - num_free_rows)


def end_batch(gate: Gate) -> None:
    """Let the requests that wait run in a partial batch."""
    # Continuous batching waits for no request, and a trace of it can be replayed as static.
    engine = gate.engine()
    if engine.config.batching is not Batching.DYNAMIC:
        engine.flush()
