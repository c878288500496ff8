"""What a model family is, and the parts of config.json that several families share."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from chairlift.model.fields import Fields, either
from chairlift.model.spec import (
    Attention,
    Embedding,
    Head,
    LayerSpec,
    LinearScaling,
    Llama3Scaling,
    ModelSpec,
    RmsNorm,
    Rope,
)
from chairlift.model.tensors import CheckpointNames


class Family(NamedTuple):
    """A way to read config.json and a checkpoint."""

    spec: Callable[[Fields], ModelSpec]
    """Raises ModelError with the name of a field that a spec cannot express."""
    names: CheckpointNames
    defaults: Mapping[str, Any] = {}
    """The values of `transformers` for fields that config.json leaves out."""


LLAMA_NAMES = CheckpointNames(
    embedding="model.embed_tokens",
    final_norm="model.norm",
    head="lm_head",
    layers="model.layers",
    attention_norm="input_layernorm",
    query="self_attn.q_proj",
    key="self_attn.k_proj",
    value="self_attn.v_proj",
    query_norm="self_attn.q_norm",
    key_norm="self_attn.k_norm",
    output="self_attn.o_proj",
    feed_forward_norm="post_attention_layernorm",
    gate="mlp.gate_proj",
    up="mlp.up_proj",
    down="mlp.down_proj",
)


def decoder(fields: Fields, layers: Sequence[LayerSpec]) -> ModelSpec:
    """Build the spec of a decoder with these layers."""
    return ModelSpec(
        embedding=Embedding(fields.integer("vocab_size"), fields.integer("hidden_size")),
        layers=tuple(layers),
        final_norm=rms_norm(fields),
        head=Head(is_tied=fields.flag("tie_word_embeddings")),
    )


def rms_norm(fields: Fields) -> RmsNorm:
    """Read the norm of a model."""
    return RmsNorm(fields.number("rms_norm_eps", default=1e-6))


def attention(
    fields: Fields, *, qk_norm: bool = False, qkv_bias: bool = False, out_bias: bool = False
) -> Attention:
    """Read the attention of a layer that sees all tokens."""
    num_heads = fields.integer("num_attention_heads")
    num_kv_heads = fields.integer("num_key_value_heads", default=num_heads)
    if num_heads % num_kv_heads:
        fields.fail("num_key_value_heads", f"a divisor of {num_heads}")
    return Attention(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=fields.optional_integer("head_dim") or fields.integer("hidden_size") // num_heads,
        rope=rope(fields),
        qk_norm=rms_norm(fields) if qk_norm else None,
        qkv_bias=qkv_bias,
        out_bias=out_bias,
    )


def with_windows(layer: LayerSpec, windows: Sequence[int | None]) -> list[LayerSpec]:
    """Return one layer per window, equal but for that."""
    return [replace(layer, attention=replace(layer.attention, window=window)) for window in windows]


def effective_window(fields: Fields, window: int | None) -> int | None:
    """Return the window, or None where no sequence grows longer: it needs no KV group then."""
    longest = fields.integer("max_position_embeddings")
    return window if window is not None and window < longest else None


def window_per_layer(fields: Fields) -> list[int | None]:
    """Read the layers of Qwen that have a window.

    `layer_types` names the kind of each layer; without it `max_window_layers` layers without a
    window come first.
    """
    num_layers = fields.integer("num_hidden_layers")
    window = (
        fields.optional_integer("sliding_window") if fields.flag("use_sliding_window") else None
    )
    kinds = fields.values.get("layer_types")
    if kinds is None:
        first = fields.integer("max_window_layers", least=0)
        windows = [window if layer >= first else None for layer in range(num_layers)]
    else:
        windows = _windows_by_kind(fields, kinds, num_layers, window)
    return [effective_window(fields, window) for window in windows]


def _windows_by_kind(
    fields: Fields, kinds: object, num_layers: int, window: int | None
) -> list[int | None]:
    if not isinstance(kinds, list) or len(kinds) != num_layers:
        fields.fail("layer_types", f"a list of {num_layers} names")
    by_kind = {"full_attention": None, "sliding_attention": window}
    if any(not isinstance(kind, str) or kind not in by_kind for kind in kinds):
        fields.fail("layer_types", f"a list of {either(by_kind)} alone")
    if window is None and "sliding_attention" in kinds:
        fields.fail("layer_types", "full_attention alone, since no sliding_window is in use")
    return [by_kind[kind] for kind in kinds]


def rope(fields: Fields) -> Rope:
    """Read the position embedding that all layers share."""
    values = _rope_fields(fields)
    if values.number("partial_rotary_factor", default=1.0) != 1.0:
        values.fail("partial_rotary_factor", "1")
    theta = values.number("rope_theta", positive=True)
    match values.values["rope_type"]:
        case "default":
            return Rope(theta)
        case "linear":
            return Rope(theta, LinearScaling(values.number("factor", positive=True)))
        case "llama3":
            return Rope(theta, _llama3_scaling(fields, values))
        case _:
            values.fail("rope_type", "default, linear or llama3")


def _rope_fields(fields: Fields) -> Fields:
    """Collect the fields of RoPE: one object in new files, spread over several keys in old ones."""
    name = "rope_scaling" if fields.values.get("rope_scaling") else "rope_parameters"
    values = fields.values.get(name) or {}
    if not isinstance(values, dict) or any(isinstance(value, dict) for value in values.values()):
        fields.fail(name, "an object that holds for all layers")
    outer = {
        "rope_theta": fields.values.get("rope_theta") or 10_000.0,
        "rope_type": values.get("type") or "default",
        "partial_rotary_factor": fields.values.get("partial_rotary_factor"),
    }
    inner = {key: value for key, value in values.items() if value is not None}
    return Fields(fields.path, {**outer, **inner}, prefix=f"{name}.")


def _llama3_scaling(fields: Fields, values: Fields) -> Llama3Scaling:
    low = values.number("low_freq_factor", positive=True)
    high = values.number("high_freq_factor", positive=True)
    if high <= low:
        values.fail("high_freq_factor", f"a number above low_freq_factor, {low:g}")
    return Llama3Scaling(
        factor=values.number("factor", positive=True),
        low_freq_factor=low,
        high_freq_factor=high,
        original_max_position_embeddings=values.integer(
            "original_max_position_embeddings",
            default=fields.integer("max_position_embeddings"),
        ),
    )
