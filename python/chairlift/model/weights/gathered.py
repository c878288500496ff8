"""Layers of a rank, whose inputs and outputs are gathered from all ranks."""

from dataclasses import replace

import torch
from torch import Tensor

from chairlift.kernels import Kernels, LinearLayer
from chairlift.kernels.interface import SplitExpertLayers
from chairlift.model.parts.gather import Gather, LayerGathers, WholeRows, scratch
from chairlift.model.parts.weights import LayerWeights, RecurrentWeights, Weights
from chairlift.model.specs.layer_parts import Experts
from chairlift.model.specs.model_spec import LayerSpec, ModelSpec
from chairlift.model.specs.recurrence import Mamba2, Recurrent
from chairlift.model.specs.share import Rows, Share
from chairlift.model.tensors.mixer_tensors import mixed_rows


class GatheredLinear:
    """Some output columns of a layer; a call returns those of all ranks."""

    def __init__(
        self,
        layer: LinearLayer,
        gather: Gather,
        share: Share,
        out_features: int,
        inputs: tuple[Rows, ...] = (),
    ) -> None:
        """Take the columns of this rank.

        Args:
            layer: They map all inputs.
            gather: Meets the other ranks.
            share: Which columns these are.
            out_features: Columns of all ranks.
            inputs: All inputs, where a call gets those of each part that this rank computed; else
                it gets all.
        """
        self._layer = layer
        self._gather = gather
        self._input_widths = [share.widths(*part) for part in inputs]
        self._rank = share.rank
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
            out = x.new_empty(num_tokens, self.out_features, dtype=out_dtype or x.dtype)
        if self._input_widths:
            x = self._whole(x)
        part = scratch(
            self._gather, num_tokens, self._layer.out_features, out.dtype, is_input=False
        )
        self._layer(x, out=part)
        self._gather.gather(part, out, self._output_widths)
        return out

    def inputs_like(self, x: Tensor) -> Tensor:
        """Return where a call for `x` `[T, ...]` puts the inputs of all ranks, `[T, in_features]`.

        The next layer writes over them.
        """
        if not self._input_widths:
            return x
        return scratch(self._gather, len(x), self.in_features, x.dtype, is_input=True)

    def _whole(self, x: Tensor) -> Tensor:
        """Return the inputs `[T, in_features]` of which `x` has those of this rank."""
        whole = self.inputs_like(x)
        parts = torch.split(x, [widths[self._rank] for widths in self._input_widths], dim=1)
        wholes = torch.split(whole, [sum(widths) for widths in self._input_widths], dim=1)
        for part, out, widths in zip(parts, wholes, self._input_widths, strict=True):
            self._gather.gather(part, out, widths)
        return whole


def whole_inputs(layer: LinearLayer, x: Tensor) -> Tensor:
    """Return the inputs `[T, in_features]` of the last call of a layer, which had `x`."""
    return layer.inputs_like(x) if isinstance(layer, GatheredLinear) else x


class GatheredExperts:
    """Some columns of the layers of each expert; a call returns what all ranks compute."""

    def __init__(
        self,
        experts: SplitExpertLayers,
        gather: Gather,
        share: Share,
        spec: Experts,
        hidden_size: int,
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
        self.workspace_bytes = experts.workspace_bytes

    def __call__(self, x: Tensor, logits: Tensor, out: Tensor, workspace: Tensor) -> None:
        """Write what the chosen experts compute of `x`; see `ExpertLayers`."""
        # Each rank routes all tokens, so that the rows of all have the same order.
        num_rows, num_tokens = len(x) * self._top_k, len(x)
        inner, dtype = self._inner_widths[self._rank], self._experts.inner_dtype
        part = scratch(self._gather, num_rows, inner, dtype, is_input=False)
        self._experts.inside(x, logits, part, workspace)
        whole = scratch(self._gather, num_rows, sum(self._inner_widths), dtype, is_input=True)
        self._gather.gather(part, whole, self._inner_widths)
        outputs = self._output_widths[self._rank]
        sums = scratch(self._gather, num_tokens, outputs, out.dtype, is_input=False)
        self._experts.outside(whole, logits, sums, workspace)
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

    def gathered(layer: LinearLayer | None, *inputs: Rows) -> LinearLayer | None:
        if layer is None:
            return None
        inputs = inputs or (Rows(layer.in_features),)
        return GatheredLinear(layer, gather, share, hidden, inputs)

    def gathered_mixer(mixer: RecurrentWeights, whole: Recurrent) -> RecurrentWeights:
        output, norm = gathered(mixer.mixed_output, *mixed_rows(whole)), mixer.state_norm
        assert output is not None, "of every mixer"
        if isinstance(whole, Mamba2) and norm is not None and not _shares_groups(whole, share):
            norm = norm[share.columns(whole.inner_size, whole.head_dim)]
        return replace(mixer, mixed_output=output, state_norm=norm)

    def gathered_layer(layer: LayerWeights, whole: LayerSpec) -> LayerWeights:
        experts, recurrent = layer.experts, layer.recurrent
        if experts is not None:
            assert isinstance(experts.mixture, SplitExpertLayers), "as the kernels pack them"
            assert whole.experts is not None, "as the spec has it"
            mixture = GatheredExperts(experts.mixture, gather, share, whole.experts, hidden)
            experts = replace(experts, mixture=mixture)
        if recurrent is not None:
            assert whole.recurrent is not None, "as the spec has it"
            recurrent = gathered_mixer(recurrent, whole.recurrent)
        return replace(
            layer,
            output=gathered(layer.output),
            down=gathered(layer.down),
            experts=experts,
            recurrent=recurrent,
        )

    if head is not None:
        head = GatheredLinear(head, gather, share, spec.vocab_size)
    layers = tuple(map(gathered_layer, weights.layers, spec.layers))
    return replace(weights, layers=layers, head=head)


def layer_gathers(
    spec: ModelSpec, share: Share, gather: Gather, kernels: Kernels
) -> tuple[LayerGathers, ...]:
    """Return what the mixer of each layer needs whole, beside the inputs of its output.

    Args:
        spec: The model of all ranks.
        share: Which columns this rank has.
        gather: Meets the other ranks.
        kernels: Copy columns.
    """

    def rows(width: int, unit: int) -> WholeRows:
        return WholeRows(gather, share.widths(width, unit), share.columns(width, unit), kernels)

    def of_layer(layer: LayerSpec) -> LayerGathers:
        attention, mixer = layer.attention, layer.recurrent
        queries = keys = mixed = None
        if attention is not None and attention.norms_all_heads:
            queries = rows(attention.query_size, attention.head_dim)
            keys = rows(attention.kv_size, attention.head_dim)
        if isinstance(mixer, Mamba2) and mixer.has_norm and _shares_groups(mixer, share):
            mixed = rows(mixer.inner_size, mixer.head_dim)
        return LayerGathers(queries, keys, mixed)

    return tuple(map(of_layer, spec.layers))


def _shares_groups(mixer: Mamba2, share: Share) -> bool:
    """Return whether several ranks hold heads of one group."""
    return mixer.num_groups < share.num_ranks
