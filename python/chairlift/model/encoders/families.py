"""The families of encoders: functions from config.json to `EncoderSpec`, and their names."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch

from chairlift.api.choices import Dtype
from chairlift.api.errors import ModelError
from chairlift.checkpoints.files.fields import Fields, either, read_json
from chairlift.checkpoints.files.folder import CONFIG
from chairlift.kernels import cpu
from chairlift.model.config import ModelConfig
from chairlift.model.encoders.spec import (
    Classifier,
    EncoderConfig,
    EncoderLayerSpec,
    EncoderNames,
    EncoderSpec,
    RelativeBias,
)
from chairlift.model.families import BIDIRECTIONAL
from chairlift.model.specs.rope import Rope

ACTIVATIONS: Final[Mapping[str, str]] = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
}
"""What the kernels call the activations of config.json."""

_DTYPES: Final = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.bfloat16,
}
_UNUSED_BERT: Final = ("pooler.", "embeddings.position_ids", "cls.", "lm_head.")


class EncoderFamily(NamedTuple):
    """A way to read config.json and a checkpoint."""

    spec: Callable[[Fields], EncoderSpec]
    names: EncoderNames
    prefix: str
    """How the names of the encoder's tensors begin in a checkpoint with a head."""
    defaults: Mapping[str, Any]
    """The values of `transformers` for fields that config.json leaves out."""
    head: Callable[[Fields], Classifier]


def _heads(fields: Fields) -> int:
    hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    if hidden % heads:
        fields.fail("num_attention_heads", f"a divisor of {hidden}")
    return heads


def _bert(fields: Fields) -> EncoderSpec:
    if fields.choice("position_embedding_type", {"absolute": 1}, default="absolute") != "absolute":
        fields.fail("position_embedding_type", "absolute")
    if fields.flag("is_decoder"):
        fields.fail("is_decoder", "false")
    return EncoderSpec(
        vocab_size=fields.integer("vocab_size"),
        hidden_size=fields.integer("hidden_size"),
        num_heads=_heads(fields),
        intermediate_size=fields.integer("intermediate_size"),
        layers=(EncoderLayerSpec(),) * fields.integer("num_hidden_layers"),
        norm_eps=fields.number("layer_norm_eps"),
        activation=ACTIVATIONS[fields.choice("hidden_act", ACTIVATIONS, default="gelu")],
        num_positions=fields.integer("max_position_embeddings"),
        num_token_types=fields.integer("type_vocab_size", minimum=0),
    )


def _roberta(fields: Fields) -> EncoderSpec:
    padding = fields.integer("pad_token_id", minimum=0)
    return replace(_bert(fields), first_position=padding + 1)


def _mpnet(fields: Fields) -> EncoderSpec:
    buckets = fields.integer("relative_attention_num_buckets")
    if buckets != _MPNET_BUCKETS:
        fields.fail("relative_attention_num_buckets", str(_MPNET_BUCKETS))
    spec = _bert(fields)
    return replace(
        spec, first_position=2, num_token_types=0, relative_bias=RelativeBias(buckets, 128)
    )


_MPNET_BUCKETS: Final = 32
"""The only number that `transformers` computes right, since it reads no other."""


def _modernbert(fields: Fields) -> EncoderSpec:
    kinds = _layer_kinds(fields)
    window = fields.integer("local_attention")
    ropes = {
        "full_attention": _rope(fields, "full_attention", "global_rope_theta", 160_000.0),
        "sliding_attention": _rope(fields, "sliding_attention", "local_rope_theta", 10_000.0),
    }
    layers = (
        EncoderLayerSpec(
            rope=ropes[kind],
            reach=window // 2 if kind == "sliding_attention" else None,
            has_attention_norm=number > 0,
        )
        for number, kind in enumerate(kinds)
    )
    return EncoderSpec(
        vocab_size=fields.integer("vocab_size"),
        hidden_size=fields.integer("hidden_size"),
        num_heads=_heads(fields),
        intermediate_size=fields.integer("intermediate_size"),
        layers=tuple(layers),
        norm_eps=fields.number("norm_eps"),
        activation=ACTIVATIONS[fields.choice("hidden_activation", ACTIVATIONS, default="gelu")],
        is_gated=True,
        norm_first=True,
        norm_bias=fields.flag("norm_bias"),
        attention_bias=fields.flag("attention_bias"),
        mlp_bias=fields.flag("mlp_bias"),
    )


def _layer_kinds(fields: Fields) -> list[str]:
    num_layers, kinds = fields.integer("num_hidden_layers"), fields.values.get("layer_types")
    known = {"full_attention", "sliding_attention"}
    if kinds is None:
        every = fields.integer("global_attn_every_n_layers", default=3)
        return ["sliding_attention" if n % every else "full_attention" for n in range(num_layers)]
    if not isinstance(kinds, list) or len(kinds) != num_layers or not known.issuperset(kinds):
        fields.fail("layer_types", f"{num_layers} names, each one of {', '.join(sorted(known))}")
    return [str(kind) for kind in kinds]


