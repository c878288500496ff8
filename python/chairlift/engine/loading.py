"""Brings a model into memory: folder, configuration, tokenizer, weights, KV cache."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from chairlift.config import EngineConfig, engine_config
from chairlift.engine.device_runner import Captured
from chairlift.engine.devices import Place, choose_place, compute_dtype
from chairlift.engine.host_pool import HostPool, new_host_pool
from chairlift.errors import ConfigError
from chairlift.kernels.cuda.device import Accelerator
from chairlift.kernels.cuda.sources import ModelKernels
from chairlift.model.config import ModelConfig
from chairlift.model.folder import resolve_model
from chairlift.model.kv_cache import allocate_kv_cache, touch_first_blocks
from chairlift.model.memory_plan import MemoryPlan, plan_memory
from chairlift.model.tokenizer import Tokenizer
from chairlift.model.transformer import Transformer
from chairlift.model.weights import load_weights, trim_heap

logger = logging.getLogger(__name__)

Progress = Callable[[int, int], None]
"""Called with the bytes of weights that are read and the bytes that there are."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """Everything of a model that the engine runs."""

    config: ModelConfig
    tokenizer: Tokenizer
    transformer: Transformer
    kv_cache: Tensor
    num_blocks: int
    """Of the KV cache, the null block included."""
    max_model_len: int
    """Tokens of prompt and answer: the model's, or less where the settings say so."""
    place: Place
    """Where it runs, and the settings as they hold there."""
    on_capture: Captured | None = None
    """Told how far the recording of a GPU's launches is."""
    host_pool: HostPool | None = None
    """For blocks of preempted requests; None is none: they are computed again."""


def load_model(
    model: str | Path,
    settings: EngineConfig,
    on_progress: Progress | None,
    accelerator: Accelerator | None = None,
) -> LoadedModel:
    """Reads a model, and allocates its KV cache and the host memory for blocks of that.

    Args:
        model: `demo`, a local folder, or a Hugging Face id.
        settings: Of the engine.
        on_progress: Told how far the weights are.
        accelerator: What to take for the GPU; None looks for one.

    Raises:
        ModelError: The model cannot be loaded.
        ConfigError: A setting does not fit the model.
    """
    folder = resolve_model(str(model))
    config = ModelConfig.load(folder, settings.dtype)
    max_model_len = settings.max_model_len or config.max_model_len
    if max_model_len > config.max_model_len:
        message = (
            f"max_model_len: expected at most the model's {config.max_model_len},"
            f" got {max_model_len}"
        )
        raise ConfigError(message)
    place = choose_place(settings, config, accelerator)
    settings, backend = place.settings, place.backend
    if place.accelerator is not None:
        config = replace(config, dtype=compute_dtype(settings, config))
        kv_dtype = backend.stored_dtype(config.dtype)
        kernels = ModelKernels(config.dtype, kv_dtype, config.spec.shape.head_dim)
        place.accelerator.load(kernels, _log_kernels)
    plan = plan_at(place, config)
    tokenizer = Tokenizer.load(folder)
    weights = load_weights(
        folder,
        config,
        on_progress,
        settings.quantize,
        kernels=backend.kernels,
        device=place.device,
    )
    trim_heap()
    transformer = Transformer(config, weights, backend)
    kv_cache = allocate_kv_cache(config, backend, plan.num_blocks, settings.block_size)
    if place.accelerator is None:
        touch_first_blocks(kv_cache)
    return LoadedModel(
        *(config, tokenizer, transformer, kv_cache, plan.num_blocks, max_model_len, place),
        on_capture=_log_capture,
        host_pool=new_host_pool(place, config, kv_cache, plan),
    )


def plan_at(place: Place, model: ModelConfig) -> MemoryPlan:
    """Gives the memory plan of a model where it is to run.

    Raises:
        ConfigError: It does not fit.
    """
    plan = _plan(place, model, place.free_bytes)
    plan.check(place.free_bytes)
    return plan


def _plan(place: Place, model: ModelConfig, free_bytes: int | None) -> MemoryPlan:
    is_dedicated = place.accelerator is not None
    return plan_memory(place.settings, model, place.backend, free_bytes, is_dedicated=is_dedicated)


def _log_kernels(done: int, total: int, name: str) -> None:
    logger.info("kernels %d/%d: %s", done, total, name)


def _log_capture(done: int, total: int) -> None:
    logger.info("recorded decode launches %d/%d", done, total)


def replan_memory(
    settings: EngineConfig, model: ModelConfig, free_bytes: int | None = None, **changes: object
) -> tuple[MemoryPlan, int | None]:
    """Says where the bytes of a model would go with some settings changed.

    Args:
        settings: As they are.
        model: Its shape.
        free_bytes: Of a GPU before it had the model; None asks it.
        changes: Settings in the place of those.

    Returns:
        The plan, and the free bytes of the GPU that would run the model; None is the CPU.

    Raises:
        ConfigError: A setting is wrong.
    """
    changed = engine_config(**{**settings.model_dump(exclude_unset=True), **changes})
    place = choose_place(changed, model)
    free = None if place.accelerator is None else free_bytes or place.free_bytes
    return _plan(place, model, free), free
