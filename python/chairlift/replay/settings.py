"""The settings of a replay: the trace's own, with options in their place."""

from collections.abc import Sequence

from chairlift.api.config import Batching
from chairlift.api.errors import ConfigError
from chairlift.replay.format import Header, Step, StepTime
from chairlift.replay.options import ReplayOptions
from chairlift.replay.step_time import DEFAULT, fit

_AS_THEY_ARE = frozenset(ReplayOptions.model_fields) & frozenset(Header.model_fields)


def settings_of(header: Header, options: ReplayOptions, batching: Batching | None) -> Header:
    """Return the trace's settings with the given options in their place.

    A recorded batch size is reduced to the number of rows. Without `kv_cache_memory` the memory is
    the recorded one, even for blocks of another size.

    Raises:
        ConfigError: The memory does not hold one block.
    """
    given = options.model_dump(exclude_none=True, include=set(_AS_THEY_ARE))
    settings = header.model_copy(update=given | ({"batching": batching} if batching else {}))
    if options.batch_size is None and settings.batch_size is not None:
        size = min(settings.batch_size, settings.max_num_seqs)
        settings = settings.model_copy(update={"batch_size": size})
    per_token = header.kv_bytes_per_block / header.block_size
    block = round(per_token * settings.block_size)
    memory = options.kv_cache_memory or header.num_kv_blocks * header.kv_bytes_per_block
    min_blocks = 1 + len(header.kv_windows)
    if memory < min_blocks * block:
        message = f"kv_cache_memory: expected at least {min_blocks * block} bytes, got {memory}"
        raise ConfigError(message)
    return settings.model_copy(
        update={"num_kv_blocks": memory // block, "kv_bytes_per_block": block}
    )


def step_time_of(header: Header, steps: Sequence[Step], options: ReplayOptions) -> StepTime:
    """Return the model of the step time: fitted to the steps or the header's, with options."""
    base = fit(steps) if any(not s.failed for s in steps) else header.step_time or DEFAULT
    parts = {
        "fixed_s": options.step_fixed_s,
        "per_token_s": options.step_per_token_s,
        "per_context_token_s": options.step_per_context_token_s,
    }
    return base.model_copy(update={name: part for name, part in parts.items() if part is not None})
