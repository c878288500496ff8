"""What the kernels are instantiated with."""

from itertools import product

import torch
from chairlift.kernels.cuda.sources import (
    DECODE_ROWS,
    EXPERT_ROWS,
    GEMV_ROWS,
    HEAD_DIMS,
    STATE_KEYS,
    tile_rows,
)
from chairlift.kernels.cuda.sources import kernel_name as instance

BLOCK_SIZE = 16
BF16, F16, F8, F32 = torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float32

OTHER_TYPES = [(F16, F16, 64), (F16, F8, 64), *((BF16, F8, d) for d in (96, 128, 256, 512))]
"""Of queries and of the cache, and the head sizes that attention is tested with beside bfloat16."""

_PLAIN = ("copy_blocks", "gather_tokens", "scatter_tokens", "sample_options")
_PLAIN += ("route_experts", "group_by_expert", "copy_states")
"""Kernels without template arguments."""


def every_instance() -> list[str]:
    """All that a server may ask for."""
    names = _elementwise()
    pairs = [(t, kv) for t in (BF16, F16) for kv in (t, F8)]
    for (t, kv), head_dim in product(pairs, HEAD_DIMS):
        names.append(instance("kv_write", t, kv, head_dim))
        names += [instance("paged_decode", t, kv, head_dim, rows) for rows in DECODE_ROWS]
        names += [instance("paged_prefill", t, kv, head_dim, m) for m in tile_rows(head_dim)]
    return [*names, *map(instance, _PLAIN)]


def tested_instances() -> list[str]:
    """Those that the tests run: every kernel, head size and element type, not every pairing."""
    names = _elementwise()
    names += [instance("kv_write", t, t, d) for t in (BF16, F16) for d in HEAD_DIMS]
    names += [instance("kv_write", BF16, F8, 128)]
    kv = [*((BF16, BF16, head_dim) for head_dim in HEAD_DIMS), *OTHER_TYPES]
    names += [instance("paged_decode", *k, rows) for k in kv for rows in DECODE_ROWS]
    names += [instance("paged_prefill", *k, 64) for k in kv]
    names += [instance("paged_prefill", *k, 128) for k in kv if k[2] in (64, 128)]
    return [*names, *map(instance, _PLAIN)]


def _elementwise() -> list[str]:
    kernels = ("norm", "activate", "sample")
    names = [instance(kernel, dtype) for kernel in kernels for dtype in (F32, BF16, F16)]
    names += [instance("sum_experts", dtype) for dtype in (BF16, F16)]
    names += [instance("gemv", dtype, rows) for dtype in (BF16, F16) for rows in GEMV_ROWS]
    layers = product(("expert_gate_up", "expert_down"), (BF16, F16), EXPERT_ROWS)
    names += [instance(*layer) for layer in layers]
    names += [instance(k, t) for k in ("causal_conv", "gated_norm") for t in (BF16, F16)]
    rules = product(("selective_scan", "gated_delta"), (BF16, F16), STATE_KEYS)
    return names + [instance(*rule) for rule in rules]
