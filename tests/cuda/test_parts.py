"""Parts of layers that no family has alone: an emulated GPU beside the CPU, in float32."""

import json
from dataclasses import replace

import pytest
import torch
from chairlift.api.types import Output, PromptPiece
from chairlift.engine.engine import Engine
from chairlift.kernels.cuda import ops
from chairlift.model.config import ModelConfig
from chairlift.model.families import FAMILIES
from chairlift.model.families.family import LLAMA_NAMES, Family, attention, decoder, mlp, rms_norm
from chairlift.model.specs.layer_parts import Experts, Mlp, RmsNorm
from chairlift.model.specs.model_spec import LayerSpec
from chairlift.model.tensors.model_tensors import model_tensors, stored_shapes
from chairlift.model.weights.layers import load_weights
from safetensors.torch import save_file

from tests.cuda.small_models import (
    NUM_TOKENS,
    SIZES,
    VOCAB_SIZE,
    assert_alone_is_as_crowded,
    logprobs,
    make,
    prompts,
    requests,
)
from tests.engine.drive import greedy, run, token_ids
from tests.engine.tiny_model import write_tokenizer

pytestmark = pytest.mark.timeout(600)
"""The first test compiles the emulation."""

PARTS = {
    "sinks": {"has_sinks": True},
    "sinks beside a window": {"has_sinks": True, "window": 20},
    "gates": {"has_gate": True},
    "norms of heads without RoPE": {"rope": None},
    "norms of all heads without RoPE, gates": {
        "rope": None,
        "norms_all_heads": True,
        "has_gate": True,
    },
}
"""What the attention of every layer has beside norms of heads; feed-forwards have no gate."""
MIXTURES = {
    "a gated shared expert": Experts(*(6, 2, 40, "softmax"), shared=Mlp(72), shared_is_gated=True),
    "experts with norms of their own, by gelu, factors": Experts(
        *(6, 2, 40, "softmax", "gelu_tanh"),
        min_weight_sum=0.0,
        has_factors=True,
        shared=Mlp(96, "gelu_tanh"),
        separate_norm=RmsNorm(1e-6),
    ),
    "experts without gates, a bias of the choice": Experts(
        *(6, 2, 40, "sigmoid", "relu2"),
        gated=False,
        min_weight_sum=1e-12,
        multiplier=2.5,
        has_choice_bias=True,
        shared=Mlp(72, "relu2", gated=False),
    ),
}
"""In the place of these feed-forwards."""
NAMES = LLAMA_NAMES.with_parts(
    sinks="self_attn.sinks",
    choice_bias="mlp.choice_bias",
    factors="mlp.factors",
    router_norm="mlp.router_norm",
    experts_norm="mlp.experts_norm",
    shared_norm_after="mlp.shared_norm",
    experts_norm_after="mlp.experts_norm_after",
)


def family_of(part):
    """Return a family of such layers."""

    def spec(fields):
        own = replace(attention(fields, qk_norm=rms_norm(fields)), **PARTS.get(part, {}))
        dense = replace(mlp(fields), activation="relu2", gated=False)
        layer = LayerSpec(own, MIXTURES.get(part, dense), rms_norm(fields))
        return decoder(fields, [layer] * fields.integer("num_hidden_layers"))

    return Family(spec, NAMES)


def write(folder):
    """Write a checkpoint of random weights."""
    values = {name: value for name, value in SIZES.items() if value is not None}
    config = {**values, "architectures": ["PartsForCausalLM"], "torch_dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(config))
    write_tokenizer(folder, VOCAB_SIZE - 10)
    loaded, draw = ModelConfig.load(folder), torch.Generator().manual_seed(0)

    def random(name, shape):
        is_norm = "norm" in name
        scale = 0.2 if is_norm or "embed" in name else shape[-1] ** -0.5
        scale = 1.0 if "sinks" in name else scale
        return (torch.randn(shape, generator=draw) * scale + is_norm).bfloat16()

    shapes = stored_shapes(model_tensors(loaded.spec, loaded.names))
    save_file({n: random(n, shape) for n, shape in shapes.items()}, folder / "model.safetensors")


@pytest.mark.parametrize("part", [*PARTS, *MIXTURES])
def test_log_probabilities_are_those_of_the_cpu(part, tmp_path, monkeypatch):
    monkeypatch.setitem(FAMILIES, "PartsForCausalLM", family_of(part))
    write(tmp_path)
    on_gpu = make(tmp_path, device="cuda", dtype="float16")
    on_cpu = Engine(tmp_path, device="cpu", dtype="float32", max_model_len=400)
    asked = prompts(1, 17, 90, 40, 5)
    answers = run(on_gpu, requests(asked, output=Output(logprobs=True)))
    # The CPU scores what the GPU answered.
    whole = [[*p, *token_ids(events)] for p, events in zip(asked, answers, strict=True)]
    scored = run(on_cpu, [greedy(p, 1, output=Output(prompt_logprobs=True)) for p in whole])
    for events, expected in zip(answers, scored, strict=True):
        found = [
            piece for e in expected if isinstance(e, PromptPiece) for piece in e.logprobs.logprobs
        ]
        ranks = [rank for e in expected if isinstance(e, PromptPiece) for rank in e.logprobs.ranks]
        error = (torch.tensor(logprobs(events)) - torch.tensor(found[-NUM_TOKENS:])).abs().max()
        assert error < 0.01
        assert max(ranks[-NUM_TOKENS:]) <= 2, "greedy but for a tie"


@pytest.mark.parametrize("part", ["sinks", "gates", *MIXTURES])
def test_answers_do_not_depend_on_the_batch(part, tmp_path, monkeypatch):
    monkeypatch.setitem(FAMILIES, "PartsForCausalLM", family_of(part))
    write(tmp_path)
    assert_alone_is_as_crowded(tmp_path, monkeypatch)


def test_sinks_are_where_the_other_weights_are(tmp_path, monkeypatch):
    monkeypatch.setitem(FAMILIES, "PartsForCausalLM", family_of("sinks"))
    write(tmp_path)
    elsewhere = torch.device("meta")
    weights = load_weights(tmp_path, ModelConfig.load(tmp_path), kernels=ops, device=elsewhere)
    for layer in weights.layers:
        assert layer.sinks.device == layer.query_norm.device == elsewhere


def test_a_gate_may_be_one_number_of_a_row():
    x, gate = torch.randn(3, 64).bfloat16(), torch.randn(3, 1)
    expected = x.float() * gate.sigmoid()
    ops.gate_by_sigmoid(x, gate)
    torch.testing.assert_close(x.float(), expected, rtol=2**-8, atol=0)
