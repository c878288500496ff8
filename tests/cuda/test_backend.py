"""The blocks of the GPU's backend, on an emulated GPU."""

from types import SimpleNamespace

import pytest
import torch
from chairlift.attention.backend import Heads, Projections, Rotation
from chairlift.attention.cuda import CudaBackend
from chairlift.attention.cuda_fp8 import Fp8CudaBackend
from chairlift.kernels.cuda.sources import ModelKernels

from tests.attention.blocks import pack, unpack
from tests.cuda.emulated_device import EmulatedDevice
from tests.kernels import reference

pytestmark = pytest.mark.timeout(600)
"""The first test compiles the emulation."""

LAYERS, BLOCKS, HEADS, SIZE, DIM = 2, 5, 3, 16, 64


@pytest.mark.parametrize("backend_class", [CudaBackend, Fp8CudaBackend])
def test_what_is_written_is_where_it_is_packed(backend_class):
    backend = backend_class(torch.device("cpu"))
    cache = backend.allocate(LAYERS, BLOCKS, HEADS, SIZE, DIM, torch.bfloat16)
    key, value = torch.randn(2, SIZE, HEADS, DIM).bfloat16()
    backend.write(cache[1], key, value, torch.arange(2 * SIZE, 3 * SIZE).int(), SIZE)
    stored = cache.dtype
    assert stored == backend.stored_dtype(torch.bfloat16)
    assert torch.equal(as_bytes(cache[1][:, 2]), as_bytes(pack(backend, key, value)))
    unpacked = unpack(backend, cache[1][:, 2], SIZE)
    assert torch.equal(unpacked[0].float(), key.to(stored).float())
    assert torch.equal(unpacked[1].float(), value.to(stored).float())
    cache[1][:, 2] = 0
    assert not as_bytes(cache).any(), "nothing was written elsewhere"
    assert cache[:, :, 0].nbytes == backend.block_bytes(LAYERS, HEADS, SIZE, DIM, torch.bfloat16)


@pytest.mark.parametrize("backend_class", [CudaBackend, Fp8CudaBackend])
def test_layers_of_two_sizes_share_the_blocks_of_a_plane(backend_class):
    device = EmulatedDevice()
    device.load(ModelKernels(torch.bfloat16, torch.bfloat16, (DIM,)))
    backend, sizes = backend_class(device.device), [(HEADS, 64), (1, 96)]
    parts = [backend.block_bytes(1, *(n, SIZE, dim), torch.bfloat16) for n, dim in sizes]
    heads = {part // n for part, (n, _) in zip(parts, sizes, strict=True)}
    block_bytes = backend.mixed_block_bytes(sum(parts), heads)
    assert block_bytes >= sum(parts)
    assert all(block_bytes % head == 0 for head in heads), "kernels count in heads"
    pool = backend.allocate_mixed(BLOCKS, block_bytes, torch.bfloat16)
    assert pool.nbytes == BLOCKS * block_bytes
    firsts = [0, parts[0]]
    layers = [
        backend.layer_of_mixed(pool, *own)
        for own in zip(firsts, parts, [n for n, _ in sizes], strict=True)
    ]
    expected = []
    for layer, (num_heads, dim) in zip(layers, sizes, strict=True):
        assert layer.shape == (2, BLOCKS, num_heads, SIZE, dim)
        numbers = torch.randn(2, 1, num_heads, SIZE, dim).to(layer.dtype)
        layer[:, 2:3] = numbers
        expected.append(as_bytes(numbers))
    backend.copy_blocks(pool, pool, torch.tensor([[2, 4]], dtype=torch.int32))
    for layer, numbers in zip(layers, expected, strict=True):
        for block in (2, 4):
            assert torch.equal(as_bytes(layer[:, block : block + 1]), numbers)
    pool[:, :, [2, 4]] = 0
    assert not as_bytes(pool).any(), "nothing was written elsewhere"


def as_bytes(numbers):
    return numbers.contiguous().view(torch.uint8)


def test_float8_cuts_off_what_it_does_not_hold():
    backend = Fp8CudaBackend(torch.device("cpu"))
    key = torch.full((SIZE, HEADS, DIM), 1000.0)
    cache = backend.allocate(1, 1, HEADS, SIZE, DIM, torch.bfloat16)[0]
    backend.write(cache, key, -key, torch.arange(SIZE).int(), SIZE)
    keys, values = unpack(backend, cache[:, 0], SIZE)
    assert (keys == 448).all()
    assert (values == -448).all()


def test_blocks_are_copied_in_all_layers():
    device = EmulatedDevice()
    device.load(ModelKernels(torch.bfloat16, torch.bfloat16, (DIM,)))
    backend = CudaBackend(device.device)
    cache = backend.allocate(LAYERS, BLOCKS, HEADS, SIZE, DIM, torch.bfloat16).normal_()
    expected = cache.clone()
    expected[:, :, [4, 1]] = expected[:, :, [3, 2]]
    backend.copy_blocks(cache, cache, torch.tensor([[3, 4], [2, 1]], dtype=torch.int32))
    assert torch.equal(cache, expected)


@pytest.mark.parametrize("norms_all", [False, True])
@pytest.mark.parametrize("rotary_dim", [0, 32])
def test_heads_are_normed_rotated_and_written_where_they_lie(norms_all, rotary_dim):
    """With gates before the queries, and norms with and without RoPE."""
    device = EmulatedDevice()
    device.load(ModelKernels(torch.bfloat16, torch.bfloat16, (DIM,)))
    backend, heads = CudaBackend(device.device), Heads(6, HEADS, DIM, has_gate=True)
    draw = torch.Generator().manual_seed(0)
    qkv = torch.randn(4, heads.projected_size, generator=draw).bfloat16()
    projections, before = Projections.of(qkv, heads), Projections.of(qkv.clone(), heads)
    widths = [count * DIM if norms_all else DIM for count in (6, HEADS)]
    norms = [torch.randn(width, generator=draw).bfloat16() for width in widths]
    tables = [torch.randn(9, rotary_dim, generator=draw) for _ in range(2)]
    rotation = Rotation(tables[1], tables[0], False, *norms, eps=1e-5, norm_offset=1.0)
    cache = backend.allocate(1, BLOCKS, HEADS, SIZE, DIM, torch.bfloat16)[0]
    positions, slots = (
        torch.tensor(n, dtype=torch.int32) for n in ([8, 0, 3, 5], [16, 31, 32, 17])
    )
    metadata = SimpleNamespace(positions=positions)
    backend.rotate_and_write(projections, rotation, cache, metadata, slots)

    def expected(part, norm, table):
        wide = part.double()
        shape = wide.flatten(1) if norms_all else wide
        normed = reference.rms_norm(shape, norm.double() + 1, 1e-5).view(wide.shape)
        return reference.rope(normed, positions, table)

    close = {"rtol": 2**-6, "atol": 2**-6}
    query = expected(before.query, norms[0], tables[0])
    torch.testing.assert_close(projections.query.double(), query, **close)
    keys, values = cache[:, slots // SIZE, :, slots % SIZE].transpose(0, 1)
    torch.testing.assert_close(keys.double(), expected(before.key, norms[1], tables[1]), **close)
    assert torch.equal(values, before.value)
    assert torch.equal(projections.gate, before.gate)
