"""Where the device code is, and the names of the instantiations that a model needs.

A kernel is named by its C++ name expression, such as
`chairlift::paged_decode<chairlift::bfloat16, chairlift::bfloat16, 128>`: NVRTC compiles
it by that name, and a launch uses the same name.
"""

from collections.abc import Sequence
from hashlib import sha256
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Final, NamedTuple

import torch

HEAD_DIMS: Final = (64, 96, 128, 256, 512)
"""Sizes of a head that the attention kernels are instantiated for."""

ELEMENTS: Final = {
    torch.float32: "float",
    torch.bfloat16: "chairlift::bfloat16",
    torch.float16: "chairlift::float16",
    torch.float8_e4m3fn: "chairlift::float8_e4m3",
}
"""Names of the element types in C++."""

DECODE_ROWS: Final = (8, 16)
"""Packed rows (queries times heads of a KV head) of a row in `paged_decode`, at most."""

GEMV_ROWS: Final = (1, 2, 4)
"""Rows of a linear layer that `gemv` computes, in place of cuBLAS."""

EXPERT_ROWS: Final = (16, 64)
"""Rows of a tile of one expert."""

STATE_KEYS: Final = (128, 256)
"""Keys of a head's recurrent state that registers have room for."""

_FILES: Final = {
    "gated_norm": "norm.cu",
    **dict.fromkeys(("gather_tokens", "scatter_tokens"), "tokens.cu"),
    **dict.fromkeys(("route_experts", "group_by_expert", "sum_experts"), "experts.cu"),
    **dict.fromkeys(("expert_gate_up", "expert_down"), "expert_gemm.cu"),
}
"""The files of kernels whose file has another name."""


def source_folder() -> Path:
    """Return the folder of the `.cu` files; headers are in its `include/`."""
    return Path(str(files("chairlift"))) / "cuda"


def kernel_name(kernel: str, *arguments: torch.dtype | int) -> str:
    """Return the name expression of an instantiation."""
    if not arguments:
        return f"chairlift::{kernel}"
    parts = (ELEMENTS[a] if isinstance(a, torch.dtype) else str(a) for a in arguments)
    return f"chairlift::{kernel}<{', '.join(parts)}>"


def source_of(name: str) -> Path:
    """Return the file that defines a kernel."""
    kernel = name.removeprefix("chairlift::").partition("<")[0]
    return source_folder() / _FILES.get(kernel, f"{kernel}.cu")


class ModelKernels(NamedTuple):
    """The types and sizes that decide which instantiations a model needs."""

    dtype: torch.dtype
    """The dtype of activations: bfloat16 or float16."""
    kv_dtype: torch.dtype
    """The dtype of keys and values in the cache."""
    head_dims: Sequence[int]
    """Numbers of a head, for each kind of layer."""
    has_experts: bool = False
    has_states: bool = False

    def names(self) -> list[str]:
        """Return the name of every kernel that a step of the model may launch."""
        dtype, kv_dtype, head_dims, has_experts, has_states = self
        return [
            *(name for size in head_dims for name in _attention_kernels(dtype, kv_dtype, size)),
            kernel_name("sample", torch.float32),
            kernel_name("sample_options"),
            kernel_name("norm", dtype),
            kernel_name("activate", dtype),
            *(kernel_name("gemv", dtype, rows) for rows in GEMV_ROWS),
            kernel_name("copy_blocks"),
            kernel_name("gather_tokens"),
            kernel_name("scatter_tokens"),
            *(_expert_kernels(dtype) if has_experts else ()),
            *(_state_kernels(dtype) if has_states else ()),
        ]


def tile_rows(head_dim: int) -> tuple[int, ...]:
    """Return the packed rows that a tile of `paged_prefill` may have, the fewest first."""
    return (64,) if head_dim > 128 else (64, 128)


def _attention_kernels(dtype: torch.dtype, kv_dtype: torch.dtype, head_dim: int) -> list[str]:
    kind = dtype, kv_dtype, head_dim
    return [
        *(kernel_name("paged_prefill", *kind, rows) for rows in tile_rows(head_dim)),
        *(kernel_name("paged_decode", *kind, rows) for rows in DECODE_ROWS),
        kernel_name("kv_write", *kind),
    ]


def _expert_kernels(dtype: torch.dtype) -> list[str]:
    layers = product(("expert_gate_up", "expert_down"), EXPERT_ROWS)
    return [
        kernel_name("route_experts"),
        kernel_name("group_by_expert"),
        *(kernel_name(layer, dtype, rows) for layer, rows in layers),
        kernel_name("sum_experts", dtype),
    ]


def _state_kernels(dtype: torch.dtype) -> list[str]:
    rules = product(("selective_scan", "gated_delta"), STATE_KEYS)
    return [
        kernel_name("copy_states"),
        kernel_name("causal_conv", dtype),
        *(kernel_name(rule, dtype, keys) for rule, keys in rules),
        kernel_name("gated_norm", dtype),
    ]


def all_kernels() -> list[str]:
    """Return the name of every instantiation that some model needs."""
    kinds = (torch.bfloat16, torch.float16)
    models = (kernels_of(kind, HEAD_DIMS, has_experts=True, has_states=True) for kind in kinds)
    return list(dict.fromkeys(name for names in models for name in names))


def kernels_of(
    dtype: torch.dtype, head_dims: Sequence[int], *, has_experts: bool, has_states: bool
) -> list[str]:
    """Return the name of every instantiation that a model may need, for all types of the cache."""
    caches = dtype, torch.float8_e4m3fn
    both = (ModelKernels(dtype, kept, head_dims, has_experts, has_states) for kept in caches)
    return list(dict.fromkeys(name for model in both for name in model.names()))


def digest() -> str:
    """Return a hash of all device code: a change of a header may change every kernel."""
    folder, whole = source_folder(), sha256()
    for path in sorted(folder.rglob("*.cu*")):
        whole.update(path.relative_to(folder).as_posix().encode() + b"\0")
        whole.update(path.read_bytes() + b"\0")
    return whole.hexdigest()
