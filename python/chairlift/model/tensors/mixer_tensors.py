"""The tensors of what mixes tokens in a layer: attention, or what has a recurrent state."""

from dataclasses import replace
from itertools import chain

import torch
from torch import Tensor

from chairlift.model.specs.layer_parts import Attention
from chairlift.model.specs.recurrence import GatedDelta, Mamba2, Recurrent, ShortConv
from chairlift.model.specs.share import Rows
from chairlift.model.tensors.names import LayerNames
from chairlift.model.tensors.part_tensors import (
    Interleaved,
    LayerTensors,
    LinearTensors,
    NumberTensors,
    Ones,
    RecurrentTensors,
)


def with_attention(
    tensors: LayerTensors, attention: Attention, hidden: int, names: LayerNames
) -> LayerTensors:
    """Return the tensors of a layer with those of its attention."""
    query, kv, head_dim = attention.query_size, attention.kv_size, attention.head_dim
    has_keys, has_gate = attention.kv_of is None, attention.has_gate
    num_kv = 0 if not has_keys else 1 if attention.keys_are_values else 2
    outputs = [Rows(2 * query if has_gate else query), *[Rows(kv, head_dim)] * num_kv]
    qkv = names.linear("qkv", *outputs, inputs=hidden, bias=attention.qkv_bias)
    if has_gate:
        # Of each head a query, then a gate; all gates come first here.
        interleaved = Interleaved(attention.num_heads, (head_dim,) * 2, (1, 0))
        parts = (Rows(query), Rows(query)), *qkv.parts[1:]
        qkv = qkv._replace(interleaved=interleaved, parts=parts)
    tensors = replace(
        tensors,
        qkv=qkv,
        output=names.linear("output", hidden, inputs=query, bias=attention.out_bias),
    )
    if attention.qk_norm is not None:
        is_of_all = attention.norms_all_heads
        query_norm = names.weight("query_norm", query if is_of_all else head_dim)
        tensors = replace(tensors, query_norm=query_norm)
        if has_keys:
            key_norm = names.weight("key_norm", kv if is_of_all else head_dim)
            tensors = replace(tensors, key_norm=key_norm)
    if attention.heads.norms_values:
        tensors = replace(tensors, value_norm=Ones(head_dim))
    if attention.has_sinks:
        sinks = names.numbers("sinks", attention.num_heads)
        tensors = replace(tensors, sinks=sinks._replace(rows=(Rows(attention.num_heads),)))
    return tensors


def recurrent_tensors(mixer: Recurrent, hidden: int, names: LayerNames) -> RecurrentTensors:
    """Return the tensors of a mixer with a recurrent state."""
    match mixer:
        case ShortConv():
            return _short_conv(mixer, hidden, names)
        case Mamba2():
            return _mamba2(mixer, hidden, names)
    return _gated_delta(mixer, hidden, names)


def mixed_rows(mixer: Recurrent) -> tuple[Rows, ...]:
    """Return what a mixer computes of a token, where a rank computes some of each part of it."""
    match mixer:
        case ShortConv():
            return (Rows(mixer.channels),)
        case Mamba2():
            return (Rows(mixer.inner_size, mixer.head_dim),)
    return _value_rows(mixer, mixer.value_dim)


def _short_conv(mixer: ShortConv, hidden: int, names: LayerNames) -> RecurrentTensors:
    channels, bias = mixer.channels, mixer.bias
    return RecurrentTensors(
        projection=names.linear("projection", *[channels] * 3, inputs=hidden, bias=bias),
        mixed_output=names.linear("mixed_output", hidden, inputs=channels, bias=bias),
        conv=_conv(names, mixer.num_taps, [channels], mixed_rows(mixer)),
        conv_bias=_conv_bias(names, mixed_rows(mixer)) if bias else None,
    )


def _mamba2(mixer: Mamba2, hidden: int, names: LayerNames) -> RecurrentTensors:
    heads, bias, (inner,) = Rows(mixer.num_heads), mixer.bias, mixed_rows(mixer)
    of_groups = Rows(mixer.num_groups * mixer.state_dim, mixer.state_dim)
    convolved = inner, of_groups, of_groups
    return RecurrentTensors(
        projection=names.linear("projection", inner, *convolved, heads, inputs=hidden, bias=bias),
        mixed_output=names.linear("mixed_output", hidden, inputs=inner.num, bias=bias),
        conv=_conv(names, mixer.num_taps, [mixer.conv_size], convolved),
        conv_bias=_conv_bias(names, convolved) if mixer.conv_bias else None,
        rate=_rate(names, (heads,)),
        dt_bias=_of_heads(names, "dt_bias", (heads,)),
        state_norm=_state_norm(names, inner.num) if mixer.has_norm else None,
        skip=_of_heads(names, "skip", (heads,)),
    )


