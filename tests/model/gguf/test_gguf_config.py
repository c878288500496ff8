"""What the metadata of a GGUF file says of a model, and what it may not say."""

import math
from contextlib import ExitStack

import pytest
import torch
from chairlift.api.errors import ModelError
from chairlift.checkpoints.checkpoint import Checkpoint
from chairlift.checkpoints.files.fields import either
from chairlift.checkpoints.gguf.config import ARCHITECTURES as ARCHITECTURES_OF_FILES
from chairlift.model.config import ModelConfig
from chairlift.model.specs.rope import LinearScaling
from chairlift.model.weights.layers import load_weights

from tests.model.gguf import headers
from tests.model.gguf.files import MIXED, small_model, write_model
from tests.model.gguf.headers import BOOL, F32, I32, STRING, U32, Tensor, array, value
from tests.model.paged import load_model, prompt_logits

ARCHITECTURES = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}
REQUIRED = {
    "block_count": (U32, 3),
    "context_length": (U32, 256),
    "embedding_length": (U32, 64),
    "feed_forward_length": (U32, 96),
    "attention.head_count": (U32, 4),
    "attention.layer_norm_rms_epsilon": (F32, 1e-5),
}
OPTIONAL = {
    "attention.head_count_kv": (U32, 2),
    "attention.key_length": (U32, 16),
    "attention.value_length": (U32, 16),
    "attention.sliding_window": (U32, 20),
    "expert_count": (U32, 0),
    "rope.dimension_count": (U32, 16),
    "rope.freq_base": (F32, 5_000.0),
    "rope.scaling.type": (STRING, "none"),
    "rope.scaling.factor": (F32, 1.0),
}
EMBEDDING = Tensor("token_embd.weight", (64, 131), 1)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "m.gguf"


def load(path, *changes, kind="llama", tensors=(), without=(), data=bytes(20_000)):
    """Load the configuration of a file with the required keys and with these values."""
    values = {"general.architecture": value("general.architecture", STRING, kind)}
    for key, content in REQUIRED.items():
        values[f"{kind}.{key}"] = value(f"{kind}.{key}", *content)
    values |= {change.key: change for change in changes}
    kept = [v for key, v in values.items() if key not in without]
    path.write_bytes(headers.file(kept, [EMBEDDING, *tensors], data))
    return ModelConfig.load(path)


def failure(path, *changes, **settings):
    """Return the one line of a configuration that is refused, without the path."""
    with pytest.raises(ModelError) as error:
        load(path, *changes, **settings)
    message = str(error.value)
    assert message.isprintable()
    assert message.startswith(f"{path}: ")
    return message.removeprefix(f"{path}: ")


def test_a_number_of_layers_without_their_tensors_takes_no_time_to_open(path):
    failure(path, value("llama.block_count", U32, 2**31 - 1))
    with ExitStack() as files:
        assert list(Checkpoint.open(path, files).tensors) == [EMBEDDING.name]


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_the_required_keys_are_enough(path, kind):
    config = load(path, kind=kind)
    assert config.architecture == f"{ARCHITECTURES[kind]}ForCausalLM"
    assert config.max_model_len == 256
    spec = config.spec
    assert spec.shape == (64, 96, 4, 4, 16)
    assert (spec.num_layers, spec.vocab_size) == (3, 131)
    assert spec.final_norm.eps == pytest.approx(1e-5)
    assert spec.head.is_tied
    (rope,) = spec.ropes
    assert (rope.theta, rope.scaling) == (10_000.0, None)
    assert spec.kv_windows == (None,)
    assert (config.eos_token_ids, config.bos_token_id) == ((), None)


def test_every_value_is_read(path):
    changes = [
        value("llama.attention.head_count_kv", U32, 2),
        value("llama.attention.key_length", U32, 32),
        value("llama.attention.value_length", U32, 32),
        value("llama.rope.dimension_count", U32, 32),
        value("llama.rope.freq_base", F32, 5_000.0),
        value("tokenizer.ggml.bos_token_id", U32, 7),
    ]
    config = load(path, *changes, tensors=[Tensor("output.weight", (8,), offset=16_768)])
    assert config.spec.shape == (64, 96, 4, 2, 32)
    assert not config.spec.head.is_tied
    assert config.spec.ropes[0].theta == 5_000.0
    assert config.bos_token_id == 7


