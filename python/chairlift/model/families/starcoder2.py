"""StarCoder2: layer norms, biases everywhere, and a feed-forward without a gate."""

from chairlift.checkpoints.files.fields import Fields
from chairlift.model.families.family import (
    LLAMA_NAMES,
    Family,
    attention,
    decoder,
    effective_window,
    mlp,
    with_windows,
)
from chairlift.model.specs.layer_parts import LayerNorm
from chairlift.model.specs.model_spec import LayerSpec, ModelSpec


def _spec(fields: Fields) -> ModelSpec:
    bias = fields.flag("use_bias")
    norm = LayerNorm(fields.number("norm_epsilon"), has_bias=True)
    layer = LayerSpec(
        attention(fields, qkv_bias=bias, out_bias=bias),
        mlp(fields, bias=bias, gated=False),
        norm,
    )
    window = effective_window(fields, fields.optional_integer("sliding_window"))
    layers = with_windows(layer, [window] * fields.integer("num_hidden_layers"))
    return decoder(fields, layers, final_norm=norm)


STARCODER2 = Family(
    _spec,
    LLAMA_NAMES.with_parts(gate_up="mlp.c_fc", down="mlp.c_proj"),
    defaults={
        "num_key_value_heads": 2,
        "hidden_act": "gelu_pytorch_tanh",
        "norm_epsilon": 1e-5,
        "use_bias": True,
        "tie_word_embeddings": True,
    },
)