def _rope(fields: Fields, kind: str, old_name: str, default: float) -> Rope:
    """Read a position embedding, of one kind of layers or of all."""
    if fields.values.get("rope_scaling") is not None:
        fields.fail("rope_scaling", "nothing")
    values = fields.values.get("rope_parameters") or {}
    if kind and isinstance(values, dict):
        values = values.get(kind) or {}
    if not isinstance(values, dict):
        fields.fail("rope_parameters", "an object")
    inner = Fields(fields.path, values, prefix="rope_parameters.")
    if inner.choice("rope_type", {"default": 1}, default="default") != "default":
        inner.fail("rope_type", "default")
    if inner.number("partial_rotary_factor", default=1.0) != 1.0:
        inner.fail("partial_rotary_factor", "1")
    old = fields.number(old_name, default=default, positive=True)
    return Rope(inner.number("rope_theta", default=old, positive=True))


def _nomic(fields: Fields) -> EncoderSpec:
    rope = _rope(fields, "", "rope_theta", 1000.0)
    spec = _bert(fields)
    head_dim = fields.optional_integer("head_dim")
    if head_dim not in (None, spec.head_dim):
        fields.fail("head_dim", str(spec.head_dim))
    return replace(
        spec,
        layers=(EncoderLayerSpec(rope=rope),) * spec.num_layers,
        is_gated=True,
        attention_bias=False,
        mlp_bias=False,
        num_positions=0,
    )


def _labels(fields: Fields) -> tuple[str, ...]:
    names = fields.values.get("id2label")
    if names is None:
        return tuple(f"LABEL_{n}" for n in range(fields.integer("num_labels", default=2)))
    if not isinstance(names, dict) or not names:
        fields.fail("id2label", "an object from numbers to names")
    labels = [names.get(str(number)) for number in range(len(names))]
    if not all(isinstance(label, str) for label in labels):
        fields.fail("id2label", f"a name for each number from 0 to {len(names) - 1}")
    return tuple(str(label) for label in labels)


def _classifier(fields: Fields, activation: str, pooling: str = "cls") -> Classifier:
    kind = fields.values.get("problem_type")
    labels = _labels(fields)
    return Classifier(
        labels=labels,
        is_multi_label=kind == "multi_label_classification" or len(labels) == 1,
        pooling=pooling,
        activation=activation,
    )


def _tanh_head(fields: Fields) -> Classifier:
    return _classifier(fields, "tanh")


def _modernbert_head(fields: Fields) -> Classifier:
    pooling = fields.choice("classifier_pooling", {"cls": 1, "mean": 1}, default="cls")
    activation = fields.choice("classifier_activation", ACTIVATIONS, default="gelu")
    head = _classifier(fields, ACTIVATIONS[activation], pooling)
    return replace(head, has_norm=True, dense_bias=fields.flag("classifier_bias"))


_BERT_NAMES: Final = EncoderNames(
    embedding="embeddings.word_embeddings",
    positions="embeddings.position_embeddings",
    token_types="embeddings.token_type_embeddings",
    embedding_norm="embeddings.LayerNorm",
    layers="encoder.layer",
    qkv=("attention.self.query", "attention.self.key", "attention.self.value"),
    output="attention.output.dense",
    attention_norm="attention.output.LayerNorm",
    gate_up=("intermediate.dense",),
    down="output.dense",
    feed_forward_norm="output.LayerNorm",
    dense="pooler.dense",
    classifier="classifier",
    unused=_UNUSED_BERT,
)
_ROBERTA_NAMES: Final = replace(
    _BERT_NAMES, dense="classifier.dense", classifier="classifier.out_proj"
)
_MPNET_NAMES: Final = replace(
    _ROBERTA_NAMES,
    token_types="",
    relative_bias="encoder.relative_attention_bias",
    qkv=("attention.attn.q", "attention.attn.k", "attention.attn.v"),
    output="attention.attn.o",
    attention_norm="attention.LayerNorm",
)
_MODERNBERT_NAMES: Final = EncoderNames(
    embedding="embeddings.tok_embeddings",
    embedding_norm="embeddings.norm",
    layers="layers",
    qkv=("attn.Wqkv",),
    output="attn.Wo",
    attention_norm="attn_norm",
    gate_up=("mlp.Wi",),
    down="mlp.Wo",
    feed_forward_norm="mlp_norm",
    final_norm="final_norm",
    dense="head.dense",
    dense_norm="head.norm",
    classifier="classifier",
    unused=("decoder.", "head."),
)
_NOMIC_NAMES: Final = replace(
    _BERT_NAMES,
    positions="",
    embedding_norm="emb_ln",
    layers="encoder.layers",
    qkv=("attn.Wqkv",),
    output="attn.out_proj",
    attention_norm="norm1",
    gate_up=("mlp.fc12", "mlp.fc11"),
    down="mlp.fc2",
    feed_forward_norm="norm2",
)

