"""What a rank other than 0 loads on its GPU."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from chairlift import _core
from chairlift.attention.cuda import CudaBackend
from chairlift.engine.loading.ranks import Part
from chairlift.engine.ranks.device_gather import DeviceGather
from chairlift.engine.ranks.device_worker import DeviceWorker
from chairlift.engine.runner.device_pass import DevicePass
from chairlift.engine.runner.shape import RunnerShape
from chairlift.model.forward.kv_cache import allocate_kv_cache
from chairlift.model.forward.transformer import Transformer
from chairlift.model.memory.plan import plan_memory
from chairlift.model.parts.recurrent import allocate_state_pool, num_states, state_bytes


def load_device_rank(
    settings: dict[str, Any], group: _core.RankGroup, part: Part, shape: RunnerShape
) -> Callable[[], None]:
    """Load the part of a rank on its GPU; see `load_rank`.

    Args:
        settings: What rank 0 sent.
        group: Meets the other ranks.
        part: The part, on the device of this rank.
        shape: Sizes of rank 0's runner.

    Raises:
        ChairliftError: The part cannot be loaded.
        RuntimeError: The GPU has failed.
    """
    resolved, config, accelerator = part.resolved, part.config, part.resolved.accelerator
    assert accelerator is not None, "of a rank on a GPU"
    assert isinstance(resolved.backend, CudaBackend), "the only backend of an accelerator"
    num_blocks, num_snapshots = settings["num_blocks"], settings["num_snapshots"]
    _check_memory(part, num_blocks, num_snapshots)
    gather = DeviceGather(accelerator, part.scratch)
    transformer = part.transformer(gather, Transformer, None)
    kv_cache = allocate_kv_cache(config, part.backend, num_blocks, shape.block_size)
    state_pool = None
    if config.spec.has_state:
        num_rows = num_states(shape.max_num_seqs) + num_snapshots
        state_pool = allocate_state_pool(config.spec, num_rows, accelerator.device)
    transformer.reserve(shape.max_num_batched_tokens)
    device_pass = DevicePass(
        transformer, resolved.backend, kv_cache, shape, accelerator, state_pool, gather.share_ids
    )
    worker = DeviceWorker(group, device_pass, gather, shape)

    def run() -> None:
        rank, num_ranks, timeout_s = (settings[name] for name in ("rank", "num_ranks", "timeout_s"))
        gather.join(group, rank, num_ranks, timeout_s)
        worker.run()

    return run


def _check_memory(part: Part, num_blocks: int, num_snapshots: int) -> None:
    """Check that the GPU has memory for as many blocks as rank 0 has.

    Raises:
        ConfigError: It has less.
    """
    resolved, spec = part.resolved, part.config.spec
    free_bytes = resolved.free_bytes
    plan = plan_memory(resolved.settings, part.config, part.backend, free_bytes, is_dedicated=True)
    num_rows = num_states(resolved.settings.max_num_seqs) + num_snapshots
    kv_cache_bytes = num_blocks * plan.block_bytes
    states = state_bytes(spec, num_rows)
    replace(plan, kv_cache_bytes=kv_cache_bytes, state_bytes=states).check(free_bytes)
