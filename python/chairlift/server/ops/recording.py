"""Records what an engine's scheduler does, by a recorder between the two."""

from typing import TYPE_CHECKING

from chairlift.replay.format import Header
from chairlift.replay.recorder import TraceRecorder

if TYPE_CHECKING:
    from chairlift.engine.engine import Engine


def record(engine: "Engine", recorder: TraceRecorder) -> None:
    """Record what an engine does from now on, restarts included.

    The engine may have a thread already, if it is idle: its calls reach the same scheduler,
    recorded or not.

    Args:
        engine: An engine without requests.
        recorder: A new recorder.
    """
    header = header_of(engine)
    engine.stepper.wrap_scheduler(
        lambda scheduler: recorder.record(scheduler, header, engine.clock)
    )


def header_of(engine: "Engine") -> Header:
    """Return the first line of an engine's trace."""
    config = engine.config
    return Header(
        model=engine.model_name,
        batching=config.batching,
        batch_size=config.batch_size,
        batch_window_s=config.batch_window_s,
        batch_timeout_s=config.batch_timeout_s,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        step_budget_s=config.step_budget_s,
        max_model_len=engine.max_model_len,
        max_queued_requests=config.max_queued_requests,
        block_size=config.block_size,
        num_kv_blocks=engine.num_kv_blocks,
        kv_bytes_per_block=engine.runner.kv_cache.nbytes // engine.num_kv_blocks,
        kv_windows=list(engine.model_config.spec.kv_windows),
        prefix_cache=config.prefix_cache,
        state_snapshots=engine.num_state_snapshots,
    )
