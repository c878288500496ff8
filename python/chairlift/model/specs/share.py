"""The part of a model that one rank holds: some output columns of every linear layer.

Heads of attention go with their KV head, the numbers inside a feed-forward and the vocabulary by
columns. A column is summed over all inputs in the order of one process, and nothing is added across
ranks, so that each number has the same bits however many ranks there are.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from chairlift.model.specs.layer_parts import Experts, Mlp
from chairlift.model.specs.model_spec import LayerSpec, ModelSpec


@dataclass(frozen=True, slots=True)
class Share:
    """Which columns of a layer a rank holds."""

    rank: int
    num_ranks: int

    def columns(self, width: int) -> slice:
        """Return the columns of this rank, of so many."""
        rank, num_ranks = self.rank, self.num_ranks
        return slice(rank * width // num_ranks, (rank + 1) * width // num_ranks)

    def width(self, width: int) -> int:
        """Return how many columns this rank holds, of so many."""
        columns = self.columns(width)
        return int(columns.stop - columns.start)

    def widths(self, width: int) -> list[int]:
        """Return how many columns each rank holds, of so many."""
        num_ranks = self.num_ranks
        return [Share(rank, num_ranks).width(width) for rank in range(num_ranks)]

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
        return replace(layer, attention=attention, feed_forward=feed_forward)

    def _mlp(self, mlp: Mlp) -> Mlp:
        return replace(mlp, intermediate_size=self.width(mlp.intermediate_size))


def split_unsupported_reason(spec: ModelSpec, num_ranks: int) -> str | None:
    """Return what keeps a model from being split over ranks; None if nothing does."""
    if spec.bidirectional:
        return "model: an encoder is not supported with tensor_parallel"
    for layer in spec.layers:
        found = next((name for name, is_there in _checks(layer) if is_there), None)
        if found is not None:
            return f"model: {found} are not supported with tensor_parallel"
    return next((found for found in _sizes(spec, num_ranks) if found is not None), None)


def _checks(layer: LayerSpec) -> tuple[tuple[str, bool], ...]:
    """Return what no rank can compute a part of, and whether a layer has it."""
    attention = layer.attention
    return (
        ("recurrent states", layer.recurrent is not None),
        ("norms of all heads", attention is not None and attention.norms_all_heads),
        ("gates of attention", attention is not None and attention.has_gate),
    )


def _sizes(spec: ModelSpec, num_ranks: int) -> Iterator[str | None]:
    """Yield why ranks cannot share the heads of a layer, or its numbers."""
    got = f"got {num_ranks}"
    for attention in spec.attentions:
        num = attention.num_kv_heads
        is_met = num % num_ranks == 0
        expected = f"tensor_parallel: expected a divisor of the model's {num} KV heads, {got}"
        yield None if is_met else expected
    widths = [spec.hidden_size, spec.vocab_size]
    for layer in spec.layers:
        parts = (layer.dense, layer.experts)
        widths += [part.intermediate_size for part in parts if part is not None]
    is_met = num_ranks <= min(widths)
    yield None if is_met else f"tensor_parallel: expected at most {min(widths)}, {got}"
