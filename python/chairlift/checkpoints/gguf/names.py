"""What GGUF files call the parts of a model."""

from dataclasses import replace
from typing import Final

from chairlift.checkpoints.files.names import CheckpointNames

NAMES: Final = CheckpointNames(
    embedding="token_embd",
    final_norm="output_norm",
    head="output",
    layers="blk",
    attention_norm="attn_norm",
    query="attn_q",
    key="attn_k",
    value="attn_v",
    query_norm="attn_q_norm",
    key_norm="attn_k_norm",
    output="attn_output",
    feed_forward_norm="ffn_norm",
    gate="ffn_gate",
    up="ffn_up",
    down="ffn_down",
    attention_norm_after="post_attention_norm",
    feed_forward_norm_after="post_ffw_norm",
    router="ffn_gate_inp",
    choice_bias="exp_probs_b.bias",
    choice_bias_axes=1,
    expert_gate="ffn_gate_exps.{}",
    expert_up="ffn_up_exps.{}",
    expert_down="ffn_down_exps.{}",
    shared="{}_shexp",
    shared_gate="ffn_gate_inp_shexp",
    sinks="attn_sinks.weight",
    conv=("ssm_conv1d",),
    delta="ssm_",
    rate="a",
    step_bias="dt.bias",
    skip="d",
    rates_are_negative=True,
    mixed="ssm_out",
)
_LFM2: Final = replace(
    NAMES,
    final_norm="token_embd_norm",
    projection=("shortconv.in_proj",),
    conv=("shortconv.conv",),
    mixed="shortconv.out_proj",
)
_QWEN3_5: Final = replace(
    NAMES,
    feed_forward_norm="post_attention_norm",
    projection=("attn_qkv", "attn_gate"),
    b_a=("ssm_beta", "ssm_alpha"),
)
_MAMBA: Final = replace(NAMES, projection=("ssm_in",))
NAMES_OF: Final = {
    "GptOssForCausalLM": replace(NAMES, feed_forward_norm="post_attention_norm"),
    "Lfm2ForCausalLM": _LFM2,
    "Lfm2MoeForCausalLM": _LFM2,
    "Qwen3_5ForCausalLM": _QWEN3_5,
    "Qwen3_5MoeForCausalLM": _QWEN3_5,
    "Qwen3NextForCausalLM": replace(_QWEN3_5, b_a=("ssm_ba",)),
    "GraniteMoeHybridForCausalLM": _MAMBA,
    "FalconH1ForCausalLM": _MAMBA,
    "NemotronHForCausalLM": replace(_MAMBA, feed_forward_norm="attn_norm"),
    "Gemma4ForCausalLM": replace(
        NAMES,
        scalar="layer_output_scale.weight",
        shared="{}",
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
    "Phi3ForCausalLM": replace(NAMES, qkv="attn_qkv", gate_up="ffn_up"),
}
"""By the family, where they are not `NAMES`."""
