"""A norm of the residual stream with its weights, as a function."""

from typing import NamedTuple

from torch import Tensor

from chairlift.kernels import Kernels
from chairlift.model.specs.layer_parts import LayerNorm, NormSpec


class Norm(NamedTuple):
    """A norm."""

    spec: NormSpec
    weight: Tensor
    """`[H]`."""
    bias: Tensor | None = None

    @property
    def num_bytes(self) -> int:
        """Bytes of the weights."""
        return self.weight.nbytes + (0 if self.bias is None else self.bias.nbytes)

    def __call__(self, kernels: Kernels, x: Tensor, out: Tensor) -> None:
        """Write the norm of `x` `[T, H]`."""
        spec = self.spec
        if isinstance(spec, LayerNorm):
            kernels.layer_norm(x, self.weight, self.bias, spec.eps, out=out)
        else:
            kernels.rms_norm(x, self.weight, spec.eps, out=out, offset=float(spec.plus_one))

    def of_sum(self, kernels: Kernels, x: Tensor, update: Tensor, out: Tensor) -> None:
        """Add `update` `[T, H]` to `x` in place, and write the norm of the sum."""
        spec = self.spec
        if isinstance(spec, LayerNorm):
            kernels.add_layer_norm(x, update, self.weight, self.bias, spec.eps, out=out)
        else:
            offset = float(spec.plus_one)
            kernels.add_rms_norm(x, update, self.weight, spec.eps, out=out, offset=offset)
