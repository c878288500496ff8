"""The variants of Gemma that are compared with `transformers`: a part of `family_table`."""

from transformers import Gemma2Config, Gemma3TextConfig, Gemma4TextConfig, PreTrainedConfig

# Mostly smaller than the width of a window: every third layer sees all tokens.
KINDS = ["sliding_attention", "sliding_attention", "full_attention"]
GEMMA4 = {
    "head_dim": 16,
    "global_head_dim": 48,
    "sliding_window": 20,
    "vocab_size_per_layer_input": 131,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
        "full_attention": {
            "rope_type": "proportional",
            "partial_rotary_factor": 0.25,
            "rope_theta": 1_000.0,
        },
    },
}

GEMMAS: dict[str, tuple[type[PreTrainedConfig], dict[str, object]]] = {
    "gemma3, windows, two ropes": (
        Gemma3TextConfig,
        {
            "head_dim": 32,
            "query_pre_attn_scalar": 24,
            "sliding_window": 20,
            "layer_types": KINDS,
            "tie_word_embeddings": True,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
                "full_attention": {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0},
            },
        },
    ),
    "gemma4, shared keys, inputs of each layer": (
        Gemma4TextConfig,
        {
            **GEMMA4,
            "num_hidden_layers": 6,
            "layer_types": 3 * ["sliding_attention", "full_attention"],
            "num_kv_shared_layers": 3,
            "use_double_wide_mlp": True,
            "hidden_size_per_layer_input": 24,
            "final_logit_softcapping": 1.5,
        },
    ),
    "gemma4, keys as values, fewer heads where all tokens are seen": (
        Gemma4TextConfig,
        {
            **GEMMA4,
            "layer_types": KINDS,
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
            "hidden_size_per_layer_input": 0,
            "attention_bias": True,
        },
    ),
    "gemma4, experts beside a dense half": (
        Gemma4TextConfig,
        {
            **GEMMA4,
            "num_hidden_layers": 2,
            "layer_types": KINDS[1:],
            "hidden_size_per_layer_input": 0,
            "enable_moe_block": True,
            "num_experts": 6,
            "top_k_experts": 2,
            "moe_intermediate_size": 48,
        },
    ),
    "gemma2, soft caps": (
        Gemma2Config,
        {
            "head_dim": 16,
            "query_pre_attn_scalar": 20,
            "sliding_window": 20,
            "attn_logit_softcapping": 0.5,
            "final_logit_softcapping": 1.5,
        },
    ),
}
