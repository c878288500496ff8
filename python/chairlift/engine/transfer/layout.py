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
from chairlift.engine.transfer.states import StatePieces
from chairlift.model.config import ModelConfig
from chairlift.model.forward.kv_cache import layer_places

PROBE_TOKENS: Final = 64
"""Tokens whose keys and values stand for the model and its numbers."""


def check_model(loaded: LoadedModel, option: str) -> None:
    """Check that the blocks of a model can be moved.

    Args:
        loaded: The model.
        option: The setting that moves blocks, for errors.

    Raises:
        ConfigError: It runs on a GPU, is an encoder, or has recurrent states that are not kept.
    """
    unsupported_reason = None
    if not isinstance(loaded.config, ModelConfig) or loaded.runner_factory is not None:
        unsupported_reason = "an encoder"
    elif loaded.resolved.accelerator is not None:
        unsupported_reason = "a model on a GPU"
    elif loaded.num_state_snapshots == 0:
        unsupported_reason = "a model with recurrent states and no state_snapshots"
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


def block_bytes(pool: Tensor) -> int:
    """Return the bytes of a block of a KV pool `[planes, blocks, ...]`, over all planes."""
    planes, _, width = pool_bytes(pool).shape
    return planes * width


class BlockContents:
    """Copies blocks out of a KV pool: what their layers have written, and zeros behind it.

    A KV group with fewer layers than another leaves the rest of a block as it was, with what a
    request of any tenant has left there.

    Attributes:
        block_bytes: Bytes of a block.
        num_bytes: Bytes that the layers of each KV group write of a block.
    """

    def __init__(self, config: EngineConfig, loaded: LoadedModel) -> None:
        """Copy from the pool of a model, in memory of the CPU."""
        self._pool = pool_bytes(loaded.kv_cache)
        self.block_bytes = block_bytes(loaded.kv_cache)
        config_of_model = loaded.config
        assert isinstance(config_of_model, ModelConfig), "invariant: encoders move no blocks"
        spec, dtype = config_of_model.spec, config_of_model.dtype
        places = layer_places(spec, loaded.resolved.backend, config.block_size, dtype)
        self.num_bytes = [0] * len(spec.kv_windows)
        for group, place in zip(spec.layer_groups, places, strict=True):
            if group is not None and place is not None:
                end = place.first + place.num_bytes
                self.num_bytes[group] = max(self.num_bytes[group], end)

    def of_all(self, uses: _core.BlockUses) -> bytes:
        """Return the bytes of all blocks that were used, one behind the other."""
        groups = enumerate(uses.groups())
        return b"".join(self.of(uses, place, group) for place, group in groups)

    def of(self, uses: _core.BlockUses, place: int, group: int) -> bytes:
        """Return the bytes of one block that was used.

        Args:
            uses: The blocks.
            place: Which of them.
            group: Its KV group.
        """
        data = uses.contents(self._pool, [place])
        num_bytes = self.num_bytes[group]
        return data[:num_bytes].ljust(len(data), b"\0") if num_bytes < len(data) else data


def read_used(config: EngineConfig, loaded: LoadedModel, scheduler: _core.Scheduler) -> bytes:
    """Return what the blocks and states hold that were used since they were taken last."""
    uses = scheduler.take_block_uses()
    used = b"" if uses is None else BlockContents(config, loaded).of_all(uses)
    states = StatePieces.of(loaded, block_bytes(loaded.kv_cache))
    if states is not None:
        for _, snapshot, _ in scheduler.take_state_uses():
            used += b"".join(states.read(snapshot))
    return used


def layout_of(config: EngineConfig, loaded: LoadedModel, probed: bytes) -> bytes:
    """Return the layout of an engine's blocks, 32 bytes.

    Args:
        config: Settings of the engine.
        loaded: The model.
        probed: The keys, values and states of `probe_prompt`, as this process computes them: those
            of other weights, or of kernels that give other bits, have another layout.
    """
    pool = pool_bytes(loaded.kv_cache)
    facts = (_core.__version__, config.block_size, tuple(pool[:, 0].shape), loaded.config)
    layout = hashlib.blake2b(repr(facts).encode(), digest_size=32)
    layout.update(probed)
    return layout.digest()
