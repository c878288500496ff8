"""The memory of keys and values: its size, and the pool that holds them.

The pool is an array of blocks of one size. A block holds `block_size` tokens for the layers of one
KV group; groups (layers that share a window) draw from the same pool, so a block has room for the
largest group. Where all layers are of one size, the pool has a plane of all blocks for each layer
of that group, and layer `l` of the model has plane `layer_slots(spec)[l]`. Where heads differ in
size or number, there is one plane, in whose blocks the layers of a group lie side by side: a block
is as large as the largest group, and no layer has room for the heads of another.
"""

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from chairlift.api.errors import ConfigError
from chairlift.api.machine import memory_limit
from chairlift.attention.backend import AttentionBackend
from chairlift.model.config import ModelConfig
from chairlift.model.specs.model_spec import ModelSpec

if TYPE_CHECKING:
    from chairlift.api.config import EngineConfig

MEMORY_FRACTION = 0.25
"""The share of the memory this process may use that the cache takes without `kv_cache_memory`."""
TOUCHED_BYTES = 256 << 20
"""At most of a CPU's KV cache, written at load: a first touch of a page, which a virtual
machine may have to ask its host for, takes longer than computing what goes there. These blocks are
the first in use; touching more costs memory that a small server never needs."""
MAX_BLOCKS = 2**27 - 1
"""Blocks of a pool, at most: the slot of each of their 16 tokens is an int32."""


def layer_slots(spec: ModelSpec) -> tuple[int, ...]:
    """Return the index of each layer inside the blocks of its group, or among those without one."""
    seen: Counter[int | None] = Counter()
    slots: list[int] = []
    for layer, group in zip(spec.layers, spec.layer_groups, strict=True):
        attention = layer.attention
        if attention is not None and attention.kv_of is not None:
            slots.append(slots[attention.kv_of])
            continue
        slots.append(seen[group])
        seen[group] += 1
    return tuple(slots)


class LayerPlace(NamedTuple):
    """Where the keys and values of a layer are inside a block."""

    first: int
    """Bytes of other layers before them."""
    num_bytes: int
    num_kv_heads: int


def layer_places(
    spec: ModelSpec, backend: AttentionBackend, block_size: int, dtype: torch.dtype
) -> tuple[LayerPlace | None, ...]:
    """Return the place of each layer in the blocks of its group; None for one without keys."""
    taken: Counter[int] = Counter()
    places: list[LayerPlace | None] = []
    for layer, group in zip(spec.layers, spec.layer_groups, strict=True):
        attention = layer.attention
        if attention is None or group is None:
            places.append(None)
            continue
        if attention.kv_of is not None:
            places.append(places[attention.kv_of])
            continue
        num_bytes = backend.block_bytes(
            1, attention.num_kv_heads, block_size, attention.head_dim, dtype
        )
        places.append(LayerPlace(taken[group], num_bytes, attention.num_kv_heads))
        taken[group] += num_bytes
    return tuple(places)


def is_mixed(spec: ModelSpec) -> bool:
    """Return whether keys and values take different sizes in different layers."""
    return len({(attention.num_kv_heads, attention.head_dim) for attention in spec.attentions}) > 1


class LayerViews:
    """Finds the keys and values of each layer in a pool of `allocate_kv_cache`."""

    def __init__(self, spec: ModelSpec, backend: AttentionBackend, dtype: torch.dtype) -> None:
        """Take what decides the places: the layers, and the dtype of the model."""
        self._model = spec, backend, dtype
        self._is_mixed = is_mixed(spec)
        slots = zip(spec.layer_groups, layer_slots(spec), strict=True)
        self._slots = tuple(None if group is None else slot for group, slot in slots)

    def __call__(self, pool: Tensor, block_size: int) -> tuple[Tensor | None, ...]:
        """Return a view for each layer; None for one without keys."""
        if not self._is_mixed:
            planes = pool.unbind()
            return tuple(None if slot is None else planes[slot] for slot in self._slots)
        spec, backend, dtype = self._model
        places = layer_places(spec, backend, block_size, dtype)
        return tuple(
            None if place is None else backend.layer_of_mixed(pool, *place) for place in places
        )


