"""The settings of a replay: the trace's own, with options in their place."""

from collections.abc import Sequence

from chairlift.api.config import Batching
from chairlift.api.errors import ConfigError
from chairlift.replay.device_models import DEVICE_MODELS, DeviceName
from chairlift.replay.format import Header, Step, StepTime
from chairlift.replay.options import ReplayOptions
from chairlift.replay.reservation import Reserve
from chairlift.replay.step_time import DEFAULT, fit

_AS_THEY_ARE = frozenset(ReplayOptions.model_fields) & frozenset(Header.model_fields)


def settings_of(header: Header, options: ReplayOptions, batching: Batching | None) -> Header:
    """Return the trace's settings with the given options in their place.

    With a reservation there is no prefix cache. A recorded batch size is reduced to the number of
    rows. Without `kv_cache_memory` the memory is the recorded one, even for blocks of another size,
    or that of the device model.

    Raises:
        ConfigError: The memory does not hold one block, or two settings contradict each other.
    """
    given = options.model_dump(exclude_none=True, include=set(_AS_THEY_ARE))
    settings = header.model_copy(update=given | ({"batching": batching} if batching else {}))
    if options.batch_size is None and settings.batch_size is not None:
        size = min(settings.batch_size, settings.max_num_seqs)
        settings = settings.model_copy(update={"batch_size": size})
    if options.reserve not in {None, Reserve.NONE}:
        if options.prefix_cache:
            message = (
                "prefix_cache: expected none with --reserve: it holds blocks of ended requests"
            )
            raise ConfigError(message)
        settings = settings.model_copy(update={"prefix_cache": False})
    if options.device_model is not None:
        header = _on_device(header, options.device_model)
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


def _on_device(header: Header, name: DeviceName) -> Header:
    """Return a header with the KV memory of a device."""
    device = DEVICE_MODELS[name]
    block = device.kv_bytes_per_token * header.block_size
    memory = {"kv_bytes_per_block": block, "num_kv_blocks": device.kv_memory // block}
    return header.model_copy(update=memory)


def step_time_of(header: Header, steps: Sequence[Step], options: ReplayOptions) -> StepTime:
    """Return the model of the step time: a device's, fitted, or the header's; with options."""
    if options.device_model is not None:
        base = DEVICE_MODELS[options.device_model].step_time
    elif any(not step.failed for step in steps):
        base = fit(steps)
    else:
        base = header.step_time or DEFAULT
    parts = {
        "fixed_s": options.step_fixed_s,
        "per_token_s": options.step_per_token_s,
        "per_context_token_s": options.step_per_context_token_s,
    }
    return base.model_copy(update={name: part for name, part in parts.items() if part is not None})
