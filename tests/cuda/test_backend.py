"""The blocks of the GPU's backend, on an emulated GPU."""

import pytest
import torch
from chairlift.attention.cuda import CudaBackend
from chairlift.attention.cuda_fp8 import Fp8CudaBackend
from chairlift.kernels.cuda.sources import ModelKernels

from tests.cuda.emulated_device import EmulatedDevice

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
    assert torch.equal(as_bytes(cache[1][:, 2]), as_bytes(backend.pack(key, value)))
    unpacked = backend.unpack(cache[1][:, 2], SIZE)
    assert torch.equal(unpacked[0].float(), key.to(stored).float())
    assert torch.equal(unpacked[1].float(), value.to(stored).float())
    cache[1][:, 2] = 0
    assert not as_bytes(cache).any(), "nothing was written elsewhere"
    assert cache[:, :, 0].nbytes == backend.block_bytes(LAYERS, HEADS, SIZE, DIM, torch.bfloat16)


def as_bytes(numbers):
    return numbers.contiguous().view(torch.uint8)


def test_float8_cuts_off_what_it_does_not_hold():
    backend = Fp8CudaBackend(torch.device("cpu"))
    key = torch.full((SIZE, HEADS, DIM), 1000.0)
    keys, values = backend.unpack(backend.pack(key, -key), SIZE)
    assert (keys == 448).all()
    assert (values == -448).all()


def test_blocks_are_copied_in_all_layers():
    device = EmulatedDevice()
    device.load(ModelKernels(torch.bfloat16, torch.bfloat16, DIM))
    backend = CudaBackend(device.device)
    cache = backend.allocate(LAYERS, BLOCKS, HEADS, SIZE, DIM, torch.bfloat16).normal_()
    expected = cache.clone()
    expected[:, :, [4, 1]] = expected[:, :, [3, 2]]
    backend.copy_blocks(cache, cache, torch.tensor([[3, 4], [2, 1]], dtype=torch.int32))
    assert torch.equal(cache, expected)
