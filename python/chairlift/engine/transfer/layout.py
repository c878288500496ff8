"""Which blocks can be moved between processes, and whether two processes have the same.

Blocks are the same where weights, kernels and formats are: a short prompt is computed, and its keys
and values are hashed with the facts of the format.
"""

import hashlib
from typing import Final

import torch
from torch import Tensor

from chairlift import _core
from chairlift.api.config import EngineConfig
from chairlift.api.errors import ConfigError
from chairlift.engine.loading.loaded import LoadedModel
from chairlift.model.config import ModelConfig

PROBE_TOKENS: Final = 64
"""Tokens whose keys and values stand for the model and its numbers."""


def check_model(loaded: LoadedModel, option: str) -> None:
    """Check that the blocks of a model can be moved.

    Args:
        loaded: The model.
        option: The setting that moves blocks, for errors.

    Raises:
        ConfigError: It has windows or recurrent states, runs on a GPU, or is an encoder.
    """
    unsupported_reason = None
    if not isinstance(loaded.config, ModelConfig) or loaded.runner_factory is not None:
        unsupported_reason = "an encoder"
    elif loaded.resolved.accelerator is not None:
        unsupported_reason = "a model on a GPU"
    elif loaded.config.spec.has_state:
        unsupported_reason = "a model with recurrent states"
    elif list(loaded.config.spec.kv_windows) != [None]:
        unsupported_reason = "a model with sliding windows"
    if unsupported_reason is not None:
        message = f"{option}: expected none for {unsupported_reason}"
        raise ConfigError(message)


def probe_prompt(vocab_size: int, max_context_len: int) -> list[int]:
    """Return tokens from the whole vocabulary; their blocks are the print of a model."""
    count = max(1, min(PROBE_TOKENS, max_context_len - 1))
    return [(7919 * place + 17) % vocab_size for place in range(count)]


def pool_bytes(pool: Tensor) -> Tensor:
    """Return a KV pool `[planes, blocks, ...]` as bytes, uint8 `[planes, blocks, width]`."""
    return pool.view(pool.shape[0], pool.shape[1], -1).view(torch.uint8)


def layout_of(config: EngineConfig, loaded: LoadedModel, probed: bytes) -> bytes:
    """Return the layout of an engine's blocks, 32 bytes.

    Args:
        config: Settings of the engine.
        loaded: The model.
        probed: The keys and values of `probe_prompt`, as this process computes them: blocks of
            other weights, or of kernels that give other bits, have another layout.
    """
    pool = pool_bytes(loaded.kv_cache)
    facts = (_core.__version__, config.block_size, tuple(pool[:, 0].shape), loaded.config)
    layout = hashlib.blake2b(repr(facts).encode(), digest_size=32)
    layout.update(probed)
    return layout.digest()
