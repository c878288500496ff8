"""Tensors of many families, as `convert_hf_to_gguf.py` of llama.cpp writes them.

Each function does what the class of its architecture does there. Of a matrix it changes the
order of numbers alone, so that the same function, of numbers that count them, says where each is.
"""

import re
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedConfig

Converted = Iterator[tuple[str, NDArray]]

KINDS = {
    "lfm2": "lfm2",
    "lfm2_moe": "lfm2moe",
    "qwen3_5_text": "qwen35",
    "qwen3_5_moe_text": "qwen35moe",
    "qwen3_next": "qwen3next",
    "granitemoehybrid": "granitehybrid",
    "bamba": "granitehybrid",
    "nemotron_h": "nemotron_h",
    "falcon_h1": "falcon-h1",
    "gemma4_text": "gemma4",
    "phi3": "phi3",
    "olmo3": "olmo2",
    "smollm3": "smollm3",
    "starcoder2": "starcoder2",
    "cohere2": "cohere2",
    "ernie4_5_moe": "ernie4_5-moe",
}
"""`general.architecture` by the type of a model."""
_ENDS = {
    "embed_tokens": "token_embd",
    "embeddings": "token_embd",
    "embed_tokens_per_layer": "per_layer_token_embd",
    "per_layer_model_projection": "per_layer_model_proj",
    "per_layer_projection_norm": "per_layer_proj_norm",
    "embedding_norm": "token_embd_norm",
    "norm": "output_norm",
    "norm_f": "output_norm",
    "final_layernorm": "output_norm",
    "lm_head": "output",
}
_OF_LAYER = {
    "input_layernorm": "attn_norm",
    "operator_norm": "attn_norm",
    "norm": "attn_norm",
    "ffn_norm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.out_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.q_layernorm": "attn_q_norm",
    "self_attn.k_layernorm": "attn_k_norm",
    "mixer.q_proj": "attn_q",
    "mixer.k_proj": "attn_k",
    "mixer.v_proj": "attn_v",
    "mixer.o_proj": "attn_output",
    "feed_forward.w1": "ffn_gate",
    "feed_forward.w2": "ffn_down",
    "feed_forward.w3": "ffn_up",
    "conv.conv": "shortconv.conv",
    "conv.in_proj": "shortconv.in_proj",
    "conv.out_proj": "shortconv.out_proj",
    "linear_attn.in_proj_qkv": "attn_qkv",
    "linear_attn.in_proj_z": "attn_gate",
    "linear_attn.in_proj_b": "ssm_beta",
    "linear_attn.in_proj_a": "ssm_alpha",
    "linear_attn.in_proj_ba": "ssm_ba",
    "linear_attn.conv1d": "ssm_conv1d",
    "linear_attn.norm": "ssm_norm",
    "linear_attn.out_proj": "ssm_out",
    "shared_mlp.output_linear": "ffn_down_shexp",
    "shared_expert_gate": "ffn_gate_inp_shexp",
    **{
        f"{at}.{part}_proj": f"ffn_{part}{end}"
        for at, end in (
            ("mlp", ""),
            ("feed_forward", ""),
            ("mixer", ""),
            ("mlp.shared_expert", "_shexp"),
            ("mlp.shared_experts", "_shexp"),
            ("mixer.shared_experts", "_shexp"),
        )
        for part in ("gate", "up", "down")
    },
    **{
        f"{at}.{own}": name
        for at in ("mamba", "mixer")
        for own, name in (
            ("in_proj", "ssm_in"),
            ("conv1d", "ssm_conv1d"),
            ("norm", "ssm_norm"),
            ("out_proj", "ssm_out"),
        )
    },
    "self_attn.qkv_proj": "attn_qkv",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
    "pre_feedforward_layernorm": "ffn_norm",
    "pre_feedforward_layernorm_2": "pre_ffw_norm_2",
    "post_feedforward_layernorm": "post_ffw_norm",
    "post_feedforward_layernorm_1": "post_ffw_norm_1",
    "post_feedforward_layernorm_2": "post_ffw_norm_2",
    "per_layer_input_gate": "inp_gate",
    "per_layer_projection": "proj",
    "post_per_layer_input_norm": "post_norm",
    "router.proj": "ffn_gate_inp",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    **dict.fromkeys(
        ("mlp.gate", "feed_forward.gate", "mixer.gate", "block_sparse_moe.router"), "ffn_gate_inp"
    ),
}
_GEMMA4 = {
    "layer_scalar": "layer_output_scale.weight",
    "scale": "ffn_gate_inp.scale",
    "per_expert_scale": "ffn_down_exps.scale",
}
_PERMUTED = ("granitemoehybrid", "bamba", "nemotron_h", "smollm3")
"""Types whose queries and keys get another order."""
NUMBERS = ("ffn_gate_inp", "ssm_conv1d", "shortconv.conv", "ssm_a", "ssm_d", "ssm_norm", "bias")
"""What the converter keeps in float32, among matrices."""


