"""The tensors of what mixes tokens in a layer: attention, or what has a recurrent state."""

from dataclasses import replace

import torch
from torch import Tensor

from chairlift.model.specs.layer_parts import Attention
from chairlift.model.specs.recurrence import Mamba2, Recurrent, ShortConv
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
    outputs = [2 * query if has_gate else query, *[kv] * num_kv]
    qkv = names.linear("qkv", *outputs, inputs=hidden, bias=attention.qkv_bias)
    if has_gate:
        # Of each head a query, then a gate; all gates come first here.
        qkv = qkv._replace(interleaved=Interleaved(attention.num_heads, (head_dim,) * 2, (1, 0)))
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
        sinks = names.numbers("sinks", attention.num_heads)._replace(is_by_head=True)
        tensors = replace(tensors, sinks=sinks)
    return tensors


def recurrent_tensors(mixer: Recurrent, hidden: int, names: LayerNames) -> RecurrentTensors:
    """Return the tensors of a mixer with a recurrent state."""
    if isinstance(mixer, ShortConv):
        channels, bias = mixer.channels, mixer.bias
        return RecurrentTensors(
            projection=names.linear("projection", 3 * channels, inputs=hidden, bias=bias),
            mixed_output=names.linear("mixed_output", hidden, inputs=channels, bias=bias),
            conv=_conv(names, mixer.num_taps, channels),
            conv_bias=_conv_bias(names, channels) if bias else None,
        )
    if isinstance(mixer, Mamba2):
        size, heads, bias = mixer.inner_size, mixer.num_heads, mixer.bias
        return RecurrentTensors(
            projection=names.linear("projection", mixer.projected_size, inputs=hidden, bias=bias),
            mixed_output=names.linear("mixed_output", hidden, inputs=size, bias=bias),
            conv=_conv(names, mixer.num_taps, mixer.conv_size),
            conv_bias=_conv_bias(names, mixer.conv_size) if mixer.conv_bias else None,
            rate=_rate(names, heads),
            dt_bias=names.numbers("dt_bias", heads),
            state_norm=_state_norm(names, size) if mixer.has_norm else None,
            skip=names.numbers("skip", heads),
        )
    heads, values = mixer.num_value_heads, mixer.value_size
    ratio = heads // mixer.num_key_heads
    sizes = [mixer.key_dim, mixer.key_dim, *[ratio * mixer.value_dim] * 2]
    beta_alpha = _split_heads(names, "beta_alpha", mixer.num_key_heads, [ratio, ratio], hidden)
    return RecurrentTensors(
        projection=_split_heads(names, "projection", mixer.num_key_heads, sizes, hidden),
        mixed_output=names.linear("mixed_output", hidden, inputs=values),
        conv=_conv(names, mixer.num_taps, mixer.key_size, mixer.key_size, values),
        beta_alpha=beta_alpha._replace(is_exact=True),
        rate=_rate(names, heads),
        dt_bias=names.numbers("dt_bias", heads),
        state_norm=_state_norm(names, mixer.value_dim),
    )


def _conv(names: LayerNames, num_taps: int, *channels: int) -> NumberTensors:
    """Return the weights of a convolution: of all channels, or of each part of them."""
    stems = names.of("conv")
    sizes = channels if len(stems) == len(channels) else (sum(channels),)
    stored = {f"{n}.weight": (s, 1, num_taps) for n, s in zip(stems, sizes, strict=True)}
    return NumberTensors(stored, pack=_taps_first)


def _conv_bias(names: LayerNames, channels: int) -> NumberTensors:
    return NumberTensors({f"{names.of('conv')[0]}.bias": (channels,)})


def _taps_first(conv: Tensor) -> Tensor:
    """Return `[num_taps, channels]` from `[channels, 1, num_taps]`."""
    return conv.squeeze(1).T.contiguous()


def _rate(names: LayerNames, num_heads: int) -> NumberTensors:
    pack = torch.neg if names.table.rates_are_negative else torch.exp
    return names.numbers("rate", num_heads, pack=pack)


def _state_norm(names: LayerNames, size: int) -> NumberTensors:
    return NumberTensors({f"{names.of('state_norm')[0]}.weight": (size,)})


def _split_heads(
    names: LayerNames, part: str, num_heads: int, sizes: list[int], hidden: int
) -> LinearTensors:
    """Return what maps a token to parts of some sizes of each head, one part before the next.

    One tensor has the rows of one head after another; of several the first has the parts that the
    others do not have.
    """
    num_names = len(names.of(part))
    if num_names == 1:
        tensors = names.linear(part, num_heads * sum(sizes), inputs=hidden)
        interleaved = Interleaved(num_heads, tuple(sizes), tuple(range(len(sizes))))
        return tensors._replace(interleaved=interleaved)
    num_first = len(sizes) - num_names + 1
    of_a_head = [sum(sizes[:num_first]), *sizes[num_first:]]
    return names.linear(part, *(num_heads * size for size in of_a_head), inputs=hidden)
