"""Linear layers of a GPU."""

import torch
from torch import Tensor

from chairlift.api.errors import ConfigError


class Linear:
    """A linear layer by cuBLAS; the weights stay as they are."""

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
