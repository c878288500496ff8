"""The tensors that a checkpoint holds for a model: their names, shapes, and how they are packed.

The check of a checkpoint, the loader and the memory plan read the same lists.
"""

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from chairlift.model.names import CheckpointNames
from chairlift.model.recurrence import Mamba2, Recurrent, ShortConv
from chairlift.model.spec import Attention, Experts, LayerNorm, LayerSpec, ModelSpec, NormSpec
from chairlift.model.stored import Shape


class NormTensor(NamedTuple):
    """The weight of a norm, and its bias."""

    name: str
    size: int
    norm: NormSpec

    @property
    def has_bias(self) -> bool:
        """Whether there is a bias."""
        return isinstance(self.norm, LayerNorm) and self.norm.has_bias

    def shapes(self) -> Iterator[tuple[str, Shape]]:
        """Yield the name and shape of each stored tensor."""
        yield f"{self.name}.weight", (self.size,)
        if self.has_bias:
            yield f"{self.name}.bias", (self.size,)


class Interleaved(NamedTuple):
    """How the rows of a tensor lie, which belong to several layers in turn."""

    num_groups: int
    sizes: tuple[int, ...]
    """Rows of each part of a group."""
    order: tuple[int, ...]
    """The parts, as they are wanted."""

    def apart(self, rows: Tensor) -> Tensor:
        """Return the rows `[num_groups * sum(sizes), ...]`, all of one part before the next."""
        groups = rows.view(self.num_groups, sum(self.sizes), *rows.shape[1:])
        parts = torch.split(groups, list(self.sizes), dim=1)
        return torch.cat([parts[part].reshape(-1, *rows.shape[1:]) for part in self.order])


class LinearTensors(NamedTuple):
    """Linear layers of the same inputs, which are packed into one with outputs side by side."""

    names: tuple[str, ...]
    outputs: tuple[int, ...]
    """Of each of the names."""
    inputs: int
    has_bias: bool = False
    interleaved: Interleaved | None = None
    """Of the rows of the first name."""

    def runs(self, block_types: Mapping[str, str]) -> Iterator[tuple["LinearTensors", str | None]]:
        """Yield neighbours that are stored alike, and the type of their blocks.

        Args:
            block_types: Of the tensors that stay as they are stored, by name; others are joined.
        """
        parts = zip(self.names, self.outputs, strict=True)
        for kind, run in groupby(parts, lambda part: block_types.get(f"{part[0]}.weight")):
            names, outputs = zip(*run, strict=True)
            order = self.interleaved if names[0] == self.names[0] else None
            yield LinearTensors(names, outputs, self.inputs, self.has_bias, order), kind

    def shapes(self) -> Iterator[tuple[str, Shape]]:
        """Yield the name and shape of each stored tensor."""
        for name, outputs in zip(self.names, self.outputs, strict=True):
            yield f"{name}.weight", (outputs, self.inputs)
            if self.has_bias:
                yield f"{name}.bias", (outputs,)


class LayerTensors(NamedTuple):
    """The tensors of one decoder layer."""

    attention_norm: NormTensor | None
    """Of the mixer, whatever that is."""
    qkv: LinearTensors | None
    """Of attention, as the next three."""
    query_norm: NormTensor | None
    key_norm: NormTensor | None
    output: LinearTensors | None
    attention_norm_after: NormTensor | None
    feed_forward_norm: NormTensor | None
    """None also where both halves share the norm of attention."""
    gate_up: LinearTensors | None
    """Without a gate: up alone; of the shared feed-forward where there are experts."""
    down: LinearTensors | None
    feed_forward_norm_after: NormTensor | None
    experts: "ExpertTensors | None" = None
    recurrent: "RecurrentTensors | None" = None

    def parts(self) -> "Iterator[NormTensor | LinearTensors]":
        """Yield each part but single numbers: of the choice of experts, of recurrent states."""
        for part in self:
            if isinstance(part, ExpertTensors | RecurrentTensors):
                yield from part.parts()
            elif part is not None:
                yield part


