"""Linear layers of a rank, whose inputs and outputs are gathered from all ranks."""

from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from chairlift.kernels import LinearLayer
from chairlift.model.parts.weights import LayerWeights, Weights
from chairlift.model.specs.share import Share


class Gather(Protocol):
    """What puts the parts of all ranks side by side; see `_core.RankGroup.gather`."""

    def gather(self, x: Tensor, out: Tensor, widths: list[int]) -> None:
        """Write `out` `[T, sum(widths)]` from the `x` `[T, widths[rank]]` of all ranks."""

    def scratch(self, num_numbers: int, dtype: torch.dtype, *, is_input: bool) -> Tensor:
        """Return memory `[num_numbers]`, which the next layer writes over."""


class GatheredLinear:
    """Some output columns of a layer; a call returns those of all ranks."""

    def __init__(
        self,
        layer: LinearLayer,
        gather: Gather,
        share: Share,
        out_features: int,
        *,
        splits_inputs: bool,
    ) -> None:
        """Take the columns of this rank.

        Args:
            layer: They map all inputs.
            gather: Meets the other ranks.
            share: Which columns these are.
            out_features: Columns of all ranks.
            splits_inputs: A call gets the part of the inputs that this rank computed.
        """
        self._layer = layer
        self._gather = gather
        self._input_widths = share.widths(layer.in_features) if splits_inputs else None
        self._output_widths = share.widths(out_features)
        self.in_features = layer.in_features
        self.out_features = out_features

    @property
    def num_bytes(self) -> int:
        """Bytes of this rank's weights as they are stored."""
        return self._layer.num_bytes

    def __call__(
        self, x: Tensor, out_dtype: torch.dtype | None = None, out: Tensor | None = None
    ) -> Tensor:
        """Return `x W^T + b` of all columns, `[T, out_features]`; see `LinearLayer`."""
        num_tokens = x.shape[0]
        if out is None:
            out = torch.empty(num_tokens, self.out_features, dtype=out_dtype or x.dtype)
        if self._input_widths is not None:
            whole = self._scratch(num_tokens, self.in_features, x.dtype, is_input=True)
            self._gather.gather(x, whole, self._input_widths)
            x = whole
        part = self._scratch(num_tokens, self._layer.out_features, out.dtype, is_input=False)
        self._layer(x, out=part)
        self._gather.gather(part, out, self._output_widths)
        return out

    def _scratch(self, rows: int, width: int, dtype: torch.dtype, *, is_input: bool) -> Tensor:
        return self._gather.scratch(rows * width, dtype, is_input=is_input).view(rows, width)


def with_gathers(weights: Weights, share: Share, gather: Gather, vocab_size: int) -> Weights:
    """Return the weights of a rank, whose layers meet those of the others.

    What is between queries and the output of attention, and inside a feed-forward, stays apart.
    """
    head, hidden = weights.head, weights.embedding.shape[1]

    def gathered(layer: LinearLayer | None) -> LinearLayer | None:
        if layer is None:
            return None
        return GatheredLinear(layer, gather, share, hidden, splits_inputs=True)

    def gathered_layer(layer: LayerWeights) -> LayerWeights:
        return replace(layer, output=gathered(layer.output), down=gathered(layer.down))

    if head is not None:
        head = GatheredLinear(head, gather, share, vocab_size, splits_inputs=False)
    return replace(weights, layers=tuple(map(gathered_layer, weights.layers)), head=head)
