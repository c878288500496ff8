"""Small models with parts that not every family has, on an emulated GPU, beside `transformers`."""

import pytest
import torch
from chairlift.types import Output, Tokens
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    Starcoder2Config,
    Starcoder2ForCausalLM,
)

from tests.cuda.small_models import NUM_TOKENS, SIZES, assert_likely, make, prompts, write
from tests.engine.drive import assert_empty, greedy, run, token_ids

pytestmark = pytest.mark.timeout(600)
"""The first test compiles the emulation."""

KINDS = ["sliding_attention", "full_attention"]
MODELS = {
    "gelu": (LlamaForCausalLM, LlamaConfig(**SIZES, hidden_act="gelu")),
    "gelu by tanh": (LlamaForCausalLM, LlamaConfig(**SIZES, hidden_act="gelu_pytorch_tanh")),
    # Norms of weights less 1 (also of heads), norms behind both halves, soft caps, windows.
    "gemma 2": (
        Gemma2ForCausalLM,
        Gemma2Config(
            **SIZES,
            sliding_window=20,
            layer_types=KINDS,
            query_pre_attn_scalar=48,
            attn_logit_softcapping=1.5,
            final_logit_softcapping=2.0,
        ),
    ),
    "gemma 3": (
        Gemma3ForCausalLM,
        Gemma3TextConfig(**SIZES, sliding_window=20, layer_types=KINDS, query_pre_attn_scalar=48),
    ),
    # Layer norms with biases, a feed-forward without a gate.
    "starcoder 2": (
        Starcoder2ForCausalLM,
        Starcoder2Config(**{**SIZES, "hidden_size": 256}, sliding_window=20),
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_answers_and_log_probabilities_are_those_of_transformers(name, tmp_path):
    reference = write(tmp_path, MODELS[name])
    engine = make(tmp_path, device="cuda", dtype="float16")
    asked = prompts(1, 17, 90, 40, 5)
    wanted = [
        greedy(prompt, NUM_TOKENS, ignore_eos=True, output=Output(logprobs=True))
        for prompt in asked
    ]
    for prompt, events in zip(asked, run(engine, wanted), strict=True):
        answer = token_ids(events)
        assert_likely(reference, prompt, answer, "float16")
        with torch.no_grad():
            logits = reference(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
        expected = logits.log_softmax(-1).gather(1, torch.tensor(answer)[:, None])[:, 0]
        got = [p for e in events if isinstance(e, Tokens) for p in e.logprobs.logprobs]
        error = (torch.tensor(got) - expected).abs().max() / logits.std()
        assert error < 0.01, f"of the standard deviation: {error}"
    assert_empty(engine)