def kv_bytes_per_block(model: ModelConfig, backend: AttentionBackend, block_size: int) -> int:
    """Return the bytes of one block, all its layers included."""
    found = layer_places(model.spec, backend, block_size, model.dtype)
    places = [place for place in found if place is not None]
    num_bytes = max(place.first + place.num_bytes for place in places)
    if not is_mixed(model.spec):
        return num_bytes
    return backend.mixed_block_bytes(
        num_bytes, {place.num_bytes // place.num_kv_heads for place in places}
    )


def max_blocks_per_row(settings: "EngineConfig", model: ModelConfig) -> int:
    """Return the blocks of the longest sequence in one group."""
    max_len = min(settings.max_model_len or model.max_model_len, model.max_model_len)
    return -(-max_len // settings.block_size)


def max_blocks_held(settings: "EngineConfig", model: ModelConfig) -> int:
    """Return the blocks that one sequence can hold at a time, over all groups.

    A group with a window frees blocks that no later token sees: it holds what the first token of a
    step sees and what two steps write (`Config::most_columns` of the core).
    """
    longest, block_size = max_blocks_per_row(settings, model), settings.block_size
    written = 2 * settings.max_num_batched_tokens

    def held(window: int | None) -> int:
        if window is None:
            return longest
        return min(longest, (window - 1 + written + block_size - 2) // block_size + 1)

    return sum(map(held, model.spec.kv_windows))


def plan_blocks(
    settings: "EngineConfig",
    model: ModelConfig,
    backend: AttentionBackend,
    memory: int | None = None,
    fraction: float = MEMORY_FRACTION,
) -> int:
    """Return the number of blocks of the pool, the null block included.

    Without `kv_cache_memory` the pool has the blocks of `max_num_seqs` sequences of full length, or
    those that fit into a fraction of the memory.

    Args:
        settings: The engine's.
        model: The model's.
        backend: Knows the size of a block.
        memory: Bytes this process may use; None asks the system.
        fraction: The share of that memory that the cache may take.

    Raises:
        ConfigError: The memory does not hold one block per group beside the null block, or more
            blocks than can be named.
    """
    block = kv_bytes_per_block(model, backend, settings.block_size)
    num_groups, num_ranks = len(model.spec.kv_windows), settings.num_local_ranks
    if settings.kv_cache_memory is not None:
        budget = settings.kv_cache_memory // num_ranks
        num_blocks = budget // block
    else:
        limit = memory_limit() // num_ranks if memory is None else memory
        budget = int(limit * fraction)
        useful = settings.max_num_seqs * max_blocks_held(settings, model) + 1
        num_blocks = min(useful, budget // block)
    return _checked("kv_cache_memory", num_blocks, num_groups + 1, block, budget)


def plan_host_blocks(
    settings: "EngineConfig", model: ModelConfig, backend: AttentionBackend
) -> int:
    """Return the number of blocks of the host's pool; 0 without `swap_memory`.

    Raises:
        ConfigError: The memory does not hold one, or more than can be named.
    """
    if settings.swap_memory is None:
        return 0
    block = kv_bytes_per_block(model, backend, settings.block_size)
    return _checked("swap_memory", settings.swap_memory // block, 1, block, settings.swap_memory)


def _checked(field: str, num_blocks: int, min_blocks: int, block: int, num_bytes: int) -> int:
    """Return the number of blocks; raise ConfigError if the bytes are for too few, or too many."""
    if num_blocks < min_blocks:
        message = f"{field}: expected at least {min_blocks * block} bytes, got {num_bytes}"
        raise ConfigError(message)
    if num_blocks > MAX_BLOCKS:
        message = f"{field}: expected at most {MAX_BLOCKS * block} bytes, got {num_bytes}"
        raise ConfigError(message)
    return num_blocks


def allocate_kv_cache(
    model: ModelConfig, backend: AttentionBackend, num_blocks: int, block_size: int
) -> Tensor:
    """Allocate the pool `[planes, num_blocks, ...]`, zeroed."""
    block_bytes = kv_bytes_per_block(model, backend, block_size)
    if is_mixed(model.spec):
        return backend.allocate_mixed(num_blocks, block_bytes, model.dtype)
    shape = model.spec.shape
    layer = shape.num_kv_heads, block_size, shape.head_dim, model.dtype
    num_planes = block_bytes // backend.block_bytes(1, *layer)
    return backend.allocate(num_planes, num_blocks, *layer)


def touch_first_blocks(pool: Tensor, weight_bytes: int) -> None:
    """Write zeros to the first blocks of a pool `[planes, num_blocks, ...]`.

    Args:
        pool: The pool of keys and values, of any shape.
        weight_bytes: Bytes of the weights. So many bytes are written, at most `TOUCHED_BYTES`: the
            server of a small model stays small.
    """
    touched = min(weight_bytes, TOUCHED_BYTES)
    pool[:, : touched * pool.shape[1] // pool.nbytes].zero_()