@pytest.mark.parametrize("kind", ARCHITECTURES)
@pytest.mark.parametrize("key", REQUIRED)
def test_a_missing_key_is_named(path, kind, key):
    message = failure(path, kind=kind, without={f"{kind}.{key}"})
    assert message.startswith(f"{kind}.{key}: expected ")
    assert message.endswith(", got nothing")


WRONG = {
    "a string": lambda key: value(key, STRING, "4"),
    "true": lambda key: value(key, BOOL, True),
    "strings": lambda key: array(key, STRING, ["4", "4", "4"]),
    "no numbers": lambda key: array(key, U32, []),
    "fractions": lambda key: array(key, F32, [4.0, 4.0, 4.0]),
    "not a number": lambda key: value(key, F32, math.nan),
    "infinite": lambda key: value(key, F32, math.inf),
    "below zero": lambda key: value(key, I32, -4),
    "huge": lambda key: value(key, headers.U64, 2**64 - 1),
}


A_HUGE_NUMBER = ("attention.layer_norm_rms_epsilon", "rope.freq_base", "rope.scaling.factor")


@pytest.mark.parametrize(
    ("key", "wrong"),
    [
        (key, wrong)
        for key in (*REQUIRED, *OPTIONAL)
        for wrong in WRONG
        if wrong != "huge" or key not in A_HUGE_NUMBER
    ],
)
def test_a_value_of_a_wrong_type_is_named(path, key, wrong):
    message = failure(path, WRONG[wrong](f"llama.{key}"))
    assert message.startswith(f"llama.{key}: expected ")


@pytest.mark.parametrize("wrong", ["a string", "strings", "fractions", "huge"])
@pytest.mark.parametrize("name", ["bos", "eos", "eot", "eom"])
def test_a_token_that_is_no_id_is_named(path, name, wrong):
    key = f"tokenizer.ggml.{name}_token_id"
    assert failure(path, WRONG[wrong](key)).startswith(f"{key}: expected ")


@pytest.mark.parametrize(
    ("key", "content", "expected"),
    [
        ("block_count", 0, "an integer from 1"),
        ("block_count", 2**13, "an integer from 1 to 4096"),
        ("embedding_length", 2**21, "an integer from 1 to 1048576"),
        ("feed_forward_length", 2**23, "an integer from 1 to 4194304"),
        ("attention.head_count", 2**15, "an integer from 1 to 16384"),
        ("attention.head_count_kv", 3, "a divisor of 4"),
    ],
)
def test_a_size_out_of_bounds_is_named_as_the_file_names_it(path, key, content, expected):
    message = failure(path, value(f"llama.{key}", U32, content))
    assert message.startswith(f"llama.{key}: expected {expected}")


PER_LAYER = ("attention.head_count", "attention.head_count_kv", "feed_forward_length")


def test_equal_values_per_layer_are_one_value(path):
    changes = [array(f"llama.{key}", I32, [4, 4, 4]) for key in PER_LAYER]
    assert load(path, *changes).spec.shape == (64, 4, 4, 4, 16)


@pytest.mark.parametrize("key", PER_LAYER)
def test_values_that_differ_between_layers_are_refused(path, key):
    message = failure(path, array(f"llama.{key}", I32, [4, 4, 2]))
    assert message == f"llama.{key}: expected one number for all layers, got [4, 4, 2]"


@pytest.mark.parametrize("key", PER_LAYER)
def test_values_per_layer_are_as_many_as_layers(path, key):
    message = failure(path, array(f"llama.{key}", I32, [4, 4]))
    assert message == f"llama.{key}: expected one number for all layers, got [4, 4]"


def test_a_model_with_values_per_layer_loads(path):
    def per_layer(writer):
        for name, number in (("head_count", 4), ("head_count_kv", 2)):
            key = f"llama.attention.{name}"
            del writer.kv_data[0][key]
            writer.add_array(key, [number, number])

    prompt = list(range(20))
    model = small_model()
    write_model(path, model, MIXED)
    expected = prompt_logits(load_model(path), prompt)
    write_model(path, model, MIXED, extra=per_layer)
    assert torch.equal(prompt_logits(load_model(path), prompt), expected)


KNOWN = either(ARCHITECTURES_OF_FILES)


