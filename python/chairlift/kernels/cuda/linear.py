"""Linear layers of a GPU: by cuBLAS, and by a kernel of our own for a few rows."""

from ctypes import c_int, c_longlong
from typing import Final

import torch
from torch import Tensor

from chairlift.api.errors import ConfigError
from chairlift.kernels.cuda.launch import launcher_of
from chairlift.kernels.cuda.operation import operation
from chairlift.kernels.cuda.sources import GEMV_ROWS, kernel_name

_ALIGNMENT: Final = 16
"""Bytes that `gemv` reads at a time."""
_GEMV_OUTPUTS: Final = 4
"""Outputs of a block of threads."""


class Linear:
    """A linear layer; the weights stay as they are."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight = weight
        self.bias = bias
        self._transposed = weight.t()
        self.out_features, self.in_features = weight.shape

    @property
    def num_bytes(self) -> int:
        """Bytes of the weights."""
        return self.weight.nbytes

    def __call__(
        self, x: Tensor, out_dtype: torch.dtype | None = None, out: Tensor | None = None
    ) -> Tensor:
        """Return `x W^T + b`; see `LinearLayer`."""
        dtype = out_dtype or (x.dtype if out is None else out.dtype)
        if dtype == x.dtype:
            if x.is_cuda and takes_gemv(x, self.weight):
                result = x.new_empty(len(x), self.out_features) if out is None else out
                gemv(result, x, self.weight, self.bias)
                return result
            if self.bias is None:
                return torch.mm(x, self._transposed, out=out)
            return torch.addmm(self.bias, x, self._transposed, out=out)
        if x.is_cuda:
            wide = torch.mm(x, self._transposed, out_dtype=dtype, out=out)
        else:
            wide = torch.mm(x.to(dtype), self._transposed.to(dtype), out=out)
        return wide if self.bias is None else wide.add_(self.bias)


def linear(weight: Tensor, bias: Tensor | None = None, quantize: str | None = None) -> Linear:
    """Make a layer of `weight` `[out_features, in_features]` and `bias` `[out_features]`.

    Raises:
        ConfigError: The weights are to be quantized.
    """
    if quantize is not None:
        message = f"quantize: expected none on a GPU, got {quantize}"
        raise ConfigError(message)
    return Linear(weight, bias)


def takes_gemv(x: Tensor, weight: Tensor) -> bool:
    """Return whether `gemv` computes `x` `[rows, in_features]` with a weight."""
    step = _ALIGNMENT // x.itemsize
    return (
        len(x) in GEMV_ROWS
        and x.stride(1) == 1
        and x.stride(0) % step == weight.shape[1] % step == 0
        and x.data_ptr() % _ALIGNMENT == weight.data_ptr() % _ALIGNMENT == 0
        and weight.is_contiguous()
    )


@operation("gemv", "out")
def gemv(out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """Compute `x W^T + b` for a few rows; see `takes_gemv`.

    Args:
        out: `[rows, out_features]`; rows may be strided.
        x: `[rows, in_features]`, where rows is one of `GEMV_ROWS`; rows may be strided.
        weight: `[out_features, in_features]`.
        bias: `[out_features]`, or None.
    """
    out_features, in_features = weight.shape
    launcher_of(out).launch(
        kernel_name("gemv", x.dtype, len(x)),
        (-(-out_features // _GEMV_OUTPUTS), 1, 1),
        128,
        0,
        out,
        x,
        weight,
        bias,
        c_longlong(out.stride(0)),
        c_longlong(x.stride(0)),
        c_int(out_features),
        c_int(in_features),
    )
