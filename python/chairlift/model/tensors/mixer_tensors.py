"""The tensors of what mixes tokens in a layer: attention, or what has a recurrent state."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from chairlift.checkpoints.files.names import CheckpointNames
from chairlift.checkpoints.files.stored import Shape
from chairlift.model.specs.layer_parts import Attention
from chairlift.model.specs.recurrence import Mamba2, Recurrent, ShortConv
from chairlift.model.tensors.linear_tensors import Interleaved, LinearTensors, NormTensor, linear


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
    rates_are_negative: bool = False
    """As in `CheckpointNames`."""

    def parts(self) -> Iterator[NormTensor | LinearTensors]:
        """Yield each part but single numbers."""
        yield self.projection
        yield self.output
        if self.b_a is not None:
            yield self.b_a


class AttentionTensors(NamedTuple):
    """The tensors of attention."""

    qkv: LinearTensors | None
    output: LinearTensors | None
    query_norm: NormTensor | None = None
    key_norm: NormTensor | None = None
    sinks: Mapping[str, Shape] = {}


NO_ATTENTION = AttentionTensors(None, None)


def attention_tensors(
    attention: Attention, hidden: int, names: CheckpointNames, at: str
) -> AttentionTensors:
    """Return the tensors of attention, whose names begin with `at`."""
    query, kv = attention.query_size, attention.kv_size
    has_own, has_values = attention.kv_of is None, not attention.keys_are_values

    def head_norm(name: str, num_heads: int) -> NormTensor | None:
        if attention.qk_norm is None:
            return None
        size = attention.head_dim * (num_heads if attention.norms_all_heads else 1)
        return NormTensor(at + name, size, attention.qk_norm)

    qkv = linear(
        at,
        (names.query, 2 * query if attention.has_gate else query),
        *([(names.key, kv)] if has_own else []),
        *([(names.value, kv)] if has_own and has_values else []),
        fused=names.qkv,
        inputs=hidden,
        bias=attention.qkv_bias,
    )
    if attention.has_gate:
        # Of each head a query, then a gate; all gates come first here.
        sizes = attention.head_dim, attention.head_dim
        qkv = qkv._replace(interleaved=Interleaved(attention.num_heads, sizes, (1, 0)))
    return AttentionTensors(
        qkv,
        linear(at, (names.output, hidden), inputs=query, bias=attention.out_bias),
        head_norm(names.query_norm, attention.num_heads),
        head_norm(names.key_norm, attention.num_kv_heads) if has_own else None,
        {at + names.sinks: (attention.num_heads,)} if attention.has_sinks else {},
    )


def recurrent_tensors(
    mixer: Recurrent, hidden: int, names: CheckpointNames, at: str
) -> RecurrentTensors:
    """Return the tensors of a mixer with a recurrent state, whose names begin with `at`."""
    output = (names.mixed, hidden)
    if isinstance(mixer, ShortConv):
        channels, bias = mixer.channels, mixer.bias
        numbers = {"conv_weight": _conv_weights(at, names, (channels,), mixer.num_taps)}
        if bias:
            numbers["conv_bias"] = {f"{at}{names.conv[0]}.bias": (channels,)}
        return RecurrentTensors(
            linear(at, (names.projection[0], 3 * channels), inputs=hidden, bias=bias),
            linear(at, output, inputs=channels, bias=bias),
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
        "rate": {f"{delta}{names.rate}": (num_heads,)},
        "dt_bias": {f"{delta}{names.step_bias}": (num_heads,)},
        "norm": {f"{delta}{names.state_norm}.weight": (mixer.value_dim,)},
    }
    b_a = _heads_apart(at, names.b_a, mixer.num_key_heads, (ratio, ratio), hidden)
    out = linear(at, output, inputs=values)
    return RecurrentTensors(projection, out, numbers, b_a, names.rates_are_negative)


def _mamba_tensors(mixer: Mamba2, hidden: int, names: CheckpointNames, at: str) -> RecurrentTensors:
    own, num_heads = at + names.delta, mixer.num_heads
    numbers: dict[str, dict[str, Shape]] = {
        "conv_weight": _conv_weights(at, names, (mixer.conv_size,), mixer.num_taps),
        "rate": {f"{own}{names.rate}": (num_heads,)},
        "dt_bias": {f"{own}{names.step_bias}": (num_heads,)},
        "skip": {f"{own}{names.skip}": (num_heads,)},
    }
    if mixer.has_norm:
        numbers["norm"] = {f"{own}{names.state_norm}.weight": (mixer.inner_size,)}
    if mixer.conv_bias:
        numbers["conv_bias"] = {f"{at}{names.conv[0]}.bias": (mixer.conv_size,)}
    projection = names.projection[0], mixer.projected_size
    return RecurrentTensors(
        linear(at, projection, inputs=hidden, bias=mixer.bias),
        linear(at, (names.mixed, hidden), inputs=mixer.inner_size, bias=mixer.bias),
        numbers,
        rates_are_negative=names.rates_are_negative,
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
        tensors = linear(at, (names[0], num_heads * sum(sizes)), inputs=hidden)
        order = tuple(range(len(sizes)))
        return tensors._replace(interleaved=Interleaved(num_heads, sizes, order))
    num_first = len(sizes) - len(names) + 1
    of_a_head = sum(sizes[:num_first]), *sizes[num_first:]
    outputs = (num_heads * size for size in of_a_head)
    return linear(at, *zip(names, outputs, strict=True), inputs=hidden)
