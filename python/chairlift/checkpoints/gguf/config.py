"""The configuration of a model from the metadata of a GGUF file, in the fields of config.json.

Source of the keys: `gguf-py/gguf/constants.py` of llama.cpp; of what each stands for,
`convert_hf_to_gguf.py`.
"""

from typing import Any, Final

import torch

from chairlift.api.errors import ModelError
from chairlift.checkpoints.files.fields import Fields, either
from chairlift.checkpoints.gguf.decoders import (
    CAPS,
    MULTIPLIERS,
    ROPE_FACTORS,
    decoder_fields,
    multipliers,
    window,
)
from chairlift.checkpoints.gguf.end_tokens import end_token_ids
from chairlift.checkpoints.gguf.hybrids import hybrid_fields
from chairlift.checkpoints.gguf.metadata import DIVISORS, HYBRIDS, Metadata
from chairlift.checkpoints.gguf.names import CHOICE_BIAS, DOWN, NAMES, QUERY
from chairlift.checkpoints.gguf.reader import GgufHeader

ARCHITECTURES: Final = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
    "granite": "GraniteForCausalLM",
    "olmo2": "Olmo2ForCausalLM",
    "qwen3moe": "Qwen3MoeForCausalLM",
    "granitemoe": "GraniteMoeForCausalLM",
    "gpt-oss": "GptOssForCausalLM",
    "lfm2": "Lfm2ForCausalLM",
    "lfm2moe": "Lfm2MoeForCausalLM",
    "qwen35": "Qwen3_5ForCausalLM",
    "qwen35moe": "Qwen3_5MoeForCausalLM",
    "qwen3next": "Qwen3NextForCausalLM",
    "granitehybrid": "GraniteMoeHybridForCausalLM",
    "falcon-h1": "FalconH1ForCausalLM",
    "nemotron_h": "NemotronHForCausalLM",
    "nemotron_h_moe": "NemotronHForCausalLM",
    "gemma4": "Gemma4ForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
    "starcoder2": "Starcoder2ForCausalLM",
    "cohere2": "Cohere2ForCausalLM",
    "ernie4_5-moe": "Ernie4_5_MoeForCausalLM",
}
"""The family of each `general.architecture`; Mistral and Mixtral call themselves llama."""

_WITH_A_WINDOW: Final = {"llama": "MistralForCausalLM", "olmo2": "Olmo3ForCausalLM"}
"""The families of those architectures that have a window."""

_KEYS: Final = {
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "max_position_embeddings": "context_length",
    "sliding_window": "attention.sliding_window",
    "num_experts": "expert_count",
    "num_local_experts": "expert_count",
    "n_routed_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
    "moe_shared_expert_intermediate_size": "expert_shared_feed_forward_length",
    "shared_intermediate_size": "expert_shared_feed_forward_length",
    "n_shared_experts": "expert_shared_count",
    "n_group": "expert_group_count",
    "num_dense_layers": "leading_dense_block_count",
    "layer_types": "attention.head_count_kv",
    "layers_block_type": "attention.head_count_kv",
    "conv_L_cache": "shortconv.l_cache",
    "linear_num_key_heads": "ssm.group_count",
    "linear_num_value_heads": "ssm.time_step_rank",
    "linear_key_head_dim": "ssm.state_size",
    "linear_conv_kernel_dim": "ssm.conv_kernel",
    "mamba_n_heads": "ssm.time_step_rank",
    "mamba_n_groups": "ssm.group_count",
    "n_groups": "ssm.group_count",
}
"""Where the fields of config.json come from, without the architecture."""

