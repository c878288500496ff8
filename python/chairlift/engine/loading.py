"""Brings a model into memory: folder, configuration, tokenizer, weights, KV cache."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from chairlift.attention.cpu import CpuBackend
from chairlift.config import EngineConfig, engine_config
from chairlift.errors import ConfigError
from chairlift.model.config import ModelConfig, resolve_model
from chairlift.model.kv_cache import allocate_kv_cache
from chairlift.model.memory_plan import MemoryPlan, plan_memory
from chairlift.model.tokenizer import Tokenizer
from chairlift.model.transformer import Transformer
from chairlift.model.weights import load_weights, trim_heap

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


def load_model(
    model: str | Path, settings: EngineConfig, on_progress: Progress | None
) -> LoadedModel:
    """Reads a model and allocates its KV cache.

    Args:
        model: `demo`, a local folder, or a Hugging Face id.
        settings: Of the engine.
        on_progress: Told how far the weights are.

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
    backend = CpuBackend()
    plan = plan_memory(settings, config, backend)
    plan.check()
    num_blocks = plan.num_blocks
    tokenizer = Tokenizer.load(folder)
    weights = load_weights(folder, config, on_progress, settings.quantize)
    trim_heap()
    transformer = Transformer(config, weights, backend)
    kv_cache = allocate_kv_cache(config, backend, num_blocks, settings.block_size)
    return LoadedModel(config, tokenizer, transformer, kv_cache, num_blocks, max_model_len)


def replan_memory(settings: EngineConfig, model: ModelConfig, **changes: object) -> MemoryPlan:
    """Says where the bytes of a model would go with some settings changed.

    Raises:
        ConfigError: A setting is wrong.
    """
    return plan_memory(engine_config(**{**settings.model_dump(), **changes}), model, CpuBackend())
