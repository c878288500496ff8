"""Mixtures of experts: Qwen3-MoE, Mixtral, Granite-MoE and ERNIE 4.5."""

from collections.abc import Callable
from dataclasses import replace

from chairlift.checkpoints.files.fields import Fields
from chairlift.model.families.family import (
    FULL,
    LLAMA_NAMES,
    SLIDING,
    Family,
    attention,
    decoder,
    effective_window,
    experts,
    layer_kinds,
    mlp,
    rms_norm,
    windows_by_kind,
    with_windows,
)
from chairlift.model.families.granite import (
    DEFAULTS,
    granite_decoder,
    granite_experts,
    granite_layer,
)
from chairlift.model.specs.layer_parts import Experts, Mlp
from chairlift.model.specs.model_spec import LayerSpec, ModelSpec


def _mixed(
    fields: Fields, layer: LayerSpec, experts: Experts, is_sparse: Callable[[int], bool]
) -> list[LayerSpec]:
    """Return the layers, in the place of whose feed-forward some have experts."""
    sparse = replace(layer, feed_forward=experts)
    numbers = range(fields.integer("num_hidden_layers"))
    return [sparse if is_sparse(number) else layer for number in numbers]


def sparse_where(fields: Fields, sparse: Experts, dense: Mlp | Experts) -> list[Mlp | Experts]:
    """Return the feed-forward of each layer, of which `mlp_only_layers` have no experts."""
    step = fields.integer("decoder_sparse_step")
    without = fields.values.get("mlp_only_layers") or []
    if not isinstance(without, list) or any(not isinstance(number, int) for number in without):
        fields.fail("mlp_only_layers", "a list of numbers of layers")
    numbers = range(fields.integer("num_hidden_layers"))
    return [sparse if n not in without and (n + 1) % step == 0 else dense for n in numbers]


def _given(fields: Fields, *names: str) -> str:
    """Return the first of the names of one field that is there, or the last.

    In `transformers` a second name counts before the name of the class.
    """
    return next((name for name in names if fields.values.get(name) is not None), names[-1])


def _qwen3(fields: Fields) -> ModelSpec:
    bias, num_layers = fields.flag("attention_bias"), fields.integer("num_hidden_layers")
    heads = attention(fields, qk_norm=rms_norm(fields), qkv_bias=bias, out_bias=bias)
    layer = LayerSpec(heads, None, rms_norm(fields))
    sparse = replace(
        experts(fields, "softmax", num=_given(fields, "num_local_experts", "num_experts")),
        min_weight_sum=0.0 if fields.flag("norm_topk_prob") else None,
    )
    feed_forwards = sparse_where(fields, sparse, mlp(fields))
    layers = [replace(layer, feed_forward=feed_forward) for feed_forward in feed_forwards]
    # A window holds for every layer, whatever `max_window_layers` says.
    window = (
        fields.optional_integer("sliding_window") if fields.flag("use_sliding_window") else None
    )
    kinds = [SLIDING if window else FULL] * num_layers
    if layer_kinds(fields, kinds) != kinds:
        # `transformers` computes by the window alone.
        fields.fail("layer_types", f"{kinds[0]} alone, as the window of every layer says")
    windows = windows_by_kind(fields, kinds, window)
    layers = [layer.with_window(heads) for layer, heads in zip(layers, windows, strict=True)]
    return decoder(fields, layers)


def _mixtral(fields: Fields) -> ModelSpec:
    num = _given(fields, "num_experts", "num_local_experts")
    sparse = experts(fields, "softmax", num=num, width="intermediate_size")
    sparse = replace(sparse, min_weight_sum=0.0)
    layer = LayerSpec(attention(fields), sparse, rms_norm(fields))
    window = effective_window(fields, fields.optional_integer("sliding_window"))
    return decoder(fields, with_windows(layer, [window] * fields.integer("num_hidden_layers")))


def _granite(fields: Fields) -> ModelSpec:
    layer = replace(granite_layer(fields), feed_forward=granite_experts(fields))
    return granite_decoder(fields, [layer] * fields.integer("num_hidden_layers"))


def _ernie(fields: Fields) -> ModelSpec:
    if fields.flag("use_bias"):
        fields.fail("use_bias", "false")
    heads = attention(fields)
    assert heads.rope is not None, "the fields of RoPE have defaults"
    layer = LayerSpec(
        replace(heads, rope=replace(heads.rope, interleaved=True)), mlp(fields), rms_norm(fields)
    )
    num = _given(fields, "num_experts", "moe_num_experts")
    top_k = _given(fields, "num_experts_per_tok", "moe_k")
    sparse = experts(fields, "softmax", num=num, top_k=top_k)
    shared = fields.integer("moe_num_shared_experts", minimum=0)
    sparse = replace(
        sparse,
        min_weight_sum=fields.number("moe_norm_min"),
        has_choice_bias=True,
        shared=Mlp(sparse.intermediate_size * shared, sparse.activation) if shared else None,
    )
    first = fields.integer("moe_layer_start_index", minimum=0)
    last = fields.values.get("moe_layer_end_index")
    if last in (None, -1):
        last = fields.integer("num_hidden_layers") - 1
    else:
        last = fields.integer("moe_layer_end_index", minimum=0)
    interval = fields.integer("moe_layer_interval")
    layers = _mixed(fields, layer, sparse, lambda n: first <= n <= last and (n + 1) % interval == 0)
    return decoder(fields, layers)


_BLOCK = "block_sparse_moe"
QWEN3_MOE = Family(
    _qwen3,
    LLAMA_NAMES,
    defaults={
        "num_key_value_heads": 4,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
        "decoder_sparse_step": 1,
        "sliding_window": 4096,
    },
)
MIXTRAL = Family(
    _mixtral,
    LLAMA_NAMES.with_parts(
        router=f"{_BLOCK}.gate",
        expert_gate_up=(f"{_BLOCK}.experts.{{}}.w1", f"{_BLOCK}.experts.{{}}.w3"),
        expert_down=f"{_BLOCK}.experts.{{}}.w2",
    ),
    defaults={
        "num_key_value_heads": 8,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e6,
    },
)
GRANITE_MOE = Family(
    _granite,
    LLAMA_NAMES.with_parts(
        router=f"{_BLOCK}.router.layer",
        expert_gate_up=f"{_BLOCK}.input_linear.{{}}",
        expert_down=f"{_BLOCK}.output_linear.{{}}",
    ),
    defaults={**DEFAULTS, "num_local_experts": 8, "num_experts_per_tok": 2},
)
ERNIE_MOE = Family(
    _ernie,
    LLAMA_NAMES.with_parts(choice_bias="mlp.moe_statics.e_score_correction_bias"),
    defaults={
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0,
        "moe_intermediate_size": 1536,
        "moe_k": 6,
        "moe_num_experts": 64,
        "moe_num_shared_experts": 2,
        "moe_layer_start_index": 1,
        "moe_layer_interval": 1,
        "moe_norm_min": 1e-12,
        "tie_word_embeddings": True,
    },
    ignores_code=True,
)
