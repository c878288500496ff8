"""Small random encoders of each family."""

import torch
import transformers
from chairlift.model.encoders.encoder import Packed

SIZES = {
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "attn_implementation": "eager",
}
FAMILIES = {
    "bert": (transformers.BertConfig, {}),
    "bert, tanh gelu": (transformers.BertConfig, {"hidden_act": "gelu_new"}),
    "roberta": (transformers.RobertaConfig, {"max_position_embeddings": 514}),
    "xlm-roberta": (transformers.XLMRobertaConfig, {"max_position_embeddings": 514}),
    "mpnet": (transformers.MPNetConfig, {"max_position_embeddings": 514}),
    "modernbert": (transformers.ModernBertConfig, {"local_attention": 48, "pad_token_id": 0}),
    "modernbert, biases": (
        transformers.ModernBertConfig,
        {"norm_bias": True, "attention_bias": True, "mlp_bias": True, "pad_token_id": 0},
    ),
    "nomic-bert": (transformers.NomicBertConfig, {}),
    "embedding-gemma": (
        transformers.Gemma3TextConfig,
        {
            "use_bidirectional_attention": True,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "sliding_window": 48,
            "query_pre_attn_scalar": 24,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
            "num_hidden_layers": 6,
            "max_position_embeddings": 512,
        },
    ),
}


def perturb(model, seed=0):
    generator = torch.Generator().manual_seed(seed)
    # Gemma stores the weights of norms less 1.
    middle = 0 if isinstance(model, transformers.Gemma3PreTrainedModel) else 1
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if "norm" in name.lower() and name.endswith("weight"):
                parameter.copy_(middle + noise / 4)
            else:
                parameter.copy_(noise / (4 if parameter.dim() == 1 else 8))
    return model.eval()


def pretrain(folder, family, kind="AutoModel", **changes):
    """Save a model of random weights, and return it."""
    config, fields = FAMILIES[family]
    torch.manual_seed(0)
    own = config(**{**SIZES, **fields, **changes})
    named = getattr(transformers, kind)
    model = named.from_config(own) if kind.startswith("Auto") else named(own)
    perturb(model)
    model.save_pretrained(folder)
    return model


def pack(sequences, types=None):
    lengths = torch.tensor([len(s) for s in sequences])
    return Packed(
        input_ids=torch.tensor([i for s in sequences for i in s], dtype=torch.int32),
        positions=torch.cat([torch.arange(n) for n in lengths]).int(),
        starts=torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)]).int(),
        token_types=None if types is None else torch.tensor(types, dtype=torch.int32),
    )
