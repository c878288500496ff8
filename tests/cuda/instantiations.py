"""What the kernels are instantiated with, and what a launch of each needs."""

from itertools import product

import torch

BFLOAT16, FLOAT16, FLOAT8 = "chairlift::bfloat16", "chairlift::float16", "chairlift::float8_e4m3"
ELEMENT = {
    torch.float32: "float",
    torch.bfloat16: BFLOAT16,
    torch.float16: FLOAT16,
    torch.float8_e4m3fn: FLOAT8,
}
HEAD_DIMS = (64, 96, 128, 256)
BLOCK_SIZE = 16


def instance(kernel: str, *parameters: str | int | torch.dtype) -> str:
    """The C++ name of an instantiation."""
    names = [ELEMENT[p] if isinstance(p, torch.dtype) else str(p) for p in parameters]
    return f"chairlift::{kernel}" + (f"<{', '.join(names)}>" if names else "")


def every_instance() -> list[str]:
    """All that a server may ask for."""
    numbers = ("float", BFLOAT16, FLOAT16)
    names = [instance(k, t) for k in ("rms_norm", "silu_mul", "sample") for t in numbers]
    pairs = [(t, kv) for t in (BFLOAT16, FLOAT16) for kv in (t, FLOAT8)]
    for (t, kv), head_dim in product(pairs, HEAD_DIMS):
        names += [instance(k, t, kv, head_dim) for k in ("kv_write", "paged_decode")]
        rows = (64,) if head_dim == 256 else (64, 128)
        names += [instance("paged_prefill", t, kv, head_dim, m) for m in rows]
    return [*names, *map(instance, ("copy_blocks", "gather_tokens", "scatter_tokens"))]


def tested_instances() -> list[str]:
    """Those that the tests run: every kernel, head size and element type, not every pairing."""
    bf16, f16, f8, f32 = torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float32
    names = [instance(k, t) for k in ("rms_norm", "silu_mul", "sample") for t in (f32, bf16, f16)]
    names += [instance("kv_write", t, t, d) for t in (bf16, f16) for d in HEAD_DIMS]
    names += [instance("kv_write", bf16, f8, 128)]
    same = [(t, t, d) for t, d in [(bf16, d) for d in HEAD_DIMS] + [(f16, 64)]]
    kv = [*same, (f16, f8, 64), (bf16, f8, 96), (bf16, f8, 128), (bf16, f8, 256)]
    names += [instance("paged_decode", *k) for k in kv]
    names += [instance("paged_prefill", *k, 64) for k in kv]
    names += [instance("paged_prefill", *k, 128) for k in kv if k[2] in (64, 128)]
    return [*names, *map(instance, ("copy_blocks", "gather_tokens", "scatter_tokens"))]


def decode_launch(head_dim: int) -> tuple[int, int]:
    """Threads and bytes of shared memory of `paged_decode`."""
    warps, stages = {64: (4, 4), 96: (4, 3), 128: (4, 3), 256: (2, 2)}[head_dim]
    queries = 32 * head_dim if head_dim > 128 else 0
    return 32 * warps, warps * stages * 64 * head_dim + queries + 128 * warps + 16


def prefill_bytes(head_dim: int, rows: int, kv: torch.dtype) -> int:
    """Bytes of shared memory of `paged_prefill`."""
    tokens = 32 if head_dim > 128 else 64
    return rows * head_dim * 2 + 2 * tokens * head_dim * kv.itemsize
