"""Encoders and classifiers in the forms in which they are published, against `transformers`."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import pytest
import torch
from chairlift.api.choices import Dtype
from chairlift.model.encoders.bidirectional import load_encoder_model
from chairlift.model.encoders.families import load_encoder_config
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForSequenceClassification

from tests.model.encoder_table import pack, pretrain

SEQUENCES = [[5, 9, 77, 3, 128], [64], [4 + number for number in range(90)]]


class Form(NamedTuple):
    """How the files of a checkpoint differ from those that `transformers` saves today."""

    family: str
    saved: str
    """The class that saves it."""
    architecture: str = ""
    """In config.json; empty is that class."""
    prefix: tuple[str, str] = ("", "")
    """How the names of the encoder's tensors begin in a saved model, and what stands there."""
    renamed: tuple[tuple[str, str], ...] = ()
    """Parts of names, and what stands there instead."""
    left_out: tuple[str, ...] = ()
    """How the names begin of tensors that are not there."""
    buffers: Mapping[str, torch.Tensor] = {}
    """Constants beside the weights."""
    config: Mapping[str, Any] = {}
    """Further fields of config.json."""
    num_labels: int = 0


POSITIONS = torch.arange(512).unsqueeze(0)
OLD_NORMS = (("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta"))
OLD_CONFIG = {"gradient_checkpointing": False, "position_embedding_type": "absolute"}
MODERN = {
    "position_embedding_type": "absolute",
    "global_rope_theta": 160_000.0,
    "local_rope_theta": 10_000.0,
    "rope_parameters": None,
    "layer_types": None,
    "global_attn_every_n_layers": 3,
    "deterministic_flash_attn": False,
    "reference_compile": None,
}
FORMS = {
    "bert-base-uncased": Form(
        "bert",
        "BertForMaskedLM",
        prefix=("bert.", "bert."),
        renamed=OLD_NORMS,
        config=OLD_CONFIG,
    ),
    "a BERT with pre-training heads": Form(
        "bert", "BertForPreTraining", "BertForMaskedLM", renamed=OLD_NORMS
    ),
    "all-MiniLM-L6-v2": Form(
        "bert", "BertModel", buffers={"embeddings.position_ids": POSITIONS}, config=OLD_CONFIG
    ),
    "bge-small-en-v1.5": Form(
        "bert",
        "BertModel",
        buffers={"embeddings.position_ids": POSITIONS},
        config={"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}},
    ),
    "a BertModel below a head's names": Form("bert", "BertForMaskedLM", "BertModel"),
    "a BertForMaskedLM without its head": Form("bert", "BertModel", "BertForMaskedLM"),
    "a BertModel without a pooler": Form("bert", "BertModel", left_out=("pooler.",)),
    "ms-marco-MiniLM-L6-v2": Form(
        "bert",
        "BertForSequenceClassification",
        buffers={"bert.embeddings.position_ids": POSITIONS},
        config={"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"},
        num_labels=1,
    ),
    "an old BERT that classifies": Form(
        "bert", "BertForSequenceClassification", renamed=OLD_NORMS, num_labels=3
    ),
    "a BERT with an old name of its activation": Form(
        "bert", "BertModel", config={"hidden_act": "gelu_python"}
    ),
    "a BERT with an old name of another activation": Form(
        "bert", "BertModel", config={"hidden_act": "gelu_fast"}
    ),
    "multilingual-e5-small": Form(
        "xlm-roberta", "XLMRobertaModel", buffers={"embeddings.position_ids": POSITIONS}
    ),
    "xlm-roberta-base": Form(
        "xlm-roberta",
        "XLMRobertaForMaskedLM",
        buffers={"roberta.embeddings.position_ids": POSITIONS},
    ),
    "roberta-base": Form(
        "roberta",
        "RobertaForMaskedLM",
        renamed=OLD_NORMS,
        buffers={"roberta.embeddings.position_ids": POSITIONS},
    ),
    "all-distilroberta-v1": Form(
        "roberta",
        "RobertaModel",
        "RobertaForMaskedLM",
        buffers={"embeddings.position_ids": POSITIONS},
    ),
    "bge-reranker-base": Form(
        "xlm-roberta",
        "XLMRobertaForSequenceClassification",
        buffers={"roberta.embeddings.position_ids": POSITIONS},
        num_labels=1,
    ),
    "all-mpnet-base-v2": Form(
        "mpnet", "MPNetModel", "MPNetForMaskedLM", buffers={"embeddings.position_ids": POSITIONS}
    ),
    "mpnet-base": Form(
        "mpnet", "MPNetForMaskedLM", buffers={"mpnet.embeddings.position_ids": POSITIONS}
    ),
    "an MPNet that classifies": Form("mpnet", "MPNetForSequenceClassification", num_labels=1),
    "gte-modernbert-base": Form("modernbert", "ModernBertModel", config=MODERN),
    "ModernBERT-base": Form("modernbert", "ModernBertForMaskedLM", config=MODERN),
    "a ModernBertModel below a head's names": Form(
        "modernbert", "ModernBertForMaskedLM", "ModernBertModel"
    ),
    "gte-reranker-modernbert-base": Form(
        "modernbert",
        "ModernBertForSequenceClassification",
        config={**MODERN, "classifier_pooling": "mean"},
        num_labels=1,
    ),
    "nomic-embed-text-v1.5 as transformers has it": Form("nomic-bert", "NomicBertModel"),
    "embeddinggemma-300m": Form(
        "embedding-gemma",
        "Gemma3TextModel",
        config={"_sliding_window_pattern": 6, "attn_logit_softcapping": None},
    ),
    "an EmbeddingGemma below a head's names": Form(
        "embedding-gemma", "Gemma3TextModel", prefix=("", "model.")
    ),
}
"""By the name of the checkpoint."""


def publish(folder, form: Form):
    """Write a random model in a form."""
    labels = {"num_labels": form.num_labels} if form.num_labels else {}
    pretrain(folder, form.family, form.saved, **labels)
    file = folder / "model.safetensors"
    old, new = form.prefix
    published = {}
    for name, tensor in load_file(file).items():
        if name.startswith(form.left_out or ("\0",)):
            continue
        own = new + name.removeprefix(old) if name.startswith(old) else name
        for part, other in form.renamed:
            own = own.replace(part, other)
        published[own] = tensor
    save_file({**published, **form.buffers}, file, metadata={"format": "pt"})
    path = folder / "config.json"
    config = json.loads(path.read_text()) | form.config
    config["torch_dtype"] = config.pop("dtype", "float32")
    if form.architecture:
        config["architectures"] = [form.architecture]
    path.write_text(json.dumps(config))


@pytest.mark.parametrize("name", FORMS)
@torch.inference_mode()
def test_a_published_encoder_gives_what_transformers_gives(tmp_path, name):
    form = FORMS[name]
    publish(tmp_path, form)
    kind = AutoModelForSequenceClassification if form.num_labels else AutoModel
    reference = kind.from_pretrained(tmp_path, attn_implementation="eager").eval()
    encoder = load_encoder_model(tmp_path, load_encoder_config(tmp_path, Dtype.FLOAT32))
    batch = pack(SEQUENCES)
    hidden = encoder.forward(batch).clone()
    if form.num_labels:
        ends = zip(batch.starts[:-1].tolist(), batch.starts[1:].tolist(), strict=True)
        is_mean = encoder.config.spec.classifier.pooling == "mean"
        pooled = [hidden[a:b].mean(0) if is_mean else hidden[a] for a, b in ends]
        ours = list(encoder.classify(torch.stack(pooled)))
        theirs = [reference(torch.tensor([ids])).logits[0] for ids in SEQUENCES]
    else:
        ours = hidden.split([len(ids) for ids in SEQUENCES])
        theirs = [reference(torch.tensor([ids])).last_hidden_state[0] for ids in SEQUENCES]
    for own, exact in zip(ours, theirs, strict=True):
        torch.testing.assert_close(own, exact, atol=1e-4, rtol=1e-4)