class RecurrentTensors(NamedTuple):
    """The tensors of what has a recurrent state."""

    projection: LinearTensors
    """What maps the inputs."""
    output: LinearTensors
    numbers: Mapping[str, Mapping[str, Shape]]
    """Names and shapes of what is read as float32, and joined along the first axis: `conv_weight`,
    perhaps `conv_bias`, and of the gated delta rule `rate`, `dt_bias` and `norm`."""
    b_a: LinearTensors | None = None
    """Never quantized: its errors would grow from token to token."""

    def parts(self) -> "Iterator[NormTensor | LinearTensors]":
        """Yield each part but single numbers."""
        yield self.projection
        yield self.output
        if self.b_a is not None:
            yield self.b_a


class ExpertTensors(NamedTuple):
    """The tensors of a mixture of experts."""

    router: LinearTensors
    gate_up: tuple[LinearTensors, ...]
    """Of each expert."""
    down: tuple[LinearTensors, ...]
    choice_bias: str | None
    choice_bias_shape: Shape

    def parts(self) -> "Iterator[NormTensor | LinearTensors]":
        """Yield each part."""
        yield self.router
        yield from self.gate_up
        yield from self.down


class ModelTensors(NamedTuple):
    """The tensors of a model; embedding and head have the same shape."""

    embedding: LinearTensors
    layers: tuple[LayerTensors, ...]
    final_norm: NormTensor
    head: LinearTensors | None
    """None of an encoder."""

    @classmethod
    def of(cls, spec: ModelSpec, names: CheckpointNames) -> "ModelTensors":
        """Return the tensors of a spec."""
        table = (spec.vocab_size,), spec.hidden_size
        return cls(
            embedding=LinearTensors((names.embedding,), *table),
            layers=tuple(
                _layer_tensors(layer, spec.hidden_size, names, f"{names.layers}.{number}.")
                for number, layer in enumerate(spec.layers)
            ),
            final_norm=NormTensor(names.final_norm, spec.hidden_size, spec.final_norm),
            head=None if spec.bidirectional else LinearTensors((names.head,), *table),
        )

    def shapes(self) -> dict[str, Shape]:
        """Return the name and shape of every stored tensor."""
        parts: list[NormTensor | LinearTensors] = [self.embedding, self.final_norm]
        if self.head is not None:
            parts.append(self.head)
        shapes: dict[str, Shape] = {}
        for layer in self.layers:
            parts.extend(layer.parts())
            if layer.experts is not None and layer.experts.choice_bias is not None:
                shapes[layer.experts.choice_bias] = layer.experts.choice_bias_shape
            if layer.recurrent is not None:
                for own in layer.recurrent.numbers.values():
                    shapes |= own
        return shapes | {name: shape for part in parts for name, shape in part.shapes()}


def _layer_tensors(layer: LayerSpec, hidden: int, names: CheckpointNames, at: str) -> LayerTensors:
    own, recurrent = layer.attention, layer.recurrent
    attention = _NO_ATTENTION if own is None else _attention_tensors(own, hidden, names, at)
    mixes, feeds = bool(layer.mixers), layer.feed_forward is not None

    def norm(name: str, is_there: bool) -> NormTensor | None:
        return NormTensor(at + name, hidden, layer.norm) if is_there else None

    has_own_norm = layer.norm_before and not layer.parallel
    experts, dense = layer.experts, layer.dense
    gate_up = down = None
    if dense is not None:
        gate, up, to_hidden = names.gate, names.up, names.down
        if experts is not None:
            gate, up, to_hidden = (
                f"{names.shared}.{name.rpartition('.')[2]}" for name in (gate, up, to_hidden)
            )
        inner = dense.intermediate_size
        gate_up = _linear(
            at,
            *([(gate, inner)] if dense.gated else []),
            (up, inner),
            fused=names.gate_up if dense.gated else "",
            inputs=hidden,
            bias=dense.bias,
        )
        down = _linear(at, (to_hidden, hidden), inputs=inner, bias=dense.bias)
    return LayerTensors(
        attention_norm=norm(names.attention_norm, mixes and layer.norm_before),
        **attention._asdict(),
        attention_norm_after=norm(names.attention_norm_after, mixes and layer.norm_after),
        feed_forward_norm=norm(names.feed_forward_norm, feeds and has_own_norm),
        gate_up=gate_up,
        down=down,
        feed_forward_norm_after=norm(names.feed_forward_norm_after, feeds and layer.norm_after),
        experts=None if experts is None else _expert_tensors(experts, hidden, names, at),
        recurrent=None if recurrent is None else _recurrent_tensors(recurrent, hidden, names, at),
    )


