"""Every family against `transformers`: one prompt at a time, eager attention, float32."""

import pytest
import torch
from chairlift.api.config import Dtype
from chairlift.model.config import ModelConfig
from chairlift.model.specs.rope import cos_sin_table

from tests.model.families import FAMILIES, build, neutral, perturbed, random_tokens
from tests.model.paged import PagedBatch, generate, load_model, prompt_logits

SEEDS = (0, 1, 2)
# Longer than four blocks, every window and the original length of every scaled RoPE.
PROMPT_LENGTH = 75
TOLERANCE = 2e-5
NEAR_TIE = 1e-5

every_family = pytest.mark.parametrize("family", FAMILIES)
every_seed = pytest.mark.parametrize("seed", SEEDS)


def reference_logits(reference, tokens):
    return reference(torch.tensor([tokens]), use_cache=False).logits[0]


@pytest.mark.always
@every_family
@every_seed
def test_prompt_logits_equal_those_of_transformers(pretrained, family, seed):
    reference, folder = pretrained(family, seed)
    prompt = random_tokens(PROMPT_LENGTH, seed)
    ours = prompt_logits(load_model(folder), prompt)
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours, reference_logits(reference, prompt), atol=TOLERANCE, rtol=0)


@every_family
@every_seed
def test_greedy_tokens_equal_those_of_transformers(pretrained, family, seed):
    reference, folder = pretrained(family, seed)
    prompts = [random_tokens(length, seed + 7) for length in (PROMPT_LENGTH, 3, 50)]
    answers = generate(load_model(folder), prompts, num_tokens=24, budget=29)
    for prompt, answer in zip(prompts, answers, strict=True):
        assert_greedy(reference, prompt, answer)


def assert_greedy(reference, prompt, answer):
    """Fail at the first token that the reference would not take, unless two are all but equal."""
    logits = reference_logits(reference, prompt + answer[:-1])[len(prompt) - 1 :]
    for step, (row, token) in enumerate(zip(logits, answer, strict=True)):
        if token != row.argmax():
            gap = float(row.max() - row[token])
            message = f"step {step}: {token} instead of {int(row.argmax())}, logits {gap:.2e} apart"
            assert gap < NEAR_TIE, message


@every_family
@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_parity_sees_every_parameter(family, step):
    """Every fourth one, from another one on for each family; `make slow` has all."""
    model, start = build(family), list(FAMILIES).index(family) % step
    prompt = random_tokens(PROMPT_LENGTH, 0)
    expected = reference_logits(model, prompt)
    last = f"layers.{model.config.num_hidden_layers - 1}.layer_scalar"
    for name, parameter in list(perturbed(model))[start::step]:
        if name.endswith(last):
            continue  # the final norm takes it away
        value = parameter.clone()
        parameter.copy_(neutral(model, name, parameter))
        change = (reference_logits(model, prompt) - expected).abs().max()
        parameter.copy_(value)
        assert change > 100 * TOLERANCE, name


@every_family
@pytest.mark.parametrize("dtype", [Dtype.FLOAT32, Dtype.BFLOAT16])
def test_logits_are_bit_equal_whatever_the_batch_and_the_chunks(pretrained, family, dtype):
    _, folder = pretrained(family)
    model = load_model(folder, dtype=dtype)
    prompts = [random_tokens(length, length) for length in (PROMPT_LENGTH, 33, 1)]
    alone = [prompt_logits(model, prompt) for prompt in prompts]
    for chunk in (1, 16, 29):
        assert torch.equal(prompt_logits(model, prompts[0], chunk), alone[0])
    together = PagedBatch(model, num_rows=4, max_len=PROMPT_LENGTH, seed=1)
    logits = together.step(dict(zip((2, 0, 3), prompts, strict=True)))
    for row, expected in zip((2, 0, 3), alone, strict=True):
        assert torch.equal(logits[row], expected)


@every_family
@pytest.mark.parametrize("selected", [(), (0,), (40, 73, 74, 75), tuple(range(76))])
def test_selected_tokens_have_the_bits_they_have_among_all(pretrained, family, selected):
    _, folder = pretrained(family)
    model = load_model(folder, dtype=Dtype.BFLOAT16)
    chunks = {1: random_tokens(PROMPT_LENGTH, 0), 0: random_tokens(1, 1)}
    batches = [PagedBatch(model, num_rows=2, max_len=PROMPT_LENGTH + 1) for _ in range(2)]
    everything, some = batches[0].hidden(chunks), batches[1].hidden(chunks, selected)
    assert torch.equal(some, everything[list(selected)])
    # Every token's keys and values are there for those to come.
    decodes = {0: [5], 1: [7]}
    assert torch.equal(batches[1].hidden(decodes), batches[0].hidden(decodes))


@every_family
def test_bfloat16_is_as_near_to_float32_as_transformers_is(pretrained, family):
    _, folder = pretrained(family)
    prompt = random_tokens(PROMPT_LENGTH, 0)
    exact = reference_logits(build(family), prompt)
    theirs = reference_logits(build(family).bfloat16(), prompt).float()
    ours = prompt_logits(load_model(folder, dtype=Dtype.BFLOAT16), prompt)
    # Of each token: where a router is near a tie, rounding chooses other experts for a few.
    ours, theirs = ((x - exact).square().mean(-1).median() for x in (ours, theirs))
    assert ours < 1.5 * theirs


def angles_of(reference, kind):
    model = reference.model
    rotary = model.pos_emb if hasattr(model, "pos_emb") else model.rotary_emb
    positions = torch.arange(256)[None]
    extra = {} if kind is None else {"layer_type": kind}
    cos, sin = rotary(torch.zeros(1), positions, **extra)
    if rotary.config.model_type == "cohere2":
        return torch.cat((cos[0, :, ::2], sin[0, :, ::2]), dim=-1)
    # One number for each pair, or for each of a pair.
    half = cos.shape[-1] // (1 if rotary.config.model_type == "gpt_oss" else 2)
    return torch.cat((cos[0, :, :half], sin[0, :, :half]), dim=-1)


@every_family
def test_rope_angles_equal_those_of_transformers(pretrained, family):
    reference, folder = pretrained(family)
    # The angles have the same bits; cosine and sine are rounded once here and by the library there.
    config = ModelConfig.load(folder)
    kinds = {
        (layer.attention.rope, layer.attention.head_dim): kind
        for layer, kind in zip(config.spec.layers, kinds_of(reference), strict=True)
        if layer.attention is not None and layer.attention.rope is not None
    }
    for (rope, head_dim), kind in kinds.items():
        ours = cos_sin_table(rope, head_dim, config.max_model_len)
        expected = angles_of(reference, kind)
        torch.testing.assert_close(ours[:256], expected, atol=2.4e-7, rtol=0)


def kinds_of(reference):
    config = reference.config
    has_kinds = config.model_type in {"gemma3_text", "gemma4_text", "olmo3"}
    return config.layer_types if has_kinds else [None] * config.num_hidden_layers
