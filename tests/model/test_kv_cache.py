"""How many blocks there are, and how layers share them."""

import ctypes
import resource
from dataclasses import replace

import pytest
import torch
from chairlift.api.config import EngineConfig
from chairlift.api.errors import ConfigError, ModelError
from chairlift.attention.cpu import CpuBackend
from chairlift.attention.cpu_int8 import Int8CpuBackend
from chairlift.model.config import ModelConfig
from chairlift.model.forward.kv_cache import (
    LayerViews,
    allocate_kv_cache,
    kv_bytes_per_block,
    layer_slots,
    plan_blocks,
    touch_first_blocks,
)

BACKEND = CpuBackend()
GIB = 2**30


@pytest.fixture
def plain(pretrained):
    return ModelConfig.load(pretrained("llama")[1])


@pytest.fixture
def mixed(pretrained):
    return ModelConfig.load(pretrained("qwen3, alternating window, wide heads, biases")[1])


def test_a_block_holds_keys_and_values_of_one_group(plain, mixed):
    floats = 2 * 16 * 2 * 16
    assert kv_bytes_per_block(plain, BACKEND, 16) == 3 * floats * 4
    assert kv_bytes_per_block(mixed, BACKEND, 16) == 2 * 2 * floats * 4


def test_layers_of_a_group_lie_side_by_side_in_its_blocks(plain, mixed):
    assert layer_slots(plain.spec) == (0, 1, 2)
    assert mixed.spec.layer_groups == (0, 1, 0)
    assert layer_slots(mixed.spec) == (0, 0, 1)


def with_other_heads(model, layer, **heads):
    """Return a model of whose layers one has other heads."""
    layers = list(model.spec.layers)
    layers[layer] = replace(layers[layer], attention=replace(layers[layer].attention, **heads))
    return replace(model, spec=replace(model.spec, layers=tuple(layers)))