_WITH_MULTIPLIERS: Final = frozenset(("granite", "granitehybrid", "granitemoe"))
_EXPERT_SIZES: Final = {
    "qwen3moe": "moe_intermediate_size",
    "gpt-oss": "intermediate_size",
    "granitemoe": "",
    "lfm2moe": "moe_intermediate_size",
    "qwen35moe": "moe_intermediate_size",
    "qwen3next": "moe_intermediate_size",
    "nemotron_h_moe": "moe_intermediate_size",
    "ernie4_5-moe": "moe_intermediate_size",
}
"""Architectures that always have experts, and the field of the width of one; where that is empty,
it is that of all layers."""
_MAY_HAVE_EXPERTS: Final = frozenset(("gemma4", "granitehybrid", "llama"))
"""Those of llama are Mixtral."""
_EPS: Final = (
    "rms_norm_eps",
    "norm_eps",
    "norm_epsilon",
    "layer_norm_eps",
    "layer_norm_epsilon",
)
_SOFTMAX, _SIGMOID = 1, 2
"""What weighs the experts, of `expert_gating_func`."""
_WITH_SIGMOID: Final = frozenset(("lfm2moe", "nemotron_h_moe"))
_WITH_DELTA: Final = frozenset(("qwen35", "qwen35moe", "qwen3next"))
_UNSUPPORTED: Final = (
    "expert_group_count",
    "expert_shared_count",
    "leading_dense_block_count",
    "nextn_predict_layers",
    "attention.clamp_kqv",
    "attention.max_alibi_bias",
    "attention.scale",
    "attn_logit_softcapping",
    "embedding_scale",
    "final_logit_softcapping",
    "logit_scale",
    "residual_scale",
)
"""Values that would change what the layers compute."""
_READ: Final = {
    "gemma2": (*CAPS,),
    **dict.fromkeys(_WITH_MULTIPLIERS, (*MULTIPLIERS,)),
    "lfm2moe": ("leading_dense_block_count",),
    "cohere2": ("logit_scale",),
    "gemma4": ("final_logit_softcapping",),
    "ernie4_5-moe": ("expert_shared_count", "leading_dense_block_count"),
    "nemotron_h": ("expert_group_count", "nextn_predict_layers"),
    "nemotron_h_moe": ("expert_group_count", "expert_shared_count", "nextn_predict_layers"),
    **dict.fromkeys(_WITH_DELTA, ("nextn_predict_layers",)),
}
"""Those of them that are read, by architecture."""


_POOLINGS = (0, 3)
"""The pooling types that are read: no pooling, and the vector of the last token."""


def read_config(header: GgufHeader) -> tuple[str, Fields]:
    """Return the architecture and the fields of config.json that the metadata stands for.

    Raises:
        ModelError: A value is missing, of a wrong type, or asks for something unsupported.
    """
    fields = Fields(header.path, header.metadata)
    kind = fields.values.get("general.architecture")
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        fields.fail("general.architecture", either(ARCHITECTURES))
    metadata = Metadata(header, kind)
    _refuse_unsupported(metadata)
    longest_sight = window(metadata)
    num_heads, num_kv_heads = metadata.num_heads()
    values = {
        "vocab_size": _vocab_size(header, fields),
        "hidden_size": metadata.integer("embedding_length"),
        "num_hidden_layers": metadata.num_layers(),
        "num_nextn_predict_layers": metadata.num_others(),
        "intermediate_size": metadata.per_layer("feed_forward_length"),
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_kv_heads,
        "head_dim": metadata.head_dim(num_heads),
        **dict.fromkeys(_EPS, metadata.eps()),
        "max_position_embeddings": metadata.integer("context_length"),
        "rope_parameters": metadata.rope(),
        "tie_word_embeddings": f"{NAMES.head}.weight" not in header.tensors,
        "attention_bias": metadata.has(f"{QUERY}.bias"),
        "mlp_bias": metadata.has(f"{DOWN}.bias"),
        "sliding_window": longest_sight,
        "eos_token_id": list(end_token_ids(fields)),
        "bos_token_id": fields.optional_integer("tokenizer.ggml.bos_token_id", minimum=0),
    }
    values |= _experts(metadata)
    values |= hybrid_fields(metadata) if kind in HYBRIDS else decoder_fields(metadata)
    if kind in _WITH_MULTIPLIERS:
        values |= multipliers(metadata)
    architecture = ARCHITECTURES[kind]
    if kind == "llama" and _has_experts(metadata):
        architecture = "MixtralForCausalLM"
    elif kind in _WITH_A_WINDOW and longest_sight is not None:
        architecture = _WITH_A_WINDOW[kind]
    keys = {name: f"{kind}.{key}" for name, key in _KEYS.items()}
    if kind == "gemma4":
        keys["num_kv_shared_layers"] = "gemma4.attention.shared_kv_layers"
    if kind in _WITH_DELTA:
        keys["layer_types"] = f"{kind}.attention.recurrent_layers"
    return architecture, Fields(header.path, values, keys=keys)


