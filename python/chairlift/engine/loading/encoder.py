"""Brings an encoder into memory, behind the same scheduler as a decoder.

An encoder needs no KV cache: its blocks are numbers without memory, and there are always enough.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

import torch

from chairlift.api.choices import Device, Dtype, KvCacheDtype
from chairlift.api.config import Batching, Drafts, EngineConfig
from chairlift.api.errors import ConfigError, ModelError
from chairlift.api.pooled import PoolingAbilities
from chairlift.attention.cpu import CpuBackend
from chairlift.engine.loading.devices import ResolvedDevice
from chairlift.engine.loading.loaded import LoadedModel, OnProgress
from chairlift.engine.loading.requirement import Requirement, unmet
from chairlift.engine.pooling.encoder_runner import EncoderRunner
from chairlift.engine.pooling.layers import load_layers
from chairlift.engine.runner.shape import RunnerShape
from chairlift.model.config import ModelConfig
from chairlift.model.encoders.bidirectional import load_encoder_model
from chairlift.model.encoders.modules import POOLINGS
from chairlift.model.encoders.sentence import SentenceConfig, load_sentence_config
from chairlift.model.encoders.spec import EncoderConfig
from chairlift.model.weights.resident import trim_heap
from chairlift.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

ENCODER_DEFAULTS: Final = {
    "batching": Batching.DYNAMIC,
    "batch_window_s": 0.001,
    "max_num_seqs": 128,
    "max_num_batched_tokens": 4096,
}
"""Defaults of encoders, for settings that are not set."""

_FIXED: Final = {"prefix_cache": False, "drafts": Drafts.OFF, "step_budget_s": None}
"""What encoders have none of, whatever the settings say: nothing that a result depends on."""


def encoder_settings(settings: EngineConfig) -> EngineConfig:
    """Return the settings of an encoder: with its defaults.

    Raises:
        ConfigError: A setting asks for what an encoder does not do.
    """
    device, kv_dtype = settings.device, settings.kv_cache_dtype
    dtype, num_adapters = settings.dtype, settings.num_adapter_slots
    num_ranks = settings.tensor_parallel
    of_type, is_float16 = "auto, float32 or bfloat16", dtype is Dtype.FLOAT16
    requirements = [
        Requirement("device", "auto or cpu", device, device is not Device.CUDA),
        Requirement("kv_cache_dtype", "auto", kv_dtype, kv_dtype is KvCacheDtype.AUTO),
        Requirement("dtype", of_type, dtype, not is_float16),
        Requirement("max_adapters", "0", num_adapters, num_adapters == 0),
        Requirement("tensor_parallel", "1", num_ranks, num_ranks == 1),
    ]
    for name in ("draft", "state_snapshots", "draft_quantize"):
        value = getattr(settings, name)
        requirements.append(Requirement(name, "none", value, value is None))
    if (message := unmet(requirements, "with an encoder")) is not None:
        raise ConfigError(message)
    defaults = {n: v for n, v in ENCODER_DEFAULTS.items() if n not in settings.model_fields_set}
    return settings.model_copy(update={**defaults, **_FIXED})


def load_encoder(
    folder: Path,
    config: EncoderConfig | ModelConfig,
    settings: EngineConfig,
    on_progress: OnProgress | None,
) -> LoadedModel:
    """Read an encoder, and what makes vectors of its hidden states.

    Args:
        folder: Folder of the model.
        config: From `load_encoder_config`.
        settings: The engine's settings.
        on_progress: Called with the bytes of weights that are read, and all of them.

    Raises:
        ModelError: The model cannot be loaded.
        ConfigError: A setting does not fit it.
    """
    settings = encoder_settings(settings)
    sentence = load_sentence_config(folder)
    longest = _longest(settings, config, sentence)
    abilities = encoder_abilities(folder, config, sentence, longest)
    tokenizer = Tokenizer.load(folder, generates=False)
    if sentence is not None and sentence.lower_case:
        tokenizer.lower_case()
    if tokenizer.vocab_size > config.spec.vocab_size:
        message = f"{folder}: tokenizer.json has {tokenizer.vocab_size} tokens, config.json fewer"
        raise ModelError(message)
    encoder = load_encoder_model(folder, config, settings.quantize, on_progress)
    layers = load_layers(() if sentence is None else sentence.layers)
    trim_heap()

    def new_runner(_: LoadedModel, shape: RunnerShape, clock: Callable[[], int]) -> EncoderRunner:
        return EncoderRunner(encoder, shape, clock, layers)

    blocks_per_row = -(-(longest + 1) // settings.block_size)
    return LoadedModel(
        config=config,
        tokenizer=tokenizer,
        transformer=encoder,
        kv_cache=torch.empty(0),
        num_blocks=1 + settings.max_num_seqs * blocks_per_row,
        # A request asks for one token, which is not looked at.
        max_model_len=longest + 1,
        resolved=ResolvedDevice(settings, CpuBackend(), None),
        runner_factory=new_runner,
        pooling=abilities,
    )


def _longest(
    settings: EngineConfig, config: EncoderConfig | ModelConfig, sentence: SentenceConfig | None
) -> int:
    """Return the longest input, in tokens."""
    requested, limit = settings.max_model_len, config.max_model_len
    if requested is not None and requested > limit:
        message = f"max_model_len: expected at most the model's {limit}, got {requested}"
        raise ConfigError(message)
    trained = None if sentence is None else sentence.max_length
    return min(limit, requested or trained or limit)


def encoder_abilities(
    folder: Path,
    config: EncoderConfig | ModelConfig,
    sentence: SentenceConfig | None,
    longest: int,
) -> PoolingAbilities:
    """Return what an encoder gives: vectors, or scores if it has a classifier.

    Raises:
        ModelError: Modules behind the pooling do not fit each other.
    """
    classifier, has_token_types = None, False
    if isinstance(config, EncoderConfig):
        classifier, has_token_types = config.spec.classifier, config.spec.num_token_types > 1
    size = config.spec.hidden_size
    if sentence is not None:
        size = sentence.vector_size(folder, size)
    return PoolingAbilities(
        size=size,
        poolings=POOLINGS if classifier is None else (),
        default_pooling="mean" if sentence is None else sentence.pooling.mode,
        pools_prompt=sentence is None or sentence.pooling.include_prompt,
        default_dimensions=None if sentence is None else sentence.dimensions,
        similarity="cosine" if sentence is None else sentence.similarity,
        normalize=True if sentence is None else sentence.normalize,
        max_length=longest,
        prompts=() if sentence is None else tuple(sentence.prompts.items()),
        default_prompt=None if sentence is None else sentence.default_prompt,
        labels=() if classifier is None else classifier.labels,
        is_multi_label=classifier is not None and classifier.is_multi_label,
        has_token_types=has_token_types,
    )
