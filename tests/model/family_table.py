"""The variants of every family that are compared with `transformers`: small configurations."""

from transformers import (
    Cohere2Config,
    Ernie4_5_MoeConfig,
    GptOssConfig,
    GraniteConfig,
    GraniteMoeConfig,
    LlamaConfig,
    Ministral3Config,
    MistralConfig,
    MixtralConfig,
    Olmo2Config,
    Olmo3Config,
    Phi3Config,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
    SmolLM3Config,
    Starcoder2Config,
)

from tests.model.gemma_table import GEMMAS, KINDS
from tests.model.hybrid_table import HYBRIDS

SIZES = {
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}

YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
    "beta_fast": 4.0,
    "beta_slow": 1.0,
}


def long_rope(original: int, rotary_dim: int) -> dict[str, object]:
    """Return LongRoPE with divisors that differ from each other."""
    places = range(rotary_dim // 2)
    return {
        "rope_type": "longrope",
        "rope_theta": 10_000.0,
        "short_factor": [1.0 + 0.1 * place for place in places],
        "long_factor": [2.0 + 0.5 * place for place in places],
        "original_max_position_embeddings": original,
    }


FAMILIES: dict[str, tuple[type[PreTrainedConfig], dict[str, object]]] = {
    "llama": (LlamaConfig, {}),
    "llama, llama3 rope, wide heads": (
        LlamaConfig,
        {"rope_parameters": LLAMA3_ROPE, "head_dim": 32},
    ),
    "llama, linear rope, biases, one kv head": (
        LlamaConfig,
        {
            "rope_parameters": {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0},
            "attention_bias": True,
            "mlp_bias": True,
            "num_key_value_heads": 1,
        },
    ),
    "mistral, window": (MistralConfig, {"sliding_window": 20}),
    "qwen2, tied": (Qwen2Config, {"tie_word_embeddings": True}),
    "qwen2, window in the last layer": (
        Qwen2Config,
        {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 2},
    ),
    "qwen3, tied, narrow heads": (Qwen3Config, {"tie_word_embeddings": True, "head_dim": 16}),
    "qwen3, alternating window, wide heads, biases": (
        Qwen3Config,
        {
            "head_dim": 32,
            "attention_bias": True,
            "use_sliding_window": True,
            "sliding_window": 17,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "llama, yarn": (LlamaConfig, {"rope_parameters": YARN_ROPE}),
    **GEMMAS,
    "phi3, window": (Phi3Config, {"sliding_window": 20, "pad_token_id": 0}),
    "phi3, longrope of a part of a head, past its original length": (
        Phi3Config,
        {
            "pad_token_id": 0,
            "rope_parameters": {
                **long_rope(2, 12),
                "partial_rotary_factor": 0.75,
                "attention_factor": 1.2,
            },
            "original_max_position_embeddings": 2,
        },
    ),
    "phi3, longrope within its original length": (
        Phi3Config,
        {
            "pad_token_id": 0,
            "rope_parameters": long_rope(256, 16),
            "original_max_position_embeddings": 256,
        },
    ),
    "olmo2": (Olmo2Config, {}),
    "olmo3, windows, yarn where all tokens are seen": (
        Olmo3Config,
        {
            "sliding_window": 20,
            "layer_types": KINDS,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
                "full_attention": YARN_ROPE,
            },
        },
    ),
    "granite, multipliers": (
        GraniteConfig,
        {
            "embedding_multiplier": 3.0,
            "logits_scaling": 2.5,
            "residual_multiplier": 0.4,
            "attention_multiplier": 0.3,
        },
    ),
    "smollm3, a layer without rope": (
        SmolLM3Config,
        {"no_rope_layers": [1, 0, 1], "pad_token_id": 0},
    ),
    "ministral3, yarn, queries by position": (
        Ministral3Config,
        {
            "head_dim": 16,
            "rope_parameters": {
                **YARN_ROPE,
                "mscale": 1.0,
                "mscale_all_dim": 0.5,
                "llama_4_scaling_beta": 0.3,
            },
        },
    ),
    "starcoder2, window, tied": (
        Starcoder2Config,
        {"sliding_window": 20, "tie_word_embeddings": True},
    ),
    "qwen3 moe, a dense layer": (
        Qwen3MoeConfig,
        {
            "head_dim": 16,
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 48,
            "mlp_only_layers": [1],
            "norm_topk_prob": True,
        },
    ),
    "qwen3 moe, weights as they are": (
        Qwen3MoeConfig,
        {
            "head_dim": 16,
            "num_experts": 5,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 48,
            "norm_topk_prob": False,
        },
    ),
    "mixtral, window": (MixtralConfig, {"num_local_experts": 5, "sliding_window": 20}),
    "granite moe": (
        GraniteMoeConfig,
        {
            "num_local_experts": 6,
            "num_experts_per_tok": 3,
            "embedding_multiplier": 3.0,
            "logits_scaling": 2.5,
            "residual_multiplier": 0.4,
            "attention_multiplier": 0.3,
        },
    ),
    "ernie, a shared expert, a bias of the choice": (
        Ernie4_5_MoeConfig,
        {
            "moe_num_experts": 6,
            "moe_k": 2,
            "moe_intermediate_size": 32,
            "moe_num_shared_experts": 2,
            "pad_token_id": 0,
        },
    ),
    "gpt-oss, sinks, windows, clamped gates": (
        GptOssConfig,
        {
            "head_dim": 16,
            "num_local_experts": 6,
            "num_experts_per_tok": 2,
            "intermediate_size": 48,
            "sliding_window": 20,
            "swiglu_limit": 0.7,
            "swiglu_alpha": 1.3,
            "rope_parameters": {**YARN_ROPE, "truncate": False},
        },
    ),
    "gpt-oss, no biases of attention, no window": (
        GptOssConfig,
        {
            "head_dim": 32,
            "num_local_experts": 4,
            "num_experts_per_tok": 3,
            "intermediate_size": 48,
            "attention_bias": False,
            "layer_types": ["full_attention"] * 3,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
        },
    ),
    "cohere2, parallel halves": (
        Cohere2Config,
        {"sliding_window": 20, "layer_types": KINDS, "logit_scale": 0.4, "pad_token_id": 0},
    ),
    **HYBRIDS,
}
