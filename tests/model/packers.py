"""Layers of random codes, packed as the tools of each method publish it, and the weights they mean.

Nothing here is shared with the code under test. A packer takes rows N, columns K and a generator,
and returns the weights float32 `[N, K]` with the tensors of the layer, by the last part of a name.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Generator, Tensor

Parts = dict[str, Tensor]
Packer = Callable[[int, int, Generator], tuple[Tensor, Parts]]

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


@dataclass(frozen=True)
class Case:
    """One way to quantize."""

    config: dict[str, object]
    """`quantization_config`."""
    pack: Packer
    block_type: str | None
    """Of the layers; None where they are widened."""
    is_exact: bool = True
    """Whether blocks hold the very weights; else products with scales in float32 are rounded."""
    sizes: dict[str, object] = field(default_factory=dict)


def words(codes: Tensor, bits: int, order: tuple[int, ...] | None = None) -> Tensor:
    """Return int32 words of the codes of each row; `order` lists those of a word, lowest first."""
    count = 32 // bits
    padding = torch.zeros(len(codes), -codes.shape[1] % count, dtype=torch.int64)
    codes = torch.cat((codes.long(), padding), dim=1)
    packed = torch.zeros(len(codes), codes.shape[1] // count, dtype=torch.int64)
    for place, source in enumerate(order or range(count)):
        packed |= codes[:, source::count] << (place * bits)
    return torch.where(packed < 2**31, packed, packed - 2**32).int()


def random_groups(
    rows: int, columns: int, bits: int, group: int, dtype: torch.dtype, generator: Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Return codes `[N, K]`, scales `[N, G]` and zero points `[N, G]`, which are 1 at least."""
    size = columns if group == -1 else group
    shape, middle = (rows, columns // size), 1 << bits - 1
    codes = torch.randint(2 * middle, (rows, columns), generator=generator)
    scales = (0.5 + torch.rand(shape, generator=generator)) / (0.58 * middle * columns**0.5)
    near = middle // 4
    zeros = torch.randint(middle - near, middle + near + 1, shape, generator=generator)
    zeros[0, 0], zeros[1, -1] = 1, 2 * middle - 1
    return codes, scales.to(dtype), zeros


def weights_of(codes: Tensor, scales: Tensor, zeros: Tensor) -> Tensor:
    """Return `scales * (codes - zeros)`, float32 `[N, K]`."""
    spread = codes.shape[1] // scales.shape[1]
    steps = codes - zeros.repeat_interleave(spread, 1)
    return steps.float() * scales.float().repeat_interleave(spread, 1)


def gptq(
    bits: int, group: int, *, sym: bool, version: int, dtype: torch.dtype, has_index: bool = True
) -> Case:
    """Of AutoGPTQ: words along K, zero points along N, less one in version 1."""

    def pack(rows: int, columns: int, generator: Generator) -> tuple[Tensor, Parts]:
        codes, scales, zeros = random_groups(rows, columns, bits, group, dtype, generator)
        if sym:
            zeros[:] = 1 << bits - 1
        parts = {
            "qweight": words(codes, bits).T.contiguous(),
            "qzeros": words(zeros.T - int(version == 1), bits),
            "scales": scales.T.contiguous(),
        }
        if has_index:
            parts["g_idx"] = torch.arange(columns).int() // (columns if group == -1 else group)
        return weights_of(codes, scales, zeros), parts

    return Case(
        {
            "quant_method": "gptq",
            "bits": bits,
            "group_size": group,
            "sym": sym,
            "desc_act": False,
            "checkpoint_format": "gptq" if version == 1 else "gptq_v2",
        },
        pack,
        kept_type(bits, dtype, sym=sym),
        is_exact=dtype is not torch.float32,
    )


def awq(group: int, dtype: torch.dtype) -> Case:
    """Of AutoAWQ (gemm): words of eight outputs, in an order of their own."""

    def pack(rows: int, columns: int, generator: Generator) -> tuple[Tensor, Parts]:
        codes, scales, zeros = random_groups(rows, columns, 4, group, dtype, generator)
        zeros[1, 0] = 0
        return weights_of(codes, scales, zeros), {
            "qweight": words(codes.T, 4, AWQ_ORDER),
            "qzeros": words(zeros.T, 4, AWQ_ORDER),
            "scales": scales.T.contiguous(),
        }

    config = {"quant_method": "awq", "bits": 4, "group_size": group, "version": "gemm"}
    return Case(
        {**config, "zero_point": True}, pack, "AFFINE4", is_exact=dtype is not torch.float32
    )


def compressed_config(kind: str, **weights: object) -> dict[str, object]:
    """Return a `quantization_config` of compressed-tensors."""
    return {
        "quant_method": "compressed-tensors",
        "format": kind,
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
    }


def packed(bits: int, group: int, *, sym: bool, dtype: torch.dtype) -> Case:
    """Of compressed-tensors (pack-quantized): words along K, zero points along N."""

    def pack(rows: int, columns: int, generator: Generator) -> tuple[Tensor, Parts]:
        codes, scales, zeros = random_groups(rows, columns, bits, group, dtype, generator)
        if sym:
            zeros[:] = 1 << bits - 1
        parts = {
            "weight_packed": words(codes, bits),
            "weight_scale": scales,
            "weight_shape": torch.tensor([rows, columns]),
        }
        if not sym:
            parts["weight_zero_point"] = words(zeros.T, bits).T.contiguous()
        return weights_of(codes, scales, zeros), parts

    facts = {"strategy": "channel"} if group == -1 else {"strategy": "group", "group_size": group}
    return Case(
        compressed_config("pack-quantized", type="int", num_bits=bits, symmetric=sym, **facts),
        pack,
        kept_type(bits, dtype, sym=sym),
        is_exact=dtype is not torch.float32,
    )


def signed_bytes(*, sym: bool, dtype: torch.dtype, strategy: str = "channel") -> Case:
    """Of compressed-tensors (int-quantized): bytes as they are, a scale per output or one."""

    def pack(rows: int, columns: int, generator: Generator) -> tuple[Tensor, Parts]:
        codes, scales, zeros = random_groups(rows, columns, 8, -1, dtype, generator)
        if sym:
            zeros[:] = 128
        parts = {"weight": (codes - 128).to(torch.int8), "weight_scale": scales}
        if strategy == "tensor":
            parts["weight_scale"] = scales[0].clone()
            scales = scales[:1].expand(rows, 1)
        if not sym:
            parts["weight_zero_point"] = (zeros - 128).to(torch.int8)
        return weights_of(codes, scales, zeros), parts

    return Case(
        compressed_config(
            "int-quantized", type="int", num_bits=8, symmetric=sym, strategy=strategy
        ),
        pack,
        kept_type(8, dtype, sym=sym),
        is_exact=dtype is not torch.float32,
    )


def floats(
    config: dict[str, object],
    scales_shape: Callable[[int, int], tuple[int, ...]],
    name: str = "weight_scale",
    dtype: torch.dtype = torch.float32,
) -> Case:
    """Of eight bits; a scale for each part of equal size, the last ones cut."""

    def pack(rows: int, columns: int, generator: Generator) -> tuple[Tensor, Parts]:
        stored = torch.randn(rows, columns, generator=generator).to(torch.float8_e4m3fn)
        shape = scales_shape(rows, columns)
        scales = ((0.5 + torch.rand(shape, generator=generator)) / columns**0.5).to(dtype)
        weights = stored.float()
        if name == "weight_scale_inv" or "block" in str(config):
            for i, j in torch.cartesian_prod(*map(torch.arange, shape)).tolist():
                part = weights[128 * i : 128 * i + 128, 128 * j : 128 * j + 128]
                part *= scales[i, j].float()
        else:
            weights *= scales.float()
        return weights, {"weight": stored, name: scales}

    # 192 is one tile and a half.
    return Case(config, pack, None, sizes={"intermediate_size": 192})


def kept_type(bits: int, dtype: torch.dtype, *, sym: bool) -> str:
    """Return the smallest block type that holds such groups."""
    plain = sym and dtype is torch.float16
    return {4: ("AFFINE4", "Q4_0"), 8: ("AFFINE8", "Q8_0")}[bits][plain]


def tiles(rows: int, columns: int) -> tuple[int, int]:
    """Return how many tiles of 128x128 cover a matrix."""
    return -(-rows // 128), -(-columns // 128)


_SCALES = {32: torch.float16, 64: torch.bfloat16, 128: torch.float32, -1: torch.float16}
F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32

CASES: dict[str, Case] = {
    **{
        f"gptq v{version}, {bits} bits, group {group}, {'sym' if sym else 'asym'}": gptq(
            bits, group, sym=sym, version=version, dtype=dtype
        )
        for version in (1, 2)
        for bits in (4, 8)
        for group, dtype in _SCALES.items()
        for sym in (True, False)
        # The versions differ in their zero points alone.
        if version == 1 or group in {32, 128}
    },
    "gptq without g_idx": gptq(4, 64, sym=True, version=1, dtype=F16, has_index=False),
    **{f"awq, group {group}": awq(group, dtype) for group, dtype in _SCALES.items()},
    "w4a16, sym": packed(4, 32, sym=True, dtype=F16),
    "w4a16, sym, bfloat16": packed(4, 128, sym=True, dtype=BF16),
    "w4a16, asym": packed(4, 64, sym=False, dtype=BF16),
    "w8a16, channel": packed(8, -1, sym=True, dtype=F16),
    "w8a16, channel, float32": packed(8, -1, sym=True, dtype=F32),
    "w8a16, channel, asym": packed(8, -1, sym=False, dtype=F16),
    "w8a8": signed_bytes(sym=True, dtype=F16),
    "w8a8, bfloat16": signed_bytes(sym=True, dtype=BF16),
    "w8a8, asym": signed_bytes(sym=False, dtype=BF16),
    "w8a8, tensor": signed_bytes(sym=True, dtype=F16, strategy="tensor"),
    "fp8, tensor": floats({"quant_method": "fp8"}, lambda *_: (1,)),
    "fp8, scalar": floats({"quant_method": "fp8"}, lambda *_: ()),
    "fp8, tiles": floats(
        {"quant_method": "fp8", "weight_block_size": [128, 128]}, tiles, "weight_scale_inv"
    ),
    "fp8, tiles, bfloat16": floats(
        {"quant_method": "fp8", "weight_block_size": [128, 128]}, tiles, "weight_scale_inv", BF16
    ),
    "float-quantized, channel": floats(
        compressed_config("float-quantized", type="float", num_bits=8, strategy="channel"),
        lambda rows, _: (rows, 1),
        dtype=BF16,
    ),
    "float-quantized, tiles": floats(
        compressed_config(
            "float-quantized",
            type="float",
            num_bits=8,
            strategy="block",
            block_structure=[128, 128],
        ),
        tiles,
    ),
}
