"""Decoders that `transformers` computes on our paged attention, and those that cannot be served."""

import json

import pytest
import torch
import transformers
from chairlift.api.errors import ConfigError, ModelError
from chairlift.api.types import Output, PromptPiece, Request, Sampling, Stopping
from chairlift.engine.engine import Engine

from tests.engine import oracle, tiny_model
from tests.engine.drive import assert_empty, greedy, run, token_ids
from tests.model import families

NUM_TOKENS = 24
KINDS = ["sliding_attention", "full_attention", "sliding_attention"]
SERVED = {
    "gpt-neox": (transformers.GPTNeoXConfig, {"num_key_value_heads": 4}),
    "phi": (transformers.PhiConfig, {}),
    "glm": (transformers.GlmConfig, {"head_dim": 16, "pad_token_id": 0}),
    "gemma": (transformers.GemmaConfig, {"head_dim": 16}),
    "gemma 2, windows and soft caps": (
        transformers.Gemma2Config,
        {"head_dim": 16, "sliding_window": 20, "layer_types": KINDS, "query_pre_attn_scalar": 16},
    ),
    "olmoe": (transformers.OlmoeConfig, {"num_experts": 4, "num_experts_per_tok": 2}),
    "dots1": (
        transformers.Dots1Config,
        {
            "moe_intermediate_size": 32,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "first_k_dense_replace": 1,
            "head_dim": 16,
            "n_shared_experts": 1,
        },
    ),
}
REFUSED = {
    "a recurrent state": (transformers.MambaConfig, {"state_size": 4}, "recurrent state"),
    "a state beside attention": (
        transformers.FalconH1Config,
        {"mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 16},
        "recurrent state",
    ),
    "attention of its own": (transformers.BloomConfig, {"n_head": 4}, "not by AttentionInterface"),
    "sinks": (
        transformers.GptOssConfig,
        {"head_dim": 16, "num_local_experts": 4, "layer_types": KINDS},
        "s_aux is not supported",
    ),
    "tokens that see those behind them": (
        transformers.BertConfig,
        {"num_key_value_heads": 4},
        "expected a token to see those before it",
    ),
    "an encoder and a decoder": (transformers.T5Config, {}, "a decoder that generates text"),
}


def write(folder, config_class, fields):
    reference = families.build_model(config_class(**{**families.SIZES, **fields}))
    reference.save_pretrained(folder)
    tiny_model.write_tokenizer(folder, families.SIZES["vocab_size"] - 5)
    return reference


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=[pytest.mark.always] * (name == "phi")) for name in SERVED]
)
def test_a_crowded_batch_gives_the_tokens_of_transformers(make_engine, tmp_path, family):
    reference = write(tmp_path, *SERVED[family])
    engine = make_engine(
        tmp_path,
        model_impl="transformers",
        max_num_batched_tokens=24,
        kv_cache_memory=22 * 3 * 16 * 2 * 4 * 16 * reference.config.num_key_value_heads,
    )
    prompts = tiny_model.prompts(vocab_size=families.SIZES["vocab_size"])
    answers = run(engine, [greedy(prompt, NUM_TOKENS, ignore_eos=True) for prompt in prompts])
    for prompt, events in zip(prompts, answers, strict=True):
        answer = token_ids(events)
        assert len(answer) == NUM_TOKENS
        oracle.assert_greedy(reference, prompt, answer)
    assert engine.load().num_preemptions > 0
    assert_empty(engine)


def test_a_second_prompt_begins_with_the_blocks_of_the_first(make_engine, tmp_path):
    reference = write(tmp_path, *SERVED["phi"])
    engine = make_engine(tmp_path, model_impl="transformers")
    prompt = families.random_tokens(50, 0)
    for cached in (0, 48):
        [events] = run(engine, [greedy([*prompt, 7 + cached], 8, ignore_eos=True)])
        assert events[-1].usage.cached_tokens == cached
        answer = token_ids(events)
        assert len(answer) == 8
        oracle.assert_greedy(reference, [*prompt, 7 + cached], answer)


def test_log_probabilities_of_a_prompt_are_those_of_the_logits(make_engine, tmp_path):
    reference = write(tmp_path, *SERVED["gpt-neox"])
    engine = make_engine(tmp_path, model_impl="transformers", dtype="float32")
    prompt = families.random_tokens(20, 1)
    output = Output(prompt_logprobs=True)
    [events] = run(
        engine, [Request(prompt, Sampling(temperature=0), Stopping(max_tokens=1), output)]
    )
    pieces = [event for event in events if isinstance(event, PromptPiece)]
    found = [value for piece in pieces for value in piece.logprobs.logprobs]
    scores = reference(torch.tensor([prompt])).logits[0, :-1].log_softmax(-1)
    expected = scores.gather(1, torch.tensor(prompt[1:]).unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(torch.tensor(found[-19:]), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_served_is_refused_by_its_reason(tmp_path, kind):
    config_class, fields, reason = REFUSED[kind]
    config = config_class(**{**families.SIZES, **fields})
    model = (
        transformers.T5ForConditionalGeneration(config)
        if config.is_encoder_decoder
        else transformers.AutoModelForCausalLM.from_config(config)
    )
    model.save_pretrained(tmp_path)
    tiny_model.write_tokenizer(tmp_path, families.SIZES["vocab_size"] - 5)
    with pytest.raises(ModelError, match=reason) as caught:
        Engine(tmp_path, model_impl="transformers")
    assert "\n" not in str(caught.value)


def test_a_state_that_no_class_names_is_found_by_computing_in_parts(tmp_path, monkeypatch):
    write(tmp_path, *REFUSED["a state beside attention"][:2])
    kind = transformers.FalconH1PreTrainedModel
    monkeypatch.setattr(kind, "_is_stateful", False)
    monkeypatch.setattr(kind, "_supports_attention_backend", True)
    with pytest.raises(ModelError, match="computed in parts has other logits: a layer has a state"):
        Engine(tmp_path, model_impl="transformers")


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"quantize": "int8"}, "quantize"),
        ({"max_adapters": 1}, "max_adapters"),
        ({"draft": "demo"}, "draft"),
        ({"device": "cuda"}, "device|model_impl"),
    ],
)
def test_settings_that_it_does_not_honour_are_refused_by_name(tmp_path, settings, field):
    write(tmp_path, *SERVED["phi"])
    with pytest.raises(ConfigError, match=f"^({field})"):
        Engine(tmp_path, model_impl="transformers", **settings)


@pytest.mark.parametrize("name", ["num_hidden_layers", "num_experts", "vocab_size", "n_blocks"])
def test_a_count_that_no_model_has_is_refused_before_anything_is_built(tmp_path, name):
    write(tmp_path, *SERVED["phi"])
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), name: 2**26}))
    with pytest.raises(ModelError, match=f"config.json: {name}: expected an integer of at most"):
        Engine(tmp_path, model_impl="transformers")


def test_a_missing_tensor_is_named_and_not_drawn_at_random(tmp_path):
    from safetensors.torch import load_file, save_file

    write(tmp_path, *SERVED["phi"])
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    name = next(name for name in tensors if "layers.1" in name)
    del tensors[name]
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=name):
        Engine(tmp_path, model_impl="transformers")