def architecture(config: PreTrainedConfig) -> str:
    """Return what the converter calls the architecture of a model."""
    has_experts = config.model_type == "nemotron_h" and "moe" in config.layers_block_type
    return "nemotron_h_moe" if has_experts else KINDS[config.model_type]


def converted(config: PreTrainedConfig, name: str, values: NDArray) -> Converted:
    """Yield the tensors of the file that a tensor of a checkpoint becomes."""
    match = re.fullmatch(r"model\.layers\.([0-9]+)\.(.+)", name)
    if match is None:
        end, _, part = name.removeprefix("model.").rpartition(".")
        yield f"{_ENDS[end]}.{part}", _norm(config, end, values)
        return
    at, own = f"blk.{match[1]}.", match[2]
    for part, tensor in _of_layer(config, own, values):
        yield at + part, tensor


def _of_layer(config: PreTrainedConfig, name: str, values: NDArray) -> Converted:
    layer, _, last = name.rpartition(".")
    match last:
        case "A_log":
            yield "ssm_a", _vector(config, -np.exp(_in_turn(config, name, values)))
        case "D":
            yield "ssm_d", _vector(config, values)
        case "dt_bias":
            yield "ssm_dt.bias", _in_turn(config, name, values)
        case "expert_bias" | "e_score_correction_bias":
            yield "exp_probs_b.bias", values
        case "layer_scalar" | "scale" | "per_expert_scale":
            yield _GEMMA4[last], values
        case "gate_up_proj" if config.model_type == "gemma4_text":
            yield "ffn_gate_up_exps.weight", values
        case "gate_up_proj":
            gate, up = np.split(values, 2, axis=1)
            yield "ffn_gate_exps.weight", gate
            yield "ffn_up_exps.weight", up
        case "up_proj" | "down_proj":
            yield f"ffn_{last.removesuffix('_proj')}_exps.weight", values
        case _:
            yield from _of_module(config, layer, last, values)


def _of_module(config: PreTrainedConfig, layer: str, last: str, values: NDArray) -> Converted:
    kind = config.model_type
    if layer == "shared_mlp.input_linear":
        end = "_shexp" if config.num_local_experts else ""
        gate, up = np.split(values, 2)
        yield f"ffn_gate{end}.weight", gate
        yield f"ffn_up{end}.weight", up
    elif layer == "shared_mlp.output_linear" and not config.num_local_experts:
        yield "ffn_down.weight", values
    elif layer == "linear_attn.in_proj_qkvz":
        heads, key, value, ratio = delta_sizes(config)
        groups = values.reshape(heads, 2 * key + 2 * ratio * value, -1)
        places = [key, 2 * key, 2 * key + ratio * value]
        *qkv, gate = (
            part.reshape(-1, values.shape[1]) for part in np.split(groups, places, axis=1)
        )
        yield "attn_qkv.weight", np.concatenate(qkv)
        yield "attn_gate.weight", gate
    elif layer == "post_attention_layernorm":
        name = "post_attention_norm" if kind.startswith(("qwen", "olmo", "gemma4")) else "ffn_norm"
        yield f"{name}.{last}", _norm(config, layer, values)
    elif layer in ("pre_ff_layernorm", "ffn_norm") and kind == "falcon_h1":
        yield "ffn_norm", values
    elif layer == "pre_ff_layernorm":
        yield f"ffn_norm.{last}", values
    else:
        yield f"{_OF_LAYER[layer]}.{last}", _changed(config, layer, last, values)