def _gated_delta(mixer: GatedDelta, hidden: int, names: LayerNames) -> RecurrentTensors:
    values, heads = _value_rows(mixer, mixer.value_dim), _value_rows(mixer, 1)
    keys = (Rows(mixer.key_size, mixer.key_dim),)
    num_heads = mixer.num_key_heads
    beta_alpha = _split_heads(names, "beta_alpha", num_heads, [heads, heads], hidden)
    channels = [mixer.key_size, mixer.key_size, mixer.value_size]
    return RecurrentTensors(
        projection=_split_heads(
            names, "projection", num_heads, [keys, keys, values, values], hidden
        ),
        mixed_output=names.linear("mixed_output", hidden, inputs=mixer.value_size),
        conv=_conv(names, mixer.num_taps, channels, (*keys, *keys, *values)),
        beta_alpha=beta_alpha._replace(is_exact=True),
        rate=_rate(names, heads),
        dt_bias=_of_heads(names, "dt_bias", heads),
        state_norm=_state_norm(names, mixer.value_dim),
    )


def _value_rows(mixer: GatedDelta, size: int) -> tuple[Rows, ...]:
    """Return the rows of all value heads, so many of each: those of a key head stay together."""
    num_keys = mixer.num_key_heads
    num_values = mixer.num_value_heads // num_keys
    if mixer.interleaved_heads:
        return (Rows(num_keys * size, size),) * num_values
    return (Rows(num_keys * num_values * size, num_values * size),)


def _conv(
    names: LayerNames, num_taps: int, channels: list[int], rows: tuple[Rows, ...]
) -> NumberTensors:
    """Return the weights of a convolution: of all channels, or of each part of them."""
    stems = names.of("conv")
    sizes = channels if len(stems) == len(channels) else [sum(channels)]
    stored = {f"{n}.weight": (s, 1, num_taps) for n, s in zip(stems, sizes, strict=True)}
    return NumberTensors(stored, pack=_taps_first, rows=rows)


def _conv_bias(names: LayerNames, rows: tuple[Rows, ...]) -> NumberTensors:
    size = sum(part.num for part in rows)
    return NumberTensors({f"{names.of('conv')[0]}.bias": (size,)}, rows=rows)


def _taps_first(conv: Tensor) -> Tensor:
    """Return `[num_taps, channels]` from `[channels, 1, num_taps]`."""
    return conv.squeeze(1).T.contiguous()


def _rate(names: LayerNames, heads: tuple[Rows, ...]) -> NumberTensors:
    pack = torch.neg if names.table.rates_are_negative else torch.exp
    return _of_heads(names, "rate", heads)._replace(pack=pack)


def _of_heads(names: LayerNames, part: str, heads: tuple[Rows, ...]) -> NumberTensors:
    """Return a number of each head."""
    return names.numbers(part, sum(rows.num for rows in heads))._replace(rows=heads)


def _state_norm(names: LayerNames, size: int) -> NumberTensors:
    return NumberTensors({f"{names.of('state_norm')[0]}.weight": (size,)})


def _split_heads(
    names: LayerNames, part: str, num_heads: int, outputs: list[tuple[Rows, ...]], hidden: int
) -> LinearTensors:
    """Return what maps a token to some outputs of all heads, one before the next.

    One tensor has the rows of one head after another; of several the first has the outputs that
    the others do not have.
    """
    num_first = len(outputs) - len(names.of(part)) + 1
    first = tuple(chain.from_iterable(outputs[:num_first]))
    parts = first, *outputs[num_first:]
    sizes = [sum(rows.num for rows in each) for each in parts]
    tensors = names.linear(part, *sizes, inputs=hidden)._replace(parts=parts)
    if len(parts) > 1:
        return tensors
    of_a_head = tuple(sum(rows.num for rows in each) // num_heads for each in outputs)
    interleaved = Interleaved(num_heads, of_a_head, tuple(range(len(outputs))))
    return tensors._replace(interleaved=interleaved)
