"""Small models of real architectures, built, perturbed and saved by `transformers`."""

import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

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
}


def build(family: str, seed: int = 0, **sizes: object) -> PreTrainedModel:
    """Return a float32 reference model, eager attention, every parameter random.

    Args:
        family: In `FAMILIES`.
        seed: Of the parameters.
        sizes: Fields of the configuration in the place of those of `SIZES`.
    """
    config_class, settings = FAMILIES[family]
    return build_model(config_class(**{**SIZES, **settings, **sizes}), seed)


def build_model(config: PreTrainedConfig, seed: int = 0) -> PreTrainedModel:
    """Return a float32 reference model of any configuration; see `build`."""
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    model.requires_grad_(requires_grad=False)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        parameter.copy_(neutral(name, parameter))
        # Matrices keep the size of what passes through them; vectors stray far from neutral.
        scale = 0.2 if parameter.ndim == 1 or "embed" in name else parameter.shape[1] ** -0.5
        parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=scale)
    return model


def neutral(name: str, parameter: torch.Tensor) -> torch.Tensor:
    """Return the value that a forgotten parameter would have: ones for a norm, else zeros."""
    return torch.ones_like(parameter) if "norm" in name else torch.zeros_like(parameter)


def random_tokens(length: int, seed: int) -> list[int]:
    """Return a prompt."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(SIZES["vocab_size"], (length,), generator=generator).tolist()