class _AttentionTensors(NamedTuple):
    """The tensors of attention."""

    qkv: LinearTensors | None
    output: LinearTensors | None
    query_norm: NormTensor | None = None
    key_norm: NormTensor | None = None


_NO_ATTENTION = _AttentionTensors(None, None)


def _linear(
    at: str, *parts: tuple[str, int], fused: str = "", inputs: int, bias: bool = False
) -> LinearTensors:
    own_names, outputs = zip(*parts, strict=True)
    if fused:
        own_names, outputs = (fused,), (sum(outputs),)
    return LinearTensors(tuple(at + name for name in own_names), outputs, inputs, bias)


def _attention_tensors(
    attention: Attention, hidden: int, names: CheckpointNames, at: str
) -> _AttentionTensors:
    query, kv = attention.query_size, attention.kv_size

    def head_norm(name: str, num_heads: int) -> NormTensor | None:
        if attention.qk_norm is None:
            return None
        size = attention.head_dim * (num_heads if attention.norms_all_heads else 1)
        return NormTensor(at + name, size, attention.qk_norm)

    qkv = _linear(
        at,
        (names.query, 2 * query if attention.has_gate else query),
        (names.key, kv),
        (names.value, kv),
        fused=names.qkv,
        inputs=hidden,
        bias=attention.qkv_bias,
    )
    if attention.has_gate:
        # Of each head a query, then a gate; all gates come first here.
        sizes = attention.head_dim, attention.head_dim
        qkv = qkv._replace(interleaved=Interleaved(attention.num_heads, sizes, (1, 0)))
    return _AttentionTensors(
        qkv,
        _linear(at, (names.output, hidden), inputs=query, bias=attention.out_bias),
        head_norm(names.query_norm, attention.num_heads),
        head_norm(names.key_norm, attention.num_kv_heads),
    )


def _recurrent_tensors(
    mixer: Recurrent, hidden: int, names: CheckpointNames, at: str
) -> RecurrentTensors:
    output = (names.mixed, hidden)
    if isinstance(mixer, ShortConv):
        channels, bias = mixer.channels, mixer.bias
        numbers = {"conv_weight": _conv_weights(at, names, (channels,), mixer.num_taps)}
        if bias:
            numbers["conv_bias"] = {f"{at}{names.conv[0]}.bias": (channels,)}
        return RecurrentTensors(
            _linear(at, (names.projection[0], 3 * channels), inputs=hidden, bias=bias),
            _linear(at, output, inputs=channels, bias=bias),
            numbers,
        )
    if isinstance(mixer, Mamba2):
        return _mamba_tensors(mixer, hidden, names, at)
    num_heads, values = mixer.num_value_heads, mixer.value_size
    ratio = num_heads // mixer.num_key_heads
    sizes = (mixer.key_dim, mixer.key_dim, *2 * (ratio * mixer.value_dim,))
    projection = _heads_apart(at, names.projection, mixer.num_key_heads, sizes, hidden)
    delta = at + names.delta
    numbers = {
        "conv_weight": _conv_weights(
            at, names, (mixer.key_size, mixer.key_size, values), mixer.num_taps
        ),
        "rate": {f"{delta}A_log": (num_heads,)},
        "dt_bias": {f"{delta}dt_bias": (num_heads,)},
        "norm": {f"{delta}{names.state_norm}.weight": (mixer.value_dim,)},
    }
    b_a = _heads_apart(at, names.b_a, mixer.num_key_heads, (ratio, ratio), hidden)
    return RecurrentTensors(projection, _linear(at, output, inputs=values), numbers, b_a)


