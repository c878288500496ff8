"""Odd sizes of a model: each gives the tokens of `transformers`, or is refused by name at load."""

import json

import pytest
import torch
from chairlift.api.config import EngineConfig
from chairlift.api.errors import ConfigError, ModelError
from chairlift.engine.loading.devices import gpu_unsupported_reason
from chairlift.kernels import cpu
from chairlift.kernels.cuda.limits import LIMITS as CUDA_LIMITS
from chairlift.model.config import ModelConfig
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from tests.engine import oracle, tiny_model
from tests.engine.drive import assert_empty, greedy, run, token_ids

NUM_TOKENS = 8
SIZES = {
    "vocab_size": 390,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": None,
    "eos_token_id": 0,
    "attn_implementation": "eager",
}
ROPE = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
ONE_HEAD = {"num_attention_heads": 1, "num_key_value_heads": 1}
WORKS = {
    **{f"head_dim {n}": {"head_dim": n} for n in (16, 48, 80, 112, 208, 512)},
    "an odd hidden size": {"hidden_size": 37, "head_dim": 16, **ONE_HEAD},
    "a hidden size of 1": {"hidden_size": 1, "head_dim": 16, **ONE_HEAD},
    "an odd intermediate size": {"intermediate_size": 53},
    "an intermediate size of 1": {"intermediate_size": 1},
    "one layer": {"num_hidden_layers": 1},
    "many layers": {"num_hidden_layers": 11},
    "one head": ONE_HEAD,
    "seven heads": {
        "hidden_size": 63,
        "num_attention_heads": 7,
        "num_key_value_heads": 7,
        "head_dim": 16,
    },
    "many heads for each KV head": {
        "hidden_size": 68,
        "num_attention_heads": 34,
        "num_key_value_heads": 1,
        "head_dim": 16,
    },
    "groups of three": {
        "hidden_size": 72,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 32,
    },
    "a vocabulary of an odd size": {"vocab_size": 397},
    "positions that end inside a block": {"max_position_embeddings": 115},
    "a small theta": {"rope_theta": 1.0},
    "a large theta": {"rope_theta": 1e12},
    "a rope of llama 3": {
        "rope_parameters": {
            **ROPE,
            "rope_theta": 10_000.0,
            "original_max_position_embeddings": 1,
        }
    },
    "a large eps": {"rms_norm_eps": 10.0},
    "no eps": {"rms_norm_eps": 0.0},
}
WINDOWS = (1, 2, 15, 16, 17, 255, 256, 1000)


def write(folder, sizes, model_class=LlamaForCausalLM, config_class=LlamaConfig):
    """Write a model, every parameter random, and return it."""
    torch.manual_seed(0)
    model = model_class(config_class(**{**SIZES, **sizes})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(folder)
    tiny_model.write_tokenizer(folder, 380)
    return model


def assert_same_answers(engine, reference):
    prompts = [[5], tiny_model.prompts()[3], tiny_model.prompts()[5]]
    answers = run(engine, [greedy(prompt, NUM_TOKENS, ignore_eos=True) for prompt in prompts])
    for prompt, events in zip(prompts, answers, strict=True):
        answer = token_ids(events)
        assert len(answer) == NUM_TOKENS
        oracle.assert_greedy(reference, prompt, answer)
    assert_empty(engine)


@pytest.mark.parametrize("case", WORKS)
def test_an_odd_size_gives_the_tokens_of_transformers(make_engine, tmp_path, case):
    reference = write(tmp_path, WORKS[case])
    assert_same_answers(make_engine(tmp_path), reference)


@pytest.mark.parametrize("window", WINDOWS)
def test_any_window_gives_the_tokens_of_transformers(make_engine, tmp_path, window):
    sizes = {"sliding_window": window}
    reference = write(tmp_path, sizes, MistralForCausalLM, MistralConfig)
    assert_same_answers(make_engine(tmp_path), reference)


@pytest.mark.parametrize("quantize", ["int8", "int4"])
@pytest.mark.parametrize("case", ["an odd hidden size", "a hidden size of 1", "head_dim 80"])
def test_an_odd_size_runs_quantized_with_keys_in_eight_bits(make_engine, tmp_path, case, quantize):
    write(tmp_path, WORKS[case])
    engine = make_engine(tmp_path, quantize=quantize, kv_cache_dtype="int8", dtype="bfloat16")
    (events,) = run(engine, [greedy([1, 2, 3], NUM_TOKENS, ignore_eos=True)])
    assert len(token_ids(events)) == NUM_TOKENS


@pytest.mark.parametrize("head_dim", [1, 8, 24, 40, 56, 72, 88, 120, 257, 264, 528])
def test_a_head_that_no_kernel_takes_is_refused_at_load(make_engine, tmp_path, head_dim):
    write(tmp_path, {})
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "head_dim": head_dim}))
    message = f"head_dim: expected a multiple of 16 up to 512, got {head_dim}"
    with pytest.raises(ModelError, match=message):
        make_engine(tmp_path)


def test_every_head_that_a_gpu_takes_a_cpu_takes_too():
    assert set(CUDA_LIMITS.head_dims) < set(cpu.LIMITS.head_dims)


def test_a_wide_model_is_refused_on_a_gpu_by_name(tmp_path):
    write(tmp_path, {"head_dim": 64})
    path = tmp_path / "config.json"
    values = json.loads(path.read_text())
    refused = {
        "hidden_size": [CUDA_LIMITS.max_hidden_size + 8, 60],
        "intermediate_size": [100],
        "num_attention_heads": [2 * CUDA_LIMITS.max_heads_per_kv_head + 2],
        "head_dim": [16],
    }
    for name, sizes in refused.items():
        for size in sizes:
            path.write_text(json.dumps({**values, name: size}))
            unsupported_reason = gpu_unsupported_reason(EngineConfig(), ModelConfig.load(tmp_path))
            assert unsupported_reason.startswith(f"{name}: expected"), unsupported_reason
            assert f"on a GPU, got {size}" in unsupported_reason
    path.write_text(json.dumps(values))
    assert gpu_unsupported_reason(EngineConfig(), ModelConfig.load(tmp_path)) is None


def test_more_layers_than_the_checkpoint_has_are_refused_by_the_tensor_that_is_missing(
    make_engine, tmp_path
):
    write(tmp_path, {})
    path = tmp_path / "config.json"
    values = json.loads(path.read_text())
    for num_layers in (3, 4096):
        path.write_text(json.dumps({**values, "num_hidden_layers": num_layers}))
        with pytest.raises(ModelError, match=r"model\.layers\.2\..*: missing"):
            make_engine(tmp_path)
    path.write_text(json.dumps({**values, "num_hidden_layers": 10**9}))
    with pytest.raises(ModelError, match="num_hidden_layers: expected an integer from 1 to 4096"):
        make_engine(tmp_path)


def test_positions_beyond_memory_are_refused_before_their_table_is_made(make_engine, tmp_path):
    write(tmp_path, {})
    path = tmp_path / "config.json"
    many = json.loads(path.read_text()) | {"max_position_embeddings": 2**31 - 1}
    path.write_text(json.dumps(many))
    with pytest.raises(ConfigError, match="memory: expected at most"):
        make_engine(tmp_path)