@pytest.mark.parametrize("kind", ["mamba2", "bert", "LLAMA", ""])
def test_another_architecture_is_refused(path, kind):
    message = failure(path, value("general.architecture", STRING, kind))
    assert message == f'general.architecture: expected {KNOWN}, got "{kind}"'
    assert KNOWN.startswith("llama, qwen2, ")


def test_a_file_without_an_architecture_is_refused(path):
    message = failure(path, without={"general.architecture"})
    assert message == f"general.architecture: expected {KNOWN}, got nothing"


UNSUPPORTED = {
    "expert_shared_count": (U32, 1),
    "leading_dense_block_count": (U32, 1),
    "attn_logit_softcapping": (F32, 50.0),
    "final_logit_softcapping": (F32, 30.0),
    "logit_scale": (F32, 8.0),
    "embedding_scale": (F32, 12.0),
    "residual_scale": (F32, 0.25),
    "attention.scale": (F32, 0.5),
    "attention.clamp_kqv": (F32, 8.0),
    "attention.max_alibi_bias": (F32, 8.0),
    "attention.causal": (BOOL, False),
    "rope.dimension_count": (U32, 8),
    "rope.scaling.type": (STRING, "yarn"),
    "rope.scaling.attn_factor": (F32, 1.2),
    "attention.value_length": (U32, 32),
    "pooling_type": (U32, 1),
}


@pytest.mark.parametrize("kind", ARCHITECTURES)
@pytest.mark.parametrize("key", UNSUPPORTED)
def test_what_would_change_the_result_is_refused(path, kind, key):
    message = failure(path, value(f"{kind}.{key}", *UNSUPPORTED[key]), kind=kind)
    assert message.startswith(f"{kind}.{key}: expected ")


@pytest.mark.parametrize("kind", ["qwen2", "qwen3", "olmo2"])
def test_experts_of_another_architecture_are_refused(path, kind):
    message = failure(path, value(f"{kind}.expert_count", U32, 8), kind=kind)
    assert message.startswith(f"{kind}.expert_count: expected 0")


EXPERTS = {
    "expert_count": (U32, 8),
    "expert_used_count": (U32, 2),
    "expert_feed_forward_length": (U32, 32),
}


@pytest.mark.parametrize(
    ("key", "content", "expected"),
    [
        ("expert_gating_func", (U32, 2), "expected 1, softmax, got 2"),
        ("expert_weights_scale", (F32, 2.5), "expected 1, got 2.5"),
        ("expert_weights_norm", (U32, 2), "expected true or false, got 2"),
        ("expert_used_count", (U32, 9), "expected at most 8, got 9"),
        ("expert_count", (U32, 0), "expected an integer from 1 to 2147483647, got 0"),
    ],
)
def test_experts_that_are_weighed_otherwise_are_refused(path, key, content, expected):
    values = {**EXPERTS, key: content}
    values = [value(f"qwen3moe.{name}", *content) for name, content in values.items()]
    assert failure(path, *values, kind="qwen3moe") == f"qwen3moe.{key}: {expected}"


@pytest.mark.parametrize("key", ["expert_weights_scale", "expert_weights_norm"])
def test_an_array_in_the_place_of_a_number_is_refused(path, key):
    values = [value(f"qwen3moe.{name}", *content) for name, content in EXPERTS.items()]
    message = failure(path, *values, array(f"qwen3moe.{key}", F32, [1.0, 1.0]), kind="qwen3moe")
    assert message.startswith(f"qwen3moe.{key}: expected ")


def test_llama_with_experts_is_a_mixtral(path):
    values = [value(f"llama.{name}", *content) for name, content in EXPERTS.items()]
    assert load(path, *values).architecture == "MixtralForCausalLM"


@pytest.mark.parametrize(
    ("key", "content"),
    [
        ("expert_count", (U32, 0)),
        ("final_logit_softcapping", (F32, 0.0)),
        ("attention.causal", (BOOL, True)),
        ("attention.value_length", (U32, 16)),
        ("rope.dimension_count", (U32, 16)),
        ("rope.scaling.type", (STRING, "none")),
        ("rope.scaling.attn_factor", (F32, 1.0)),
        ("rope.scaling.factor", (F32, 1.0)),
        ("rope.scaling.factor", (F32, 0.0)),
        ("attention.sliding_window", (U32, 0)),
        ("pooling_type", (U32, 3)),
    ],
)
def test_what_changes_nothing_is_accepted(path, key, content):
    plain = load(path)
    assert load(path, value(f"llama.{key}", *content)) == plain


