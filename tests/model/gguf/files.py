"""GGUF files of small models, written by the format's own package.

model = small_model("qwen2")
write_model(tmp_path / "m.gguf", model, {"attn_v": "Q5_0", "default": "Q4_1"})

The parameters of the model become the values that the file holds.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from numpy.typing import NDArray
from transformers import (
    GptOssConfig,
    GraniteMoeConfig,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

from tests.model.families import SIZES, build_model

CONFIGS: dict[str, type[PreTrainedConfig]] = {
    "llama": LlamaConfig,
    "mistral": MistralConfig,
    "qwen2": Qwen2Config,
    "qwen3": Qwen3Config,
    "qwen3moe": Qwen3MoeConfig,
    "granitemoe": GraniteMoeConfig,
    "mixtral": MixtralConfig,
    "gpt-oss": GptOssConfig,
}
KINDS = {"mistral": "llama", "mixtral": "llama", "qwen3_moe": "qwen3moe", "gpt_oss": "gpt-oss"}
"""What GGUF calls a type of model, where that is something else."""
GROUPED = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "MXFP4")
"""Rows are multiples of 32."""
SUPER_BLOCKS = ("Q4_K", "Q5_K", "Q6_K")
"""Rows are multiples of 256."""
NUMBERS = ("F32", "F16", "BF16")

WIDE = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64}
"""Sizes for `SUPER_BLOCKS`."""

MIXED = {"default": "Q4_0", "attn_v": "Q8_0", "ffn_down": "Q5_1", "ffn_up": "F16", "output": "Q8_0"}
"""Parts of a joined layer that are stored in different ways."""
MIXED_WIDE = {"default": "Q4_K", "attn_v": "Q6_K", "ffn_down": "Q6_K", "attn_k": "Q5_K"}

PIECES = ("a", "b", "ab")
"""The last tokens of the vocabulary; the first two merge."""

Types = str | Mapping[str, str]

# The factors that give random blocks a spread of about 1 / sqrt(256), as the rows need.
_FACTORS = {"Q4_K": (2.4e-4, 1.8e-3), "Q5_K": (1.2e-4, 1.8e-3), "Q6_K": (4.6e-5,)}
_FIRST_FACTOR = {"Q4_K": 0, "Q5_K": 0, "Q6_K": 208}
_CONTROL = int(gguf.TokenType.CONTROL)
_NORMAL = int(gguf.TokenType.NORMAL)


def small_model(architecture: str = "llama", seed: int = 0, **settings: object) -> PreTrainedModel:
    """Return a float32 reference model of two layers, whose rows fit all blocks of 32."""
    sizes = {**SIZES, "intermediate_size": 96, "num_hidden_layers": 2, **settings}
    return build_model(CONFIGS[architecture](**sizes), seed)


def write_model(
    path: Path,
    model: PreTrainedModel,
    types: Types = "F32",
    *,
    split: int = 0,
    change: Callable[[dict[str, NDArray[np.float32]]], None] | None = None,
    extra: Callable[[GGUFWriter], object] | None = None,
) -> Path:
    """Write a model, and give its parameters the values that the file holds.

    Args:
        path: The file; the parts of a split one are named after it.
        model: Changed in place.
        types: Of all matrices, or by the name of a part such as `attn_v`, with a `default`.
        split: Tensors of a part; 0 is one file.
        change: Edits the values by name before they are stored; the model does not see it.
        extra: Adds metadata or tensors.

    Returns:
        The file, or the first of its parts.
    """
    kind = KINDS.get(model.config.model_type, model.config.model_type)
    writer = GGUFWriter(path, kind, split_max_tensors=split)
    _add_metadata(writer, model.config)
    add_tokenizer(writer, model.config)
    if extra is not None:
        extra(writer)
    random = np.random.default_rng(0)
    chosen = {"default": types} if isinstance(types, str) else types
    names = gguf_names(model)
    values = {}
    for theirs, parameter in model.named_parameters():
        heads = _num_heads(model, theirs) if kind in ("llama", "granitemoe") else None
        for name, part in _parts(names[theirs], parameter, kind):
            rows = permuted(part.numpy(), heads)
            is_number = rows.ndim == 1 or "ffn_gate_inp" in name or name.endswith("bias")
            stored_type = "F32" if is_number else type_of(name, chosen)
            flat = np.ascontiguousarray(rows if is_number else rows.reshape(-1, rows.shape[-1]))
            stored = encoded(flat, stored_type, random)
            held = gguf.quants.dequantize(stored, GGMLQuantizationType[stored_type])
            part.copy_(torch.from_numpy(unpermuted(held, heads)).view(part.shape))
            values[name] = stored.reshape(*rows.shape[:-1], -1) if rows.ndim > 1 else stored
            if change is None:
                add(writer, name, values[name], stored_type)
    if change is not None:
        kinds = {name: type_of(name, chosen) for name in values}
        change(values)
        for name, stored in values.items():
            add(writer, name, stored, "F32" if stored.ndim == 1 else kinds[name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path if path.exists() else min(path.parent.glob(f"{path.stem}-00001-of-*.gguf"))


def gguf_names(model: PreTrainedModel) -> dict[str, str]:
    """Return what GGUF calls the parameters of a model."""
    kind = KINDS.get(model.config.model_type, model.config.model_type)
    arch = next(number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == kind)
    table = gguf.get_tensor_name_map(arch, model.config.num_hidden_layers)
    names = {}
    for name, _ in model.named_parameters():
        layer = name.removeprefix("model.layers.").partition(".")[0]
        if ".experts." in name and "_proj" in name:
            part = "ffn_gate_up_exps" if "gate" in name else "ffn_down_exps"
            names[name] = f"blk.{layer}.{part}.{'bias' if name.endswith('bias') else 'weight'}"
        elif name.endswith("sinks"):
            names[name] = f"blk.{layer}.attn_sinks.weight"
        elif name.endswith(("mlp.gate.weight", "router.weight", "router.bias")):
            names[name] = f"blk.{layer}.ffn_gate_inp.{name.rpartition('.')[2]}"
        else:
            names[name] = table.get_name(name, (".weight", ".bias"))
    return names


def _parts(name: str, parameter: torch.Tensor, kind: str) -> list[tuple[str, torch.Tensor]]:
    """Return the tensors of a file that a parameter becomes: gates and ups of experts are two."""
    if kind == "gpt-oss" and parameter.ndim == 3:
        # Inputs come before outputs.
        parameter = parameter.transpose(1, 2)
    if "ffn_gate_up_exps" not in name:
        return [(name, parameter)]
    names = [name.replace("gate_up", part) for part in ("gate", "up")]
    if kind == "gpt-oss":
        return list(zip(names, (parameter[:, ::2], parameter[:, 1::2]), strict=True))
    return list(zip(names, parameter.chunk(2, dim=1), strict=True))


def permuted(rows: NDArray[np.float32], num_heads: int | None) -> NDArray[np.float32]:
    """Return rows of queries or keys in the order of llama.cpp, as `convert_hf_to_gguf` does."""
    if num_heads is None:
        return rows
    halves = rows.reshape(num_heads, 2, len(rows) // num_heads // 2, *rows.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows.shape))


def unpermuted(rows: NDArray[np.float32], num_heads: int | None) -> NDArray[np.float32]:
    """Return such rows in the order of `transformers`."""
    order = permuted(np.arange(len(rows), dtype=np.float32), num_heads).astype(int)
    return rows[np.argsort(order)]


def _num_heads(model: PreTrainedModel, name: str) -> int | None:
    if "q_proj" in name:
        return int(model.config.num_attention_heads)
    return int(model.config.num_key_value_heads) if "k_proj" in name else None


def type_of(name: str, types: Mapping[str, str]) -> str:
    return types.get(name.split(".")[-2], types["default"])


def encoded(rows: NDArray[np.float32], kind: str, random: np.random.Generator) -> NDArray:
    if kind not in SUPER_BLOCKS:
        return gguf.quants.quantize(rows, GGMLQuantizationType[kind])
    weights, size = gguf.GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    blocks = random.integers(0, 256, (len(rows), rows.shape[1] // weights, size), dtype=np.uint8)
    for number, factor in enumerate(_FACTORS[kind]):
        place = _FIRST_FACTOR[kind] + 2 * number
        factors = (factor * random.uniform(0.8, 1.2, blocks.shape[:2])).astype(np.float16)
        blocks[..., place : place + 2] = factors[..., None].view(np.uint8)
    return blocks.reshape(len(rows), -1)


def add(writer: GGUFWriter, name: str, stored: NDArray, kind: str) -> None:
    writer.add_tensor(name, stored, raw_dtype=GGMLQuantizationType[kind])


def add_sizes(writer: GGUFWriter, config: PreTrainedConfig) -> None:
    """Write the sizes that every architecture has."""
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_head_count(config.num_attention_heads)
    if (head_dim := getattr(config, "head_dim", None)) is not None:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    for name in ("rms_norm_eps", "norm_eps"):
        if (eps := getattr(config, name, None)) is not None:
            writer.add_layer_norm_rms_eps(eps)
    for name in ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"):
        if (eps := getattr(config, name, None)) is not None:
            writer.add_layer_norm_eps(eps)
    rope = getattr(config, "rope_parameters", None) or {}
    if "rope_theta" in rope:
        writer.add_rope_freq_base(rope["rope_theta"])
    num_experts = getattr(config, "num_local_experts", None) or getattr(config, "num_experts", 0)
    if num_experts:
        writer.add_expert_count(num_experts)
        writer.add_expert_used_count(getattr(config, "num_experts_per_tok", 0))


def _add_metadata(writer: GGUFWriter, config: PreTrainedConfig) -> None:
    add_sizes(writer, config)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(head_dim)
    if config.rope_parameters["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(config.rope_parameters["factor"])
    if config.rope_parameters["rope_type"] == "yarn":
        rope = config.rope_parameters
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
    if config.model_type == "qwen3_moe":
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    if config.model_type == "gpt_oss":
        writer.add_expert_feed_forward_length(config.intermediate_size)
    if config.model_type in {"gpt_oss", "mistral"}:
        writer.add_sliding_window(config.sliding_window)


def add_tokenizer(writer: GGUFWriter, config: PreTrainedConfig) -> None:
    """Write a small vocabulary."""
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*(f"t{number}" for number in range(config.vocab_size - 3)), *PIECES])
    kinds = [_CONTROL if number < 3 else _NORMAL for number in range(config.vocab_size)]
    writer.add_token_types(kinds)
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(config.bos_token_id)
    writer.add_eos_token_id(config.eos_token_id)
