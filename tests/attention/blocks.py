"""Where each backend keeps the keys and values of a block."""

from functools import singledispatch

import torch
from chairlift.attention.cpu import CpuBackend
from chairlift.attention.cpu_int8 import SCALE_BYTES, Int8CpuBackend
from chairlift.attention.cuda import CudaBackend
from chairlift.attention.cuda_fp8 import Fp8CudaBackend
from torch import Tensor

from tests.attention.reference import ReferenceBackend
from tests.kernels.reference import quantize_rows, rotated_head


@singledispatch
def pack(backend, key: Tensor, value: Tensor) -> Tensor:
    """Lay out a block of `key` and `value` `[block_size, num_kv_heads, head_dim]`."""
    raise NotImplementedError(backend)


@singledispatch
def unpack(backend, block: Tensor, block_size: int) -> tuple[Tensor, Tensor]:
    """Return the `[block_size, num_kv_heads, head_dim]` that `pack` laid out."""
    raise NotImplementedError(backend)


@pack.register
def _(_: CpuBackend, key, value):
    pair = pair_size(key.dtype)
    tokens, heads, head_dim = key.shape
    # [tokens, heads, head_dim] -> [heads, head_dim / pair, tokens, pair]
    keys = key.permute(1, 2, 0).reshape(heads, head_dim // pair, pair, tokens)
    # [tokens, heads, head_dim] -> [heads, tokens / pair, head_dim, pair]
    values = value.permute(1, 0, 2).reshape(heads, tokens // pair, pair, head_dim)
    halves = (half.transpose(2, 3).reshape(heads, -1) for half in (keys, values))
    return torch.cat(tuple(halves), dim=1)


@unpack.register
def _(_: CpuBackend, block, block_size):
    pair = pair_size(block.dtype)
    heads = block.shape[0]
    keys, values = block.chunk(2, dim=1)
    head_dim = keys.shape[1] // block_size
    key = keys.reshape(heads, head_dim // pair, block_size, pair).transpose(2, 3)
    value = values.reshape(heads, block_size // pair, head_dim, pair).transpose(2, 3)
    return key.flatten(1, 2).permute(2, 0, 1), value.flatten(1, 2).permute(1, 0, 2)


def pair_size(dtype):
    """Return how many numbers are stored together: two bfloat16 make one 32-bit lane."""
    return 2 if dtype == torch.bfloat16 else 1


@pack.register
def _(backend: Int8CpuBackend, key, value):
    codes, scales = zip(*(quantize_rows(rotated_head(half)) for half in (key, value)), strict=True)
    key, value = (half.to(backend.dtype) for half in codes)
    packed = pack(CpuBackend(), key, value).to(torch.int8)
    # [tokens, heads, 1] -> [heads, tokens]
    tails = (scale.squeeze(-1).T.contiguous().view(torch.int8) for scale in scales)
    return torch.cat((packed, *tails), dim=1)


@unpack.register
def _(backend: Int8CpuBackend, block, block_size):
    """Return codes times scales, rotated back, in float32."""
    half = block_size * SCALE_BYTES
    codes = block[:, : -2 * half].to(backend.dtype)
    key, value = unpack(CpuBackend(), codes, block_size)
    tails = block[:, -2 * half :].contiguous().view(torch.float32)
    # [heads, 2 * tokens] -> [tokens, heads, 1]
    key_scale, value_scale = (tail.T.unsqueeze(-1) for tail in tails.chunk(2, dim=1))
    return rotated_head(key * key_scale), rotated_head(value * value_scale)


@pack.register
def _(_: CudaBackend, key, value):
    """Return `[2, num_kv_heads, block_size, head_dim]`, which is `cache[:, block]`."""
    return torch.stack((key, value)).transpose(1, 2).contiguous()


@unpack.register
def _(_: CudaBackend, block, block_size):
    key, value = block.transpose(1, 2)
    assert key.shape[0] == block_size, "a block is whole"
    return key, value


@pack.register
def _(backend: Fp8CudaBackend, key, value):
    packed = pack(CudaBackend(backend.device), float8(key), float8(value))
    return packed.view(torch.float8_e4m3fn)


@unpack.register
def _(backend: Fp8CudaBackend, block, block_size):
    return unpack(CudaBackend(backend.device), block.float(), block_size)


def float8(numbers):
    """Return the bytes of float8; what it does not hold is cut off."""
    most = torch.finfo(torch.float8_e4m3fn).max
    return numbers.clamp(-most, most).to(torch.float8_e4m3fn).view(torch.uint8)


@pack.register
def _(_: ReferenceBackend, key, value):
    return torch.stack((key, value)).permute(2, 0, 1, 3).flatten(1)


@unpack.register
def _(_: ReferenceBackend, block, block_size):
    key, value = block.view(block.shape[0], 2, block_size, -1).permute(1, 2, 0, 3)
    return key, value