def _changed(config: PreTrainedConfig, layer: str, last: str, values: NDArray) -> NDArray:
    if "conv1d" in layer or layer == "conv.conv":
        return _in_turn(config, layer, values.squeeze(1) if last == "weight" else values)
    if layer in ("mamba.norm", "mixer.norm"):
        groups = config.n_groups if config.model_type == "nemotron_h" else config.mamba_n_groups
        return values.reshape(groups, -1)
    heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
    own = layer.rpartition(".")[2]
    if own in heads and config.model_type in _PERMUTED:
        halves = values.reshape(getattr(config, heads[own]), 2, -1, *values.shape[1:])
        return halves.swapaxes(1, 2).reshape(values.shape)
    return _norm(config, layer, _in_turn(config, layer, values))


def is_shifted(config: PreTrainedConfig, name: str) -> bool:
    """Return whether a file holds the weights of a norm plus 1."""
    is_norm = name.endswith(("norm.weight", "norm")) and not name.startswith("linear_attn.")
    return is_norm and ".linear_attn." not in name and config.model_type.startswith("qwen")


def factors(config: PreTrainedConfig, name: str, shape: tuple[int, ...]) -> NDArray:
    """Return what the numbers of a tensor are multiplied by: factors of Falcon-H1."""
    found = np.ones(shape, dtype=np.float32)
    if config.model_type != "falcon_h1":
        return found
    of_inputs = config.attention_in_multiplier
    gate, down = config.mlp_multipliers
    by_layer = {
        "down_proj": down,
        "gate_proj": gate,
        "k_proj": config.key_multiplier * of_inputs,
        "q_proj": of_inputs,
        "v_proj": of_inputs,
        "o_proj": config.attention_out_multiplier,
        "out_proj": config.ssm_out_multiplier,
        "in_proj": config.ssm_in_multiplier,
        "lm_head": config.lm_head_multiplier,
        "embed_tokens": config.embedding_multiplier,
    }
    layer = name.split(".")[-2]
    found *= by_layer.get(layer, 1.0)
    if layer == "in_proj":
        inner, state = config.mamba_d_ssm, config.mamba_n_groups * config.mamba_d_state
        sizes = [inner, inner, state, state, config.mamba_n_heads]
        found *= np.repeat(config.ssm_multipliers, sizes).astype(np.float32)[:, None]
    return found


def _norm(config: PreTrainedConfig, layer: str, values: NDArray) -> NDArray:
    return values + 1 if is_shifted(config, layer) else values


def _vector(config: PreTrainedConfig, values: NDArray) -> NDArray:
    return values if config.model_type.startswith("qwen") else values[:, None]


def delta_sizes(config: PreTrainedConfig) -> tuple[int, int, int, int]:
    heads = config.linear_num_key_heads
    ratio = config.linear_num_value_heads // heads
    return heads, config.linear_key_head_dim, config.linear_value_head_dim, ratio


def _in_turn(config: PreTrainedConfig, layer: str, values: NDArray) -> NDArray:
    """Return values of Qwen 3.5 whose heads of values have the heads of keys in turn."""
    if not config.model_type.startswith("qwen3_5") or not layer.startswith("linear_attn."):
        return values
    heads, key, value, ratio = delta_sizes(config)
    own = layer.partition(".")[2]

    def reordered(rows: NDArray, size: int) -> NDArray:
        groups = rows.reshape(heads, ratio, size, *rows.shape[1:])
        return groups.swapaxes(0, 1).reshape(rows.shape)

    match own:
        case "in_proj_qkv" | "conv1d":
            keys = 2 * heads * key
            return np.concatenate([values[:keys], reordered(values[keys:], value)])
        case "in_proj_z":
            return reordered(values, value)
        case "in_proj_b" | "in_proj_a" | "A_log" | "dt_bias":
            return reordered(values, 1)
        case "out_proj":
            return np.ascontiguousarray(reordered(values.T, value).T)
        case _:
            return values
