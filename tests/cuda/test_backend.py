"""The blocks of the GPU's backend, on an emulated GPU."""

import pytest
import torch
from chairlift.attention.cuda import CudaBackend
from chairlift.kernels.cuda.sources import ModelKernels

from tests.cuda.emulated_device import EmulatedDevice

pytestmark = pytest.mark.timeout(600)
"""The first test compiles the emulation."""

LAYERS, BLOCKS, HEADS, SIZE, DIM = 2, 5, 3, 16, 64


def test_what_is_written_is_where_it_is_packed():
    backend = CudaBackend(torch.device("cpu"))
    cache = backend.allocate(LAYERS, BLOCKS, HEADS, SIZE, DIM, torch.bfloat16)
    key, value = torch.randn(2, SIZE, HEADS, DIM).bfloat16()
    backend.write(cache[1], key, value, torch.arange(2 * SIZE, 3 * SIZE).int(), SIZE)
    assert torch.equal(cache[1][:, 2], backend.pack(key, value))
    unpacked = backend.unpack(cache[1][:, 2], SIZE)
    assert torch.equal(unpacked[0], key)
    assert torch.equal(unpacked[1], value)
    assert cache.count_nonzero() == key.count_nonzero() + value.count_nonzero()
    assert cache[:, :, 0].nbytes == backend.block_bytes(LAYERS, HEADS, SIZE, DIM, torch.bfloat16)


def test_blocks_are_copied_in_all_layers():
    device = EmulatedDevice()
    device.load(ModelKernels(torch.bfloat16, torch.bfloat16, DIM))
    backend = CudaBackend(device.device)
    cache = backend.allocate(LAYERS, BLOCKS, HEADS, SIZE, DIM, torch.bfloat16).normal_()
    expected = cache.clone()
    expected[:, :, [4, 1]] = expected[:, :, [3, 2]]
    backend.copy_blocks(cache, cache, torch.tensor([[3, 4], [2, 1]], dtype=torch.int32))
    assert torch.equal(cache, expected)
