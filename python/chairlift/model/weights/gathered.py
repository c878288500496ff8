"""Layers of a rank, whose inputs and outputs are gathered from all ranks."""

from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from chairlift.kernels import LinearLayer, cpu
from chairlift.model.parts.weights import LayerWeights, Weights
from chairlift.model.specs.layer_parts import Experts
from chairlift.model.specs.model_spec import LayerSpec, ModelSpec
from chairlift.model.specs.share import Share


class Gather(Protocol):
    """What puts the parts of all ranks side by side; see `_core.RankGroup.gather`."""

    def gather(self, x: Tensor, out: Tensor, widths: list[int]) -> None:
        """Write `out` `[T, sum(widths)]` from the `x` `[T, widths[rank]]` of all ranks."""

    def scratch(self, num_numbers: int, dtype: torch.dtype, *, is_input: bool) -> Tensor:
        """Return memory `[num_numbers]`, which the next layer writes over."""


def _scratch(
    gather: Gather, rows: int, width: int, dtype: torch.dtype, *, is_input: bool
) -> Tensor:
    return gather.scratch(rows * width, dtype, is_input=is_input).view(rows, width)


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
            whole = _scratch(self._gather, num_tokens, self.in_features, x.dtype, is_input=True)
            self._gather.gather(x, whole, self._input_widths)
            x = whole
        part = _scratch(
            self._gather, num_tokens, self._layer.out_features, out.dtype, is_input=False
        )
        self._layer(x, out=part)
        self._gather.gather(part, out, self._output_widths)
        return out


class GatheredExperts:
    """Some columns of the layers of each expert; a call returns what all ranks compute."""

    workspace_bytes = 0

    def __init__(
        self, experts: cpu.Experts, gather: Gather, share: Share, spec: Experts, hidden_size: int
    ) -> None:
        """Take the columns of this rank.

        Args:
            experts: Their first layers have some columns of gate and up, the second ones of H.
            gather: Meets the other ranks.
            share: Which columns these are.
            spec: The mixture of all ranks.
            hidden_size: H.
        """
        self._experts = experts
        self._gather = gather
        self._top_k = spec.top_k
        self._inner_widths = share.widths(spec.intermediate_size)
        self._output_widths = share.widths(hidden_size)
        self._rank = share.rank
        self.num_bytes = experts.num_bytes

    def __call__(self, x: Tensor, logits: Tensor, out: Tensor, workspace: Tensor) -> None:  # noqa: ARG002, as `ExpertLayers`
        """Write what the chosen experts compute of `x`; see `ExpertLayers`."""
        # Each rank routes all tokens, so that the rows of all have the same order.
        num_rows, num_tokens = len(x) * self._top_k, len(x)
        inner = self._inner_widths[self._rank]
        part = _scratch(self._gather, num_rows, inner, torch.float32, is_input=False)
        self._experts.inside(x, logits, part)
        whole = _scratch(
            self._gather, num_rows, sum(self._inner_widths), torch.float32, is_input=True
        )
        self._gather.gather(part, whole, self._inner_widths)
        outputs = self._output_widths[self._rank]
        sums = _scratch(self._gather, num_tokens, outputs, out.dtype, is_input=False)
        self._experts.outside(whole, logits, sums)
        self._gather.gather(sums, out, self._output_widths)


def with_gathers(weights: Weights, share: Share, gather: Gather, spec: ModelSpec) -> Weights:
    """Return the weights of a rank, whose layers meet those of the others.

    What is between queries and the output of attention, and inside a feed-forward, stays apart.

    Args:
        weights: Those of the rank.
        share: Which columns these are.
        gather: Meets the other ranks.
        spec: The model of all ranks.
    """
    head, hidden = weights.head, spec.hidden_size

    def gathered(layer: LinearLayer | None) -> LinearLayer | None:
        if layer is None:
            return None
        return GatheredLinear(layer, gather, share, hidden, splits_inputs=True)

    def gathered_layer(layer: LayerWeights, whole: LayerSpec) -> LayerWeights:
        experts = layer.experts
        if experts is not None:
            assert isinstance(experts.mixture, cpu.Experts), "GPUs are refused at load"
            assert whole.experts is not None, "as the spec has it"
            mixture = GatheredExperts(experts.mixture, gather, share, whole.experts, hidden)
            experts = replace(experts, mixture=mixture)
        output, down = gathered(layer.output), gathered(layer.down)
        return replace(layer, output=output, down=down, experts=experts)

    if head is not None:
        head = GatheredLinear(head, gather, share, spec.vocab_size, splits_inputs=False)
    layers = tuple(map(gathered_layer, weights.layers, spec.layers))
    return replace(weights, layers=layers, head=head)
