"""Every family of encoders against `transformers`, in float32."""

from functools import cache

import pytest
import torch
from chairlift.api.choices import Dtype, Quantize
from chairlift.api.errors import ModelError
from chairlift.model.config import ModelConfig
from chairlift.model.encoders.bidirectional import load_encoder_model
from chairlift.model.encoders.families import is_encoder, load_encoder_config

from tests.model.encoder_table import FAMILIES, pack, pretrain

LENGTHS = (1, 2, 37, 130, 512)
TOLERANCE = 3e-5

every_family = pytest.mark.parametrize("family", FAMILIES)


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    @cache
    def get(family, kind="AutoModel", **changes):
        folder = tmp_path_factory.mktemp("encoder")
        return pretrain(folder, family, kind, **changes), folder

    return get


def load(folder, dtype=Dtype.FLOAT32, quantize=Quantize.NONE):
    return load_encoder_model(folder, load_encoder_config(folder, dtype), quantize)


def texts(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(3, 131, (n,), generator=generator).tolist() for n in LENGTHS]


@every_family
@torch.inference_mode()
def test_hidden_states_of_packed_texts_equal_those_of_transformers(pretrained, family):
    reference, folder = pretrained(family)
    assert is_encoder(folder)
    sequences = texts()
    hidden = load(folder).forward(pack(sequences)).split([len(s) for s in sequences])
    for sequence, ours in zip(sequences, hidden, strict=True):
        theirs = reference(torch.tensor([sequence])).last_hidden_state[0]
        torch.testing.assert_close(ours, theirs, atol=TOLERANCE, rtol=1e-5)


@pytest.mark.parametrize("family", ["bert", "nomic-bert"])
@torch.inference_mode()
def test_token_types_change_the_hidden_states_as_in_transformers(pretrained, family):
    reference, folder = pretrained(family)
    sequence, types = texts()[2], [0] * 20 + [1] * 17
    ours = load(folder).forward(pack([sequence], types))
    arguments = {"token_type_ids": torch.tensor([types])}
    theirs = reference(torch.tensor([sequence]), **arguments).last_hidden_state[0]
    torch.testing.assert_close(ours, theirs, atol=TOLERANCE, rtol=1e-5)


@every_family
@pytest.mark.parametrize(
    ("dtype", "quantize"),
    [
        (Dtype.FLOAT32, Quantize.NONE),
        (Dtype.BFLOAT16, Quantize.NONE),
        (Dtype.AUTO, Quantize.INT8),
        (Dtype.AUTO, Quantize.INT4),
    ],
)
@torch.inference_mode()
def test_a_text_has_the_same_bits_in_any_batch(pretrained, family, dtype, quantize):
    _, folder = pretrained(family)
    encoder, sequences = load(folder, dtype, quantize), texts()
    together = encoder.forward(pack(sequences)).clone().split([len(s) for s in sequences])
    for sequence, expected in zip(sequences, together, strict=True):
        assert torch.equal(encoder.forward(pack([sequence])), expected)


@every_family
@pytest.mark.parametrize(
    ("quantize", "least"), [(Quantize.NONE, 0.999), (Quantize.INT8, 0.99), (Quantize.INT4, 0.9)]
)
@torch.inference_mode()
def test_means_of_smaller_formats_point_the_same_way(pretrained, family, quantize, least):
    _, folder = pretrained(family)
    batch = pack(texts()[2:3])
    exact = load(folder).forward(batch).mean(0)
    mean = load(folder, Dtype.AUTO, quantize).forward(batch).float().mean(0)
    assert torch.cosine_similarity(exact, mean, dim=0) > least


CLASSIFIERS = [name for name in FAMILIES if name not in ("nomic-bert", "embedding-gemma")]


@pytest.mark.parametrize("family", CLASSIFIERS)
@pytest.mark.parametrize("num_labels", [1, 3])
@torch.inference_mode()
def test_scores_of_classifiers_equal_those_of_transformers(pretrained, family, num_labels):
    kind = "AutoModelForSequenceClassification"
    reference, folder = pretrained(family, kind, num_labels=num_labels)
    encoder, sequences = load(folder), texts()[2:]
    batch = pack(sequences)
    hidden = encoder.forward(batch)
    ours = encoder.classify(hidden[batch.starts[:-1].long()])
    assert encoder.config.spec.classifier.labels == tuple(f"LABEL_{n}" for n in range(num_labels))
    theirs = torch.cat([reference(torch.tensor([sequence])).logits for sequence in sequences])
    torch.testing.assert_close(ours, theirs, atol=TOLERANCE, rtol=1e-4)


def test_an_encoder_is_no_decoder_though_its_layers_are_those_of_one(pretrained):
    _, folder = pretrained("embedding-gemma")
    with pytest.raises(ModelError, match=r"architectures: expected .* got \["):
        ModelConfig.load(folder)


@every_family
def test_a_missing_tensor_is_named(pretrained, family, tmp_path):
    from safetensors.torch import load_file, save_file

    _, folder = pretrained(family)
    tensors = load_file(folder / "model.safetensors")
    name = next(name for name in tensors if "1" in name)
    del tensors[name]
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=f"{name}: missing"):
        load(tmp_path)