_BERT_DEFAULTS: Final = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "pad_token_id": 1,
}
_BERT = EncoderFamily(_bert, _BERT_NAMES, "bert.", _BERT_DEFAULTS, _tanh_head)
_ROBERTA = EncoderFamily(_roberta, _ROBERTA_NAMES, "roberta.", _BERT_DEFAULTS, _tanh_head)
_MPNET = EncoderFamily(
    _mpnet,
    _MPNET_NAMES,
    "mpnet.",
    {**_BERT_DEFAULTS, "vocab_size": 30527, "relative_attention_num_buckets": 32},
    _tanh_head,
)
_MODERNBERT = EncoderFamily(
    _modernbert,
    _MODERNBERT_NAMES,
    "model.",
    {
        "vocab_size": 50368,
        "hidden_size": 768,
        "intermediate_size": 1152,
        "num_hidden_layers": 22,
        "num_attention_heads": 12,
        "max_position_embeddings": 8192,
        "norm_eps": 1e-5,
        "local_attention": 128,
    },
    _modernbert_head,
)
_NOMIC = EncoderFamily(
    _nomic,
    _NOMIC_NAMES,
    "nomic_bert.",
    {
        **_BERT_DEFAULTS,
        "vocab_size": 30528,
        "max_position_embeddings": 2048,
        "hidden_act": "silu",
    },
    _tanh_head,
)

ENCODERS: Final[Mapping[str, tuple[EncoderFamily, bool]]] = {
    "BertModel": (_BERT, False),
    "BertForMaskedLM": (_BERT, False),
    "BertForSequenceClassification": (_BERT, True),
    "RobertaModel": (_ROBERTA, False),
    "RobertaForMaskedLM": (_ROBERTA, False),
    "RobertaForSequenceClassification": (_ROBERTA, True),
    "XLMRobertaModel": (_ROBERTA, False),
    "XLMRobertaForMaskedLM": (_ROBERTA, False),
    "XLMRobertaForSequenceClassification": (_ROBERTA, True),
    "MPNetModel": (_MPNET, False),
    "MPNetForMaskedLM": (_MPNET, False),
    "MPNetForSequenceClassification": (_MPNET, True),
    "ModernBertModel": (_MODERNBERT, False),
    "ModernBertForMaskedLM": (_MODERNBERT, False),
    "ModernBertForSequenceClassification": (_MODERNBERT, True),
    "NomicBertModel": (_NOMIC, False),
}
"""By the name in `architectures`: the family, and whether the checkpoint has a classifier."""


def is_encoder(model: Path) -> bool:
    """Return whether a model is a folder with an encoder.

    Raises:
        ModelError: Its config.json cannot be read.
    """
    if not model.is_dir():
        return False
    name = _architecture(read_json(model / CONFIG))
    return name in ENCODERS or name in BIDIRECTIONAL


def load_encoder_config(folder: Path, dtype: Dtype = Dtype.AUTO) -> EncoderConfig | ModelConfig:
    """Read the configuration of an encoder.

    Args:
        folder: With config.json.
        dtype: What to compute in; auto is bfloat16, also where the checkpoint is float32.

    Raises:
        ModelError: A field is malformed, or asks for something unsupported.

    Returns:
        A `ModelConfig` where the layers are those of a decoder (`spec.bidirectional`).
    """
    fields = Fields(folder / CONFIG, read_json(folder / CONFIG))
    name = _architecture(fields.values)
    if name in BIDIRECTIONAL:
        bidirectional_dtype = Dtype.BFLOAT16 if dtype is Dtype.AUTO else dtype
        return ModelConfig.load(folder, bidirectional_dtype, BIDIRECTIONAL)
    if name not in ENCODERS:
        fields.fail("architectures", either(ENCODERS))
    family, has_head = ENCODERS[name]
    fields = fields.with_defaults(family.defaults)
    spec, names = family.spec(fields), replace(family.names, prefix=family.prefix)
    if has_head:
        spec = replace(spec, classifier=family.head(fields))
    if spec.head_dim not in cpu.LIMITS.head_dims:
        expected = cpu.LIMITS.head_dims_text
        message = f"{fields.path}: head_dim: expected {expected}, got {spec.head_dim}"
        raise ModelError(message)
    longest = spec.num_positions - spec.first_position if spec.num_positions else None
    chosen = "bfloat16" if dtype is Dtype.AUTO else dtype.value
    return EncoderConfig(
        architecture=name,
        spec=spec,
        names=names,
        dtype=_DTYPES[chosen],
        max_model_len=longest or fields.integer("max_position_embeddings"),
    )


def _architecture(values: Mapping[str, Any]) -> str:
    names = values.get("architectures")
    name = names[0] if isinstance(names, list) and len(names) == 1 else ""
    return name if isinstance(name, str) else ""