def _mamba_tensors(mixer: Mamba2, hidden: int, names: CheckpointNames, at: str) -> RecurrentTensors:
    own, num_heads = at + names.delta, mixer.num_heads
    numbers: dict[str, dict[str, Shape]] = {
        "conv_weight": _conv_weights(at, names, (mixer.conv_size,), mixer.num_taps),
        "rate": {f"{own}A_log": (num_heads,)},
        "dt_bias": {f"{own}dt_bias": (num_heads,)},
        "skip": {f"{own}D": (num_heads,)},
    }
    if mixer.has_norm:
        numbers["norm"] = {f"{own}{names.state_norm}.weight": (mixer.inner_size,)}
    if mixer.conv_bias:
        numbers["conv_bias"] = {f"{at}{names.conv[0]}.bias": (mixer.conv_size,)}
    projection = names.projection[0], mixer.projected_size
    return RecurrentTensors(
        _linear(at, projection, inputs=hidden, bias=mixer.bias),
        _linear(at, (names.mixed, hidden), inputs=mixer.inner_size, bias=mixer.bias),
        numbers,
    )


def _conv_weights(
    at: str, names: CheckpointNames, channels: tuple[int, ...], num_taps: int
) -> dict[str, Shape]:
    """Return the weights of a convolution: of all channels, or of each part of them."""
    sizes = channels if len(names.conv) == len(channels) else (sum(channels),)
    parts = zip(names.conv, sizes, strict=True)
    return {f"{at}{name}.weight": (size, 1, num_taps) for name, size in parts}


def _heads_apart(
    at: str, names: tuple[str, ...], num_heads: int, sizes: tuple[int, ...], hidden: int
) -> LinearTensors:
    """Return what maps a token to parts of some sizes of each head, one part before the next.

    One tensor has the rows of one head after another; of several the first has the parts that the
    others do not have.
    """
    if len(names) == 1:
        tensors = _linear(at, (names[0], num_heads * sum(sizes)), inputs=hidden)
        order = tuple(range(len(sizes)))
        return tensors._replace(interleaved=Interleaved(num_heads, sizes, order))
    num_first = len(sizes) - len(names) + 1
    of_a_head = sum(sizes[:num_first]), *sizes[num_first:]
    outputs = (num_heads * size for size in of_a_head)
    return _linear(at, *zip(names, outputs, strict=True), inputs=hidden)


def _expert_tensors(
    experts: Experts, hidden: int, names: CheckpointNames, at: str
) -> ExpertTensors:
    inner = experts.intermediate_size
    gates = [names.expert_gate, names.expert_up] if experts.gated else [names.expert_up]
    outputs: tuple[int, ...] = (inner,) * len(gates)
    if names.expert_gate_up:
        gates, outputs = [names.expert_gate_up], (sum(outputs),)
    numbers = range(experts.num)
    return ExpertTensors(
        router=_linear(
            at,
            (names.router, experts.num),
            *([(names.shared_gate, 1)] if experts.shared_is_gated else []),
            inputs=hidden,
        ),
        gate_up=tuple(
            LinearTensors(tuple(at + gate.format(n) for gate in gates), outputs, hidden)
            for n in numbers
        ),
        down=tuple(
            LinearTensors((at + names.expert_down.format(n),), (hidden,), inner) for n in numbers
        ),
        choice_bias=at + names.choice_bias if experts.has_choice_bias else None,
        choice_bias_shape=(*(1,) * (names.choice_bias_axes - 1), experts.num),
    )
