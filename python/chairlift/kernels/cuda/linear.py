"""Linear layers of a GPU."""

import torch
from torch import Tensor

from chairlift.errors import ConfigError


class Linear:
    """A linear layer by cuBLAS; the weights stay as they are."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._weight = weight.t()
        self._bias = bias
        self.out_features, self.in_features = weight.shape

    @property
    def num_bytes(self) -> int:
        """Of the weights."""
        return self._weight.nbytes

    def __call__(
        self, x: Tensor, out_dtype: torch.dtype | None = None, out: Tensor | None = None
    ) -> Tensor:
        """Return `x W^T + b`; see `LinearLayer`."""
        if out_dtype in (None, x.dtype):
            if self._bias is None:
                return torch.mm(x, self._weight, out=out)
            return torch.addmm(self._bias, x, self._weight, out=out)
        assert self._bias is None, "only the head has logits of another type, and it has no bias"
        if x.is_cuda:
            return torch.mm(x, self._weight, out_dtype=out_dtype, out=out)
        return torch.mm(x.to(out_dtype), self._weight.to(out_dtype), out=out)


def linear(weight: Tensor, bias: Tensor | None = None, quantize: str | None = None) -> Linear:
    """Make a layer.

    Raises:
        ConfigError: The weights are to be quantized.
    """
    if quantize is not None:
        message = f"quantize: expected none on a GPU, got {quantize}"
        raise ConfigError(message)
    return Linear(weight, bias)
