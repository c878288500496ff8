"""Small models of real architectures, built, perturbed and saved by `transformers`."""

from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from tests.model.family_table import FAMILIES, SIZES


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
    for name, parameter in perturbed(model):
        parameter.copy_(neutral(model, name, parameter))
        if name.endswith("A_log"):
            # States remember some twenty tokens.
            parameter.sub_(3.0)
        # Matrices keep the size of what passes through them; vectors stray far from neutral.
        is_vector = parameter.ndim == 1 or name.endswith("bias")
        is_small = is_vector or "embed" in name
        # Of three axes the last is that of the inputs, as of two.
        scale = 0.2 if is_small else parameter.shape[-1] ** -0.5
        parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=scale)
        if name.endswith("q_norm.weight") and model.config.model_type == "gemma4_text":
            # Scores have no factor: one token would get nearly all of the weight.
            parameter.mul_(0.3)
    return model


def save(model: PreTrainedModel, folder: Path) -> None:
    """Save a model as it is published."""
    model.save_pretrained(folder)
    if model.config.model_type != "olmo_hybrid":
        return
    # transformers 5.24 splits the convolution into equal parts, and renames norms.
    config, tensors = model.config, {}
    keys, values = (
        config.linear_num_key_heads * config.linear_key_head_dim,
        config.linear_num_value_heads * config.linear_value_head_dim,
    )
    for name, tensor in model.state_dict().items():
        if "conv1d" in name:
            parts = zip("qkv", tensor.split([keys, keys, values]), strict=True)
            tensors |= {name.replace("conv1d", f"{p}_conv1d"): own.clone() for p, own in parts}
        else:
            tensors[name] = tensor
    if config.tie_word_embeddings:
        del tensors["lm_head.weight"]
    save_file(tensors, folder / "model.safetensors")


def perturbed(model: PreTrainedModel) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the parameters of a model by name, and the buffers that a checkpoint has."""
    yield from model.named_parameters()
    for name, buffer in model.named_buffers():
        if name.endswith(("expert_bias", "correction_bias", "layer_scalar")):
            yield name, buffer


def neutral(model: PreTrainedModel, name: str, parameter: torch.Tensor) -> torch.Tensor:
    """Return the value that a forgotten parameter would have: that of no effect for a norm."""
    is_norm = "norm" in name and name.endswith("weight")
    kind = model.config.model_type
    # Gemma 2 and 3 and Qwen 3.5 store the weights of norms less 1.
    is_one = is_norm and not kind.startswith(("gemma2", "gemma3"))
    is_one &= not kind.startswith(("qwen3_5", "qwen3_next")) or "linear_attn" in name
    is_one |= name.endswith(("layer_scalar", "router.scale", "per_expert_scale"))
    return torch.ones_like(parameter) if is_one else torch.zeros_like(parameter)


def random_tokens(length: int, seed: int) -> list[int]:
    """Return a prompt."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(SIZES["vocab_size"], (length,), generator=generator).tolist()
