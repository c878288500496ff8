"""Small models with parts that not every family has, on an emulated GPU, beside `transformers`."""

import pytest
import torch
from chairlift.types import Output, Tokens
from transformers import LlamaConfig, LlamaForCausalLM

from tests.cuda.small_models import NUM_TOKENS, SIZES, assert_likely, make, prompts, write
from tests.engine.drive import assert_empty, greedy, run, token_ids

pytestmark = pytest.mark.timeout(600)
"""The first test compiles the emulation."""

MODELS = {
    "gelu": (LlamaForCausalLM, LlamaConfig(**SIZES, hidden_act="gelu")),
    "gelu by tanh": (LlamaForCausalLM, LlamaConfig(**SIZES, hidden_act="gelu_pytorch_tanh")),
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