@pytest.mark.parametrize("types", [[], [value("llama.rope.scaling.type", STRING, "linear")]])
@pytest.mark.parametrize("key", ["rope.scaling.factor", "rope.scale_linear"])
def test_a_factor_of_positions_is_linear_scaling(path, types, key):
    # Without a type it is what llama.cpp takes it for.
    config = load(path, value(f"llama.{key}", F32, 4.0), *types)
    assert config.spec.ropes[0].scaling == LinearScaling(4.0)


def test_a_factor_that_the_type_leaves_out_is_not_used(path):
    config = load(
        path,
        value("llama.rope.scaling.type", STRING, "none"),
        value("llama.rope.scaling.factor", F32, 4.0),
    )
    assert config.spec.ropes[0].scaling is None


@pytest.mark.parametrize(
    ("size", "content", "expected"),
    [
        (7, b"\0\0\x80?" * 7, "expected 8, got [7]"),
        (8, b"\0\0\x80?" * 7 + bytes(4), "expected numbers above 0"),
        (8, b"\0\0\x80?" * 7 + b"\0\0\xc0\x7f", "expected numbers above 0"),
    ],
)
def test_wrong_divisors_of_rope_are_named(path, size, content, expected):
    message = failure(
        path,
        tensors=[Tensor("rope_freqs.weight", (size,), offset=16_768)],
        data=bytes(16_768) + content,
    )
    assert message == f"rope_freqs.weight: {expected}"


def test_divisors_beside_a_factor_are_refused(path):
    message = failure(
        path,
        value("llama.rope.scaling.factor", F32, 4.0),
        tensors=[Tensor("rope_freqs.weight", (8,), offset=16_768)],
    )
    assert message.startswith("llama.rope.scaling.factor: expected 1, as there is rope_freqs")


def test_a_window_makes_a_llama_a_mistral(path):
    config = load(path, value("llama.attention.sliding_window", U32, 20))
    assert config.architecture == "MistralForCausalLM"
    assert config.spec.kv_windows == (20,)


@pytest.mark.parametrize("kind", ["qwen2", "qwen3"])
def test_a_window_of_unknown_layers_is_refused(path, kind):
    key = f"{kind}.attention.sliding_window"
    assert failure(path, value(key, U32, 20), kind=kind).startswith(f"{key}: expected ")
    assert load(path, value(key, U32, 256), kind=kind).spec.kv_windows == (None,)


TOKENS = ["a", "<|im_end|>", "<|eot_id|>", "<|endoftext|>", "b", "<end_of_turn>", "c"]
CONTROL, NORMAL = 3, 1


@pytest.mark.parametrize(
    ("ids", "kinds", "expected"),
    [
        ({}, [NORMAL] * 7, ()),
        ({"eos": 4}, [NORMAL] * 7, (4,)),
        ({"eos": 4, "eot": 2, "eom": 6}, [NORMAL] * 7, (4, 2, 6)),
        ({"eos": 4}, [CONTROL] * 7, (4, 1, 2, 3, 5)),
        ({"eos": 2, "eot": 2}, [NORMAL, *[CONTROL] * 2, *[NORMAL] * 4], (2, 1)),
        ({"eos": 4}, [CONTROL] * 6, (4,)),
        ({"eos": 0}, None, (0,)),
    ],
)
def test_end_tokens_are_those_named_and_known_control_tokens(path, ids, kinds, expected):
    changes = [value(f"tokenizer.ggml.{name}_token_id", U32, n) for name, n in ids.items()]
    changes.append(array("tokenizer.ggml.tokens", STRING, TOKENS))
    if kinds is not None:
        changes.append(array("tokenizer.ggml.token_type", I32, kinds))
    assert load(path, *changes).eos_token_ids == expected


def test_rows_that_no_heads_divide_are_refused(path):
    load(path, tensors=[Tensor("blk.1.attn_q.weight", (1, 36), offset=16_768)])
    with pytest.raises(
        ModelError, match=r"llama\.attention\.head_count: expected .* blk\.1\.attn_q"
    ):
        load_weights(path, ModelConfig.load(path))