def read_divisors(header: GgufHeader, head_dim: int) -> tuple[float, ...] | None:
    """Read what each frequency of RoPE is divided by; None where the file does not say.

    Those of Gemma 4 are of some layers, and part of its fields.

    Raises:
        ModelError: There is not one divisor above 0 for each frequency.
    """
    stored = header.tensors.get(DIVISORS)
    if stored is None or header.metadata.get("general.architecture") == "gemma4":
        return None
    if stored.shape != (head_dim // 2,):
        message = f"{stored.path}: {DIVISORS}: expected {head_dim // 2}, got {list(stored.shape)}"
        raise ModelError(message)
    divisors = torch.empty(stored.shape)
    stored.read(divisors)
    if not (divisors > 0).all() or not divisors.isfinite().all():
        message = f"{stored.path}: {DIVISORS}: expected numbers above 0"
        raise ModelError(message)
    return tuple(divisors.tolist())


def ignored_tensors(architecture: str, fields: Fields) -> tuple[str, ...]:
    """Return how the names begin of tensors that are no weights of the model.

    They are of layers that predict further tokens, or divisors that `fields` has.
    """
    if architecture == "Phi3ForCausalLM":
        return ROPE_FACTORS
    first = fields.integer("num_hidden_layers")
    others = fields.integer("num_nextn_predict_layers", minimum=0)
    return tuple(f"{NAMES.layers}.{first + number}." for number in range(others))


def _vocab_size(header: GgufHeader, metadata: Fields) -> int:
    embedding = header.tensors.get(f"{NAMES.embedding}.weight")
    if embedding is not None:
        return embedding.shape[0]
    tokens = metadata.values.get("tokenizer.ggml.tokens")
    return len(tokens) if isinstance(tokens, list) else 0


def _refuse_unsupported(metadata: Metadata) -> None:
    """Refuse values that would change what the layers compute."""
    fields, kind = metadata.fields, metadata.kind
    if _has_experts(metadata) and kind not in (*_EXPERT_SIZES, *_MAY_HAVE_EXPERTS):
        fields.fail(f"{kind}.expert_count", "0: its experts are not supported")
    for name in _UNSUPPORTED:
        is_read = name in _READ.get(kind, ())
        if not is_read and fields.optional_number(f"{kind}.{name}") not in {None, 0.0}:
            fields.fail(f"{kind}.{name}", "nothing: it is not supported")
    key = f"{kind}.rope.scaling.attn_factor"
    if kind != "phi3" and fields.optional_number(key) not in {None, 0.0, 1.0}:
        fields.fail(key, "1: it is not supported")
    key = f"{kind}.attention.causal"
    if key in fields.values and not fields.flag(key):
        fields.fail(key, "true")
    key = f"{kind}.pooling_type"
    if fields.optional_integer(key, minimum=0) not in {None, *_POOLINGS}:
        fields.fail(key, "0 or 3: a decoder's vector is that of the last token")


def _has_experts(metadata: Metadata) -> bool:
    """Return whether the feed-forward is a mixture of experts."""
    if metadata.kind in _EXPERT_SIZES:
        return metadata.integer("expert_count") > 0
    if metadata.kind == "nemotron_h":
        # The converter writes a number for models without experts, too.
        return False
    return metadata.optional_integer("expert_count") > 0


def _experts(metadata: Metadata) -> dict[str, Any]:
    """Read the sizes of a mixture of experts; nothing where there is none."""
    fields, at = metadata.fields, f"{metadata.kind}."
    if not _has_experts(metadata):
        return {}
    key = f"{at}expert_gating_func"
    is_sigmoid = metadata.kind in _WITH_SIGMOID
    gating, name = (_SIGMOID, "sigmoid") if is_sigmoid else (_SOFTMAX, "softmax")
    if fields.optional_integer(key, minimum=0) not in {None, 0, gating}:
        fields.fail(key, f"{gating}, {name}")
    scale = fields.optional_number(f"{at}expert_weights_scale")
    if scale not in {None, 0.0, 1.0} and not is_sigmoid:
        fields.fail(f"{at}expert_weights_scale", "1")
    # The architecture says whether weights are normed, as in llama.cpp.
    fields.flag(f"{at}expert_weights_norm")
    num = metadata.integer("expert_count")
    values: dict[str, Any] = {
        "num_experts": num,
        "num_local_experts": num,
        "n_routed_experts": num,
        "num_experts_per_tok": metadata.integer("expert_used_count"),
        "norm_topk_prob": True,
        "routed_scaling_factor": scale or 1.0,
        "use_expert_bias": metadata.has(CHOICE_BIAS),
    }
    is_gemma = metadata.kind == "gemma4"
    if width := "moe_intermediate_size" if is_gemma else _EXPERT_SIZES.get(metadata.kind):
        values[width] = metadata.integer("expert_feed_forward_length")
    return values
