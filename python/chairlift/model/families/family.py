"""What a model family is, and the parts of config.json that several families share."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from chairlift.checkpoints.files.fields import Fields
from chairlift.checkpoints.files.names import CheckpointNames
from chairlift.model.families.rope import rope
from chairlift.model.specs.layer_parts import Attention, Experts, Mlp, NormSpec, RmsNorm
from chairlift.model.specs.model_spec import LayerSpec, ModelSpec
from chairlift.model.specs.vocabulary import Embedding, Head


class Family(NamedTuple):
    """A way to read config.json and a checkpoint."""

    spec: Callable[[Fields], ModelSpec]
    """Raises ModelError with the name of a field that a spec cannot express."""
    names: CheckpointNames
    defaults: Mapping[str, Any] = {}
    """The values of `transformers` for fields that config.json leaves out."""
    text: str = ""
    """The object of config.json with the fields of the text model, where there are other parts."""
    ignored: tuple[str, ...] = ()
    """How the names of tensors begin that belong to other parts."""
    ignores_code: bool = False
    """Published checkpoints bring code (`auto_map`) that computes the same, and is not run."""


LLAMA_NAMES = CheckpointNames(
    embedding="model.embed_tokens",
    final_norm="model.norm",
    head="lm_head",
    layers="model.layers",
    parts={},
).with_parts(
    attention_norm="input_layernorm",
    qkv=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    query_norm="self_attn.q_norm",
    key_norm="self_attn.k_norm",
    output="self_attn.o_proj",
    feed_forward_norm="post_attention_layernorm",
    gate_up=("mlp.gate_proj", "mlp.up_proj"),
    down="mlp.down_proj",
    router=("mlp.gate", "mlp.shared_expert_gate"),
    expert_gate_up=("mlp.experts.{}.gate_proj", "mlp.experts.{}.up_proj"),
    expert_down="mlp.experts.{}.down_proj",
    shared_gate_up=("mlp.shared_experts.gate_proj", "mlp.shared_experts.up_proj"),
    shared_down="mlp.shared_experts.down_proj",
)


def state_names(at: str) -> dict[str, str]:
    """Return what most hybrids call the numbers of a recurrent state, whose names begin so."""
    numbers = {"rate": "A_log", "dt_bias": "dt_bias", "skip": "D", "state_norm": "norm"}
    return {part: f"{at}.{name}" for part, name in numbers.items()}


_ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu2": "relu2",
}
"""What the kernels call the activations of `transformers`."""


def decoder(
    fields: Fields,
    layers: Sequence[LayerSpec],
    *,
    final_norm: NormSpec | None = None,
    embedding_multiplier: float = 1.0,
    logits_multiplier: float = 1.0,
    logits_soft_cap: float | None = None,
) -> ModelSpec:
    """Build the spec of a decoder with these layers."""
    # `transformers` reads both for every architecture.
    if fields.values.get("is_causal") is False:
        fields.fail("is_causal", "true")
    if fields.values.get("per_layer_config"):
        fields.fail("per_layer_config", "null for this architecture")
    vocab_size, hidden = fields.integer("vocab_size"), fields.integer("hidden_size")
    return ModelSpec(
        embedding=Embedding(vocab_size, hidden, embedding_multiplier),
        layers=tuple(layers),
        final_norm=final_norm or rms_norm(fields),
        head=Head(fields.flag("tie_word_embeddings"), logits_multiplier, logits_soft_cap),
    )


def rms_norm(fields: Fields, *, plus_one: bool = False) -> RmsNorm:
    """Read the norm of a model."""
    return RmsNorm(fields.number("rms_norm_eps", default=1e-6), plus_one)


def norms_less_one(fields: Fields) -> bool:
    """Return whether weights of norms are stored less 1, as Gemma and Qwen 3.5 do in safetensors.

    GGUF files have them whole, of which the reader of their metadata makes this field.
    """
    return not fields.flag("norms_are_whole")


def mlp(fields: Fields, *, bias: bool = False, gated: bool = True, key: str = "hidden_act") -> Mlp:
    """Read the feed-forward of a layer; the activation is in the field `key`."""
    return Mlp(fields.integer("intermediate_size"), activation(fields, key), gated, bias)


def experts(
    fields: Fields,
    scores: str,
    *,
    num: str = "num_experts",
    top_k: str = "num_experts_per_tok",
    width: str = "moe_intermediate_size",
    key: str = "hidden_act",
) -> Experts:
    """Read a mixture of experts.

    Args:
        fields: Fields of config.json.
        scores: What weighs an expert; see `Experts`.
        num: The field with the number of experts.
        top_k: The field with how many of them each token uses.
        width: The field with the size of an expert.
        key: The field with the activation.
    """
    num_experts, chosen = fields.integer(num), fields.integer(top_k)
    if chosen > num_experts:
        fields.fail(top_k, f"at most {num_experts}")
    return Experts(num_experts, chosen, fields.integer(width), scores, activation(fields, key))


def activation(fields: Fields, key: str = "hidden_act") -> str:
    """Read what the kernels call an activation."""
    return _ACTIVATIONS[fields.choice(key, _ACTIVATIONS, default="silu")]


def expect_silu(fields: Fields, key: str = "hidden_act") -> None:
    """Refuse another activation, where no field says it in `transformers` or in the kernels."""
    if activation(fields, key) != "silu":
        fields.fail(key, "silu")


def attention(
    fields: Fields,
    *,
    qk_norm: RmsNorm | None = None,
    qkv_bias: bool = False,
    out_bias: bool = False,
    kind: str | None = None,
    theta: float | None = None,
    partial: bool = False,
) -> Attention:
    """Read the attention of a layer that sees all tokens.

    Args:
        fields: Fields of config.json.
        qk_norm: The norm of queries and keys.
        qkv_bias: Whether query, key and value have biases.
        out_bias: Whether the output has one.
        kind: Kind of the layer in `layer_types`, where kinds have different position embeddings.
        theta: See `rope`.
        partial: See `rope`.
    """
    num_heads = fields.integer("num_attention_heads")
    num_kv_heads = fields.integer("num_key_value_heads", default=num_heads)
    if num_heads % num_kv_heads:
        fields.fail("num_key_value_heads", f"a divisor of {num_heads}")
    hidden_size = fields.integer("hidden_size")
    head_dim = fields.optional_integer("head_dim") or hidden_size // num_heads
    if head_dim == 0:
        fields.fail("num_attention_heads", f"at most hidden_size, {hidden_size}, or a head_dim")
    return Attention(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        rope=rope(fields, head_dim, kind=kind, theta=theta, partial=partial),
        qk_norm=qk_norm,
        qkv_bias=qkv_bias,
        out_bias=out_bias,
    )


def with_windows(layer: LayerSpec, windows: Sequence[int | None]) -> list[LayerSpec]:
    """Return one layer per window, equal but for that."""
    return [layer.with_window(window) for window in windows]


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
    first = fields.integer("max_window_layers", minimum=0)
    given = [SLIDING if window and layer >= first else FULL for layer in range(num_layers)]
    kinds = layer_kinds(fields, given)
    return windows_by_kind(fields, kinds, window)


FULL = "full_attention"
SLIDING = "sliding_attention"


def layer_kinds(fields: Fields, default: Sequence[str]) -> list[str]:
    """Read the kind of each layer from `layer_types`; where that is absent, there are defaults."""
    kinds = fields.values.get("layer_types")
    if kinds is None:
        return list(default)
    if not isinstance(kinds, list) or len(kinds) != len(default):
        fields.fail("layer_types", f"a list of {len(default)} names")
    if any(not isinstance(kind, str) or kind not in {FULL, SLIDING} for kind in kinds):
        fields.fail("layer_types", f"a list of {FULL} or {SLIDING} alone")
    return kinds


def kinds_by_pattern(fields: Fields, default: int, *, fixed: bool = False) -> list[str]:
    """Read the kind of each layer: by default every n-th one sees all tokens.

    Args:
        fields: Fields of config.json.
        default: That n, unless `sliding_window_pattern` says another one.
        fixed: `transformers` does not read that field.
    """
    pattern = fields.integer("sliding_window_pattern", default=default)
    if fixed and pattern != default and fields.values.get("layer_types") is None:
        fields.fail("sliding_window_pattern", f"{default}, or layer_types")
    num_layers = fields.integer("num_hidden_layers")
    given = [FULL if (layer + 1) % pattern == 0 else SLIDING for layer in range(num_layers)]
    return layer_kinds(fields, given)


def windows_by_kind(fields: Fields, kinds: Sequence[str], window: int | None) -> list[int | None]:
    """Return the window of each layer, which those that see all tokens do not have."""
    if window is None and SLIDING in kinds:
        fields.fail("layer_types", "full_attention alone, since no sliding_window is in use")
    sliding = effective_window(fields, window)
    return [sliding if kind == SLIDING else None for kind in kinds]
