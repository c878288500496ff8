"""What GGUF files call the parts of a model."""

from dataclasses import replace
from typing import Final

from chairlift.checkpoints.files.names import CheckpointNames

NAMES: Final = CheckpointNames(
    embedding="token_embd",
    final_norm="output_norm",
    head="output",
    layers="blk",
    choice_bias_axes=1,
    rates_are_negative=True,
    parts={},
).with_parts(
    attention_norm="attn_norm",
    qkv=("attn_q", "attn_k", "attn_v"),
    query_norm="attn_q_norm",
    key_norm="attn_k_norm",
    sinks="attn_sinks.weight",
    output="attn_output",
    attention_norm_after="post_attention_norm",
    feed_forward_norm="ffn_norm",
    gate_up=("ffn_gate", "ffn_up"),
    down="ffn_down",
    feed_forward_norm_after="post_ffw_norm",
    router=("ffn_gate_inp", "ffn_gate_inp_shexp"),
    choice_bias="exp_probs_b.bias",
    expert_gate_up=("ffn_gate_exps.{}", "ffn_up_exps.{}"),
    expert_down="ffn_down_exps.{}",
    shared_gate_up=("ffn_gate_shexp", "ffn_up_shexp"),
    shared_down="ffn_down_shexp",
    beta_alpha=(),
    conv="ssm_conv1d",
    rate="ssm_a",
    dt_bias="ssm_dt.bias",
    skip="ssm_d",
    state_norm="ssm_norm",
    mixed_output="ssm_out",
)
QUERY, KEY, VALUE = NAMES["qkv"]
(DOWN,) = NAMES["down"]
(CHOICE_BIAS,) = NAMES["choice_bias"]
_LFM2: Final = replace(
    NAMES.with_parts(
        projection="shortconv.in_proj", conv="shortconv.conv", mixed_output="shortconv.out_proj"
    ),
    final_norm="token_embd_norm",
)
_QWEN3_5: Final = NAMES.with_parts(
    feed_forward_norm="post_attention_norm",
    projection=("attn_qkv", "attn_gate"),
    beta_alpha=("ssm_beta", "ssm_alpha"),
)
_MAMBA: Final = NAMES.with_parts(projection="ssm_in")
NAMES_OF: Final = {
    "GptOssForCausalLM": NAMES.with_parts(feed_forward_norm="post_attention_norm"),
    "Lfm2ForCausalLM": _LFM2,
    "Lfm2MoeForCausalLM": _LFM2,
    "Qwen3_5ForCausalLM": _QWEN3_5,
    "Qwen3_5MoeForCausalLM": _QWEN3_5,
    "Qwen3NextForCausalLM": _QWEN3_5.with_parts(beta_alpha="ssm_ba"),
    "GraniteMoeHybridForCausalLM": _MAMBA,
    "FalconH1ForCausalLM": _MAMBA,
    "NemotronHForCausalLM": _MAMBA.with_parts(feed_forward_norm="attn_norm"),
    "Gemma4ForCausalLM": NAMES.with_parts(
        scalar="layer_output_scale.weight",
        shared_gate_up=NAMES["gate_up"],
        shared_down=NAMES["down"],
        router_norm="ffn_gate_inp",
        factors="ffn_down_exps.scale",
        expert_gate_up="ffn_gate_up_exps.{}",
        experts_norm="pre_ffw_norm_2",
        shared_norm_after="post_ffw_norm_1",
        experts_norm_after="post_ffw_norm_2",
        layer_embedding="per_layer_token_embd",
        layer_context="per_layer_model_proj",
        layer_context_norm="per_layer_proj_norm",
        input_gate="inp_gate",
        input_projection="proj",
        input_norm="post_norm",
    ),
    "Phi3ForCausalLM": NAMES.with_parts(qkv="attn_qkv", gate_up="ffn_up"),
}
"""By the family, where they are not `NAMES`."""