@pytest.mark.parametrize("backend", [BACKEND, Int8CpuBackend(torch.float32)], ids=["f32", "int8"])
def test_layers_of_different_sizes_lie_side_by_side_in_one_plane(mixed, backend):
    other = with_other_heads(mixed, 1, num_kv_heads=1, head_dim=112)
    small = 2 * backend.head_bytes(16, 32, torch.float32)
    large = backend.head_bytes(16, 112, torch.float32)
    assert small < large < 2 * small
    assert kv_bytes_per_block(other, backend, 16) == 2 * small
    pool = allocate_kv_cache(other, backend, num_blocks=5, block_size=16)
    assert pool.shape[:2] == (1, 5)
    assert pool.nbytes == 5 * 2 * small
    caches = LayerViews(other.spec, backend, torch.float32)(pool, 16)
    assert [cache.shape[:2] for cache in caches] == [(5, 2), (5, 1), (5, 2)]
    # Layers of one group, 0 and 2, fill a block; that of the other group is in other blocks.
    for layer, cache in enumerate(caches):
        cache[3 if layer == 1 else 2] = layer + 1
    values, counts = pool[0, 2].unique(return_counts=True)
    assert (values.tolist(), counts.unique().tolist()) == ([1, 3], [pool.shape[2] // 2])
    assert (pool[0, 3] == 2).sum() * pool.itemsize == large
    assert not pool[0, [0, 1, 4]].any()


@pytest.mark.parametrize("changes", [{}, {"head_dim": 48}], ids=["equal", "different"])
def test_a_layer_that_sees_the_keys_of_another_has_none_of_its_own(plain, changes):
    shared = with_other_heads(with_other_heads(plain, 1, **changes), 2, kv_of=0)
    alone = replace(shared, spec=replace(shared.spec, layers=shared.spec.layers[:2]))
    assert kv_bytes_per_block(shared, BACKEND, 16) == kv_bytes_per_block(alone, BACKEND, 16)
    assert shared.spec.last_kept == 1
    pool = allocate_kv_cache(shared, BACKEND, num_blocks=3, block_size=16)
    first, second, third = LayerViews(shared.spec, BACKEND, torch.float32)(pool, 16)
    first[1], second[1] = 1, 2
    assert torch.equal(third, first)
    assert third.data_ptr() == first.data_ptr()


@pytest.mark.parametrize("changes", [{"kv_of": 2}, {"kv_of": 3}, {"kv_of": -1}, {"kv_of": 1}])
def test_keys_of_a_layer_that_has_none_or_others_are_refused(mixed, changes):
    with pytest.raises(ModelError, match=r"^layers\[2\]\.kv_of: expected a layer before it"):
        with_other_heads(mixed, 2, **changes)
    with pytest.raises(ModelError, match=r"^layers\[2\]\.keys_are_values: expected a norm"):
        with_other_heads(mixed, 2, keys_are_values=True)


def test_the_pool_is_as_large_as_the_setting(plain):
    block = kv_bytes_per_block(plain, BACKEND, 16)
    settings = EngineConfig(kv_cache_memory=10 * block + 1)
    assert plan_blocks(settings, plain, BACKEND) == 10


def test_by_default_every_row_may_grow_to_full_length(plain, mixed):
    settings = EngineConfig(max_num_seqs=4)
    assert plan_blocks(settings, plain, BACKEND, memory=GIB) == 4 * 16 + 1
    assert plan_blocks(settings, mixed, BACKEND, memory=GIB) == 2 * 4 * 16 + 1
    shorter = EngineConfig(max_num_seqs=4, max_model_len=33)
    assert plan_blocks(shorter, plain, BACKEND, memory=GIB) == 4 * 3 + 1


def test_by_default_the_pool_takes_a_quarter_of_the_memory_at_most(plain):
    block = kv_bytes_per_block(plain, BACKEND, 16)
    assert plan_blocks(EngineConfig(), plain, BACKEND, memory=400 * block) == 100


@pytest.mark.parametrize("num_blocks", [0, 1, 2])
def test_a_pool_without_a_block_for_each_group_is_refused(mixed, num_blocks):
    settings = EngineConfig(kv_cache_memory=num_blocks * kv_bytes_per_block(mixed, BACKEND, 16) + 1)
    with pytest.raises(ConfigError, match="kv_cache_memory: expected at least"):
        plan_blocks(settings, mixed, BACKEND)


def test_the_pool_is_zeroed_and_has_the_planned_size(mixed):
    cache = allocate_kv_cache(mixed, BACKEND, num_blocks=5, block_size=16)
    assert cache.nbytes == 5 * kv_bytes_per_block(mixed, BACKEND, 16)
    assert cache.shape[:2] == (2, 5)
    assert cache.dtype == torch.float32
    assert not cache.any()


def share_in_memory(tensor: torch.Tensor) -> float:
    """Of the whole pages of a tensor, those that the system has given (`mincore`)."""
    page = resource.getpagesize()
    first = -(-tensor.data_ptr() // page)
    states = (ctypes.c_ubyte * ((tensor.data_ptr() + tensor.nbytes) // page - first))()
    size = ctypes.c_size_t(len(states) * page)
    assert ctypes.CDLL(None).mincore(ctypes.c_void_p(first * page), size, states) == 0
    return sum(state & 1 for state in states) / len(states)


def test_a_pool_is_in_memory_once_its_first_blocks_are_touched(mixed):
    num_blocks = (64 << 20) // kv_bytes_per_block(mixed, BACKEND, 16)
    cache = allocate_kv_cache(mixed, BACKEND, num_blocks, 16)
    assert share_in_memory(cache) < 0.5
    touch_first_blocks(cache, weight_bytes=16 << 20)
    assert 0.2 < share_in_memory(cache) < 0.5
    touch_first_blocks(cache, weight_bytes=64 << 20)
    assert share_in_memory(cache) == 1
    assert not cache.any()
