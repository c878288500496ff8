"""The part of a model that one rank holds: some output columns of every linear layer.

Heads of attention go with their KV head, the numbers inside a feed-forward and the vocabulary by
columns. A column is summed over all inputs in the order of one process, and nothing is added across
ranks, so that each number has the same bits however many ranks there are.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from chairlift.model.specs.layer_parts import Experts, Mlp
from chairlift.model.specs.model_spec import LayerSpec, ModelSpec
from chairlift.model.specs.recurrence import GatedDelta, Mamba2, Recurrent, ShortConv


class Rows(NamedTuple):
    """Rows of a tensor, along its first axis, of which each rank holds some."""

    num: int
    unit: int = 1
    """Rows that stay together, such as those of a head; see `Share.columns`."""


@dataclass(frozen=True, slots=True)
class Share:
    """Which columns of a layer a rank holds."""

    rank: int
    num_ranks: int

    def columns(self, width: int, unit: int = 1) -> slice:
        """Return the columns of this rank, of so many.

        Args:
            width: All columns.
            unit: Columns that stay together, such as those of a head. Where there are fewer units
                than ranks, neighbours hold the same one.
        """
        rank, num_ranks, num_units = self.rank, self.num_ranks, width // unit
        first = rank * num_units // num_ranks
        end = max((rank + 1) * num_units // num_ranks, first + 1)
        return slice(first * unit, end * unit)

    def width(self, width: int, unit: int = 1) -> int:
        """Return how many columns this rank holds; see `columns`."""
        columns = self.columns(width, unit)
        return int(columns.stop - columns.start)

    def widths(self, width: int, unit: int = 1) -> list[int]:
        """Return how many columns each rank holds, of so many; see `columns`."""
        num_ranks = self.num_ranks
        return [Share(rank, num_ranks).width(width, unit) for rank in range(num_ranks)]

    def held(self, rows: Tensor, parts: Sequence[Rows]) -> Tensor:
        """Return the rows `[N, ...]` of some parts that this rank holds."""
        each = zip(torch.split(rows, [part.num for part in parts]), parts, strict=True)
        return torch.cat([of_part[self.columns(*part)] for of_part, part in each])

    def of(self, spec: ModelSpec) -> ModelSpec:
        """Return a model as one rank computes it: with its heads, and the numbers between them."""
        return replace(spec, layers=tuple(map(self._layer, spec.layers)))

    def _layer(self, layer: LayerSpec) -> LayerSpec:
        attention, feed_forward = layer.attention, layer.feed_forward
        if attention is not None:
            attention = replace(
                attention,
                num_heads=self.width(attention.num_heads),
                num_kv_heads=self.width(attention.num_kv_heads),
            )
        if isinstance(feed_forward, Mlp):
            feed_forward = self._mlp(feed_forward)
        elif isinstance(feed_forward, Experts):
            shared, inner = feed_forward.shared, feed_forward.intermediate_size
            feed_forward = replace(
                feed_forward,
                intermediate_size=self.width(inner),
                shared=None if shared is None else self._mlp(shared),
            )
        recurrent = None if layer.recurrent is None else self._recurrent(layer.recurrent)
        return replace(layer, attention=attention, recurrent=recurrent, feed_forward=feed_forward)

    def _recurrent(self, mixer: Recurrent) -> Recurrent:
        match mixer:
            case ShortConv():
                return replace(mixer, channels=self.width(mixer.channels))
            case GatedDelta():
                num_heads = self.width(mixer.num_key_heads)
                num_values = num_heads * mixer.num_value_heads // mixer.num_key_heads
                return replace(mixer, num_key_heads=num_heads, num_value_heads=num_values)
        return replace(
            mixer,
            num_heads=self.width(mixer.num_heads),
            num_groups=self.width(mixer.num_groups),
            whole_norm_size=mixer.norm_size if mixer.has_norm else None,
        )

    def _mlp(self, mlp: Mlp) -> Mlp:
        return replace(mlp, intermediate_size=self.width(mlp.intermediate_size))


def widest_gather(spec: ModelSpec) -> int:
    """Return the most numbers of a token that ranks gather amid a layer of a whole model."""
    widths = [spec.hidden_size, *(attention.query_size for attention in spec.attentions)]
    for layer in spec.layers:
        if layer.dense is not None:
            widths.append(layer.dense.intermediate_size)
        if layer.recurrent is not None:
            widths.append(layer.recurrent.mixed_size)
        if layer.experts is not None:
            widths.append(layer.experts.top_k * layer.experts.intermediate_size)
    return max(widths)


def split_unsupported_reason(spec: ModelSpec, num_ranks: int) -> str | None:
    """Return what keeps a model from being split over ranks; None if nothing does."""
    if spec.bidirectional:
        return "model: an encoder is not supported with tensor_parallel"
    return next((found for found in _sizes(spec, num_ranks) if found is not None), None)


def _sizes(spec: ModelSpec, num_ranks: int) -> Iterator[str | None]:
    """Yield why ranks cannot share the heads of a layer, or its numbers."""
    got = f"got {num_ranks}"
    for attention in spec.attentions:
        # A norm over all heads reads each of them once.
        may_repeat = not attention.norms_all_heads
        yield _heads("KV heads", attention.num_kv_heads, num_ranks, may_repeat=may_repeat)
        yield _heads("heads", attention.num_heads, num_ranks, may_repeat=False)
    widths = [spec.hidden_size, spec.vocab_size]
    for layer in spec.layers:
        parts = (layer.dense, layer.experts)
        widths += [part.intermediate_size for part in parts if part is not None]
        match layer.recurrent:
            case ShortConv():
                widths.append(layer.recurrent.channels)
            case GatedDelta():
                widths.append(layer.recurrent.num_key_heads)
            case Mamba2():
                widths.append(layer.recurrent.num_heads)
                yield _heads("groups of heads", layer.recurrent.num_groups, num_ranks)
    is_met = num_ranks <= min(widths)
    yield None if is_met else f"tensor_parallel: expected at most {min(widths)}, {got}"


def _heads(what: str, num: int, num_ranks: int, *, may_repeat: bool = True) -> str | None:
    """Return why ranks cannot share heads evenly; with `may_repeat` they may hold the same one."""
    if num % num_ranks == 0 or (may_repeat and num_ranks % num == 0):
        return None
    expected = f"a divisor{' or a multiple' if may_repeat else ''} of the model's {num} {what}"
    return f"tensor_parallel: expected {expected}, got {num_ranks}"
