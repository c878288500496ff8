"""What a model folder says, and what is refused."""

import ast
import json
from dataclasses import replace
from pathlib import Path

import chairlift
import pytest
import torch
from chairlift.api.config import Dtype
from chairlift.api.errors import ModelError
from chairlift.engine.loading.devices import layer_unsupported_reason
from chairlift.model.config import GenerationDefaults, ModelConfig
from chairlift.model.families import FAMILIES as OUR_FAMILIES
from chairlift.model.specs.layer_parts import Attention, RmsNorm
from chairlift.model.specs.rope import LinearScaling, Llama3Scaling, Rope
from transformers import GptOssConfig

from tests.model.families import FAMILIES

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 112,
    "max_position_embeddings": 256,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "vocab_size": 131,
}


@pytest.fixture
def load(tmp_path):
    """Return `load(**changes)`: the configuration of LLAMA with changes; ... takes a key out."""

    def get(*, compute=Dtype.AUTO, generation=None, **changes):
        values = {key: value for key, value in {**LLAMA, **changes}.items() if value is not ...}
        (tmp_path / "config.json").write_text(json.dumps(values))
        if generation is not None:
            (tmp_path / "generation_config.json").write_text(json.dumps(generation))
        return ModelConfig.load(tmp_path, compute)

    return get


@pytest.mark.parametrize(
    "family",
    [name for name in FAMILIES if name.startswith(("llama", "mistral", "qwen2", "qwen3,"))],
)
def test_fields_are_those_of_transformers(pretrained, family):
    reference, folder = pretrained(family)
    ours, theirs = ModelConfig.load(folder), reference.config
    attention = reference.model.layers[0].self_attn
    assert ours.architecture == type(reference).__name__
    assert ours.spec.head.is_tied == theirs.tie_word_embeddings
    for layer in ours.spec.layers:
        own = layer.attention
        assert own.head_dim == attention.head_dim
        assert own.num_kv_heads == theirs.num_key_value_heads
        assert own.rope.theta == theirs.rope_parameters["rope_theta"]
        assert own.qkv_bias == (attention.q_proj.bias is not None)
        assert own.out_bias == (attention.o_proj.bias is not None)
        assert (own.qk_norm is not None) == hasattr(attention, "q_norm")
        has_bias = reference.model.layers[0].mlp.up_proj.bias is not None
        assert layer.feed_forward.bias == has_bias
    assert ours.eos_token_ids == (2,)
    assert ours.bos_token_id == 1


def test_absent_values_take_the_defaults_of_transformers(load):
    config = load()
    attention = config.spec.layers[0].attention
    assert attention == Attention(num_heads=4, num_kv_heads=4, head_dim=16, rope=Rope(10_000))
    assert config.spec.final_norm == config.spec.layers[0].norm == RmsNorm(1e-6)
    assert not config.spec.head.is_tied
    assert config.eos_token_ids == ()
    assert config.bos_token_id is None
    assert config.generation == GenerationDefaults()


def test_absent_values_of_a_family_are_those_of_its_class(tmp_path):
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size")
    sizes = {"num_attention_heads": 16, **{name: LLAMA[name] for name in names}}
    architectures = ["GptOssForCausalLM"]
    specs = []
    for fields in (sizes, GptOssConfig(**sizes).to_dict()):
        text = json.dumps({**fields, "architectures": architectures})
        (tmp_path / "config.json").write_text(text)
        specs.append(ModelConfig.load(tmp_path).spec)
    assert specs[0] == specs[1]
    assert specs[0].kv_windows == (128, None)


def test_null_counts_as_absent(load):
    names = ("num_key_value_heads", "head_dim", "rope_scaling", "rope_parameters", "eos_token_id")
    assert load(**dict.fromkeys(names)) == load()


def test_old_and_new_rope_keys_mean_the_same(load):
    old = load(rope_theta=5e5, rope_scaling={"type": "linear", "factor": 4.0})
    new = load(rope_parameters={"rope_type": "linear", "factor": 4, "rope_theta": 5e5})
    assert old == new
    assert old.spec.ropes == (Rope(5e5, LinearScaling(4.0)),)


def test_llama3_rope_scales_from_the_longest_length_unless_told(load):
    rope = {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4}
    assert load(rope_scaling=rope).spec.ropes == (Rope(10_000, Llama3Scaling(8, 1, 4, 256)),)
    rope["original_max_position_embeddings"] = 64
    assert load(rope_scaling=rope).spec.ropes == (Rope(10_000, Llama3Scaling(8, 1, 4, 64)),)


def test_layers_with_the_same_window_share_a_kv_group(load):
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    config = load(
        architectures=["Qwen3ForCausalLM"],
        num_key_value_heads=2,
        num_hidden_layers=3,
        use_sliding_window=True,
        sliding_window=24,
        layer_types=kinds,
    )
    assert config.spec.kv_windows == (24, None)
    assert config.spec.layer_groups == (0, 1, 0)


@pytest.mark.parametrize(("window", "expected"), [(255, 255), (256, None), (None, None)])
def test_a_window_as_long_as_the_model_is_none(load, window, expected):
    config = load(
        architectures=["MistralForCausalLM"], num_key_value_heads=2, sliding_window=window
    )
    assert config.spec.kv_windows == (expected,)


def test_qwen_has_no_window_unless_it_is_in_use(load):
    config = load(
        architectures=["Qwen2ForCausalLM"],
        num_key_value_heads=2,
        use_sliding_window=False,
        sliding_window=24,
        max_window_layers=0,
    )
    assert config.spec.kv_windows == (None,)


@pytest.mark.parametrize(
    "changes",
    [{"num_heads": 8}, {"num_kv_heads": 2}, {"head_dim": 32}],
    ids=lambda changes: next(iter(changes)),
)
def test_layers_may_differ_in_their_heads_on_a_cpu(load, changes):
    spec = load().spec
    first, second = spec.layers
    changed = replace(second, attention=replace(second.attention, **changes))
    other = replace(spec, layers=(first, changed))
    assert other.shapes == (spec.shape, spec.shape._replace(**changes))
    windows = [layer.attention.window for layer in other.layers]
    assert windows[0] == windows[1]
    expected = "model: layers of one window with different heads are not supported on a GPU"
    assert layer_unsupported_reason(spec) is None
    assert layer_unsupported_reason(other) == expected
    assert layer_unsupported_reason(replace(other, layers=(first, changed.with_window(7)))) is None


def test_a_gpu_rotates_parts_of_heads_that_lanes_share(load):
    spec = load().spec

    def with_rotated(rotary_dim, head_dim):
        def rotating(layer):
            rope = replace(layer.attention.rope, rotary_dim=rotary_dim)
            return replace(layer, attention=replace(layer.attention, rope=rope, head_dim=head_dim))

        return layer_unsupported_reason(replace(spec, layers=tuple(map(rotating, spec.layers))))

    for rotary_dim, head_dim in ((6, 64), (48, 64), (96, 128), (64, 256), (0, 256)):
        assert with_rotated(rotary_dim, head_dim) is None
    for rotary_dim, head_dim in ((6, 128), (12, 256)):
        assert "RoPE of such a part of a head" in with_rotated(rotary_dim, head_dim)


def test_a_gpu_reads_feed_forwards_in_whole_vectors(load):
    spec = load().spec
    first, second = spec.layers
    for width, expected in ((48, None), (44, "model: widths that are no multiple of 8 are not")):
        narrow = replace(second, feed_forward=replace(second.dense, intermediate_size=width))
        found = layer_unsupported_reason(replace(spec, layers=(first, narrow)))
        assert found is None if expected is None else found.startswith(expected)


def test_a_spec_without_layers_is_refused(load):
    with pytest.raises(ModelError, match=r"^layers: expected at least one with attention"):
        replace(load().spec, layers=())


def test_nothing_but_the_families_the_config_and_gguf_names_a_family():
    package = Path(chairlift.__file__).parent
    # A GGUF file names its architecture and its pre-tokenizer, a format of calls a family.
    allowed = {
        "families",
        "families.py",
        "generic",
        "config.py",
        "gguf",
        "answer_formats.py",
        "tool_grammar.py",
    }
    names = [name.removesuffix("ForCausalLM").lower() for name in OUR_FAMILIES]
    rooms = [package / name for name in ("model", "checkpoints", "text")]
    for path in (path for room in rooms for path in room.rglob("*.py")):
        if not allowed & {*path.relative_to(package).parts}:
            tree = ast.parse(path.read_text())
            words = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
            words |= {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
            words |= {
                module
                for n in ast.walk(tree)
                if isinstance(n, ast.ImportFrom) and (module := n.module)
            }
            found = [(path.name, w) for w in words for n in names if n in w.lower()]
            assert all(word == "Llama3Scaling" for _, word in found), found
            assert not any(word.startswith("chairlift.model.families") for word in words), path


def test_generation_config_gives_sampling_defaults_and_end_tokens(load):
    generation = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "eos_token_id": [5, 6]}
    config = load(eos_token_id=7, generation=generation)
    assert config.generation == GenerationDefaults(temperature=0.6, top_k=20, top_p=0.95)
    assert config.eos_token_ids == (5, 6, 7)


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        ("float32", torch.float32),
        ("bfloat16", torch.bfloat16),
        ("float16", torch.bfloat16),
        (..., torch.float32),
    ],
)
@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
def test_dtype_is_the_checkpoints_unless_told(load, key, stored, expected):
    assert load(**{key: stored}).dtype == expected
    assert load(**{key: stored}, compute=Dtype.FLOAT32).dtype == torch.float32


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32}
GROUP = {"type": "int", "num_bits": 4, "strategy": "group", "group_size": 32}


def compressed(*groups, **changes):
    """Return a `quantization_config` of compressed-tensors."""
    named = {f"group_{number}": {"weights": group} for number, group in enumerate(groups)}
    return {"quant_method": "compressed-tensors", "config_groups": named, **changes}


UNSUPPORTED_QUANTIZATION = {
    "a list": ([], "expected an object, got"),
    "no method": ({}, "quant_method: expected awq, .* or mxfp4, got nothing"),
    "another method": ({"quant_method": "bitsandbytes"}, 'quant_method: .* got "bitsandbytes"'),
    "a number as method": ({"quant_method": 4}, "quant_method: .* got 4"),
    "gptq of three bits": ({**GPTQ, "bits": 3}, "bits: expected 4 or 8, got 3"),
    "gptq for marlin": (
        {**GPTQ, "checkpoint_format": "marlin"},
        'checkpoint_format: expected gptq or gptq_v2, got "marlin"',
    ),
    "gptq for old marlin": ({**GPTQ, "is_marlin_format": True}, "is_marlin_format: expected false"),
    "text as sym": ({**GPTQ, "sym": "yes"}, 'sym: expected true or false, got "yes"'),
    "groups of 48": ({**GPTQ, "group_size": 48}, "group_size: .* multiple of 32, got 48"),
    "groups of 0": ({**AWQ, "group_size": 0}, "group_size: .* got 0"),
    "no group size": ({"quant_method": "awq", "bits": 4}, "group_size: .* got nothing"),
    "awq of eight bits": ({**AWQ, "bits": 8}, "bits: expected 4, got 8"),
    "awq for gemv": ({**AWQ, "version": "gemv"}, 'version: expected gemm, got "gemv"'),
    "a number as version": ({**AWQ, "version": 1}, "version: expected gemm, got 1"),
    "tiles of one number": (
        {"quant_method": "fp8", "weight_block_size": [128]},
        r"weight_block_size: expected rows and columns, got \[128\]",
    ),
    "two groups": (
        compressed(GROUP, {**GROUP, "num_bits": 8}),
        "config_groups: expected one way to quantize",
    ),
    "two group sizes": (
        compressed(GROUP, {**GROUP, "group_size": 64}),
        "config_groups: expected one way to quantize",
    ),
    "no groups": (compressed(), "config_groups: expected one way to quantize"),
    "compressed groups of 16": (compressed({**GROUP, "group_size": 16}), "group_size: .* got 16"),
    "sparse": (compressed(GROUP, format="sparse-24-bitmask"), "format: .* got"),
    "four bits of bytes": (compressed(GROUP, format="int-quantized"), "num_bits: expected 8"),
    "four-bit floats": (compressed({**GROUP, "type": "float"}), "num_bits: expected 8 for floats"),
    "tiles of integers": (compressed({**GROUP, "strategy": "block"}), "strategy: .* got"),
    "rotations": (
        compressed(GROUP, transform_config={"config_groups": {"R1": {}}}),
        "transform_config: expected none",
    ),
}
UNSUPPORTED = {
    "another architecture": ({"architectures": ["GPT2LMHeadModel"]}, "architectures: expected Lla"),
    "no architecture": ({"architectures": ...}, "architectures"),
    "dynamic": (
        {"rope_scaling": {"rope_type": "dynamic", "factor": 4}},
        'rope_type: .*got "dynamic"',
    ),
    "yarn without a factor": (
        {"rope_scaling": {"rope_type": "yarn"}},
        "rope_scaling.factor: .*got nothing",
    ),
    "longrope without divisors": (
        {"rope_scaling": {"rope_type": "longrope", "short_factor": [1.0]}},
        "short_factor: expected a list of 8 numbers",
    ),
    "dynamic rope": ({"rope_scaling": {"type": "dynamic", "factor": 4}}, 'got "dynamic"'),
    "rope per layer": ({"rope_parameters": {"full_attention": {}}}, "rope_parameters"),
    "partial rope": ({"partial_rotary_factor": 0.1}, "partial_rotary_factor"),
    "no rope factor": ({"rope_scaling": {"rope_type": "linear"}}, "factor: .*got nothing"),
    "activation": ({"hidden_act": "relu"}, "hidden_act"),
    **{
        f"quantization: {name}": ({"quantization_config": values}, f"quantization_config.*{text}")
        for name, (values, text) in UNSUPPORTED_QUANTIZATION.items()
    },
    "code": ({"auto_map": {"AutoModel": "modeling.Model"}}, "auto_map"),
    "dtype": ({"dtype": "float8_e4m3fn"}, "dtype"),
    "missing size": ({"hidden_size": ...}, "hidden_size: expected an integer, got nothing"),
    "size as text": ({"hidden_size": "64"}, "hidden_size"),
    "size as flag": ({"num_hidden_layers": True}, "num_hidden_layers"),
    "no layers": ({"num_hidden_layers": 0}, "num_hidden_layers"),
    "head size": ({"head_dim": 12}, "head_dim: expected a multiple of 16 up to 512, got 12"),
    "implied head size": ({"hidden_size": 16}, "head_dim: expected a multiple of 16"),
    "large head": ({"head_dim": 528}, "head_dim"),
    "heads": ({"num_key_value_heads": 3}, "num_key_value_heads: expected a divisor of 4, got 3"),
    "flag as text": ({"attention_bias": "no"}, "attention_bias"),
    "end token": ({"eos_token_id": "</s>"}, "eos_token_id"),
    "layer kind": (
        {"architectures": ["Qwen2ForCausalLM"], "layer_types": ["chunked_attention"] * 2},
        "layer_types",
    ),
    "an activation beside clamped gates": (
        {"architectures": ["GptOssForCausalLM"], "hidden_act": "gelu"},
        'hidden_act: expected silu, got "gelu"',
    ),
    "a limit of nothing": (
        {"architectures": ["GptOssForCausalLM"], "swiglu_limit": 0},
        "swiglu_limit: expected a number above 0",
    ),
    "windows of mistral": (
        {"architectures": ["MistralForCausalLM"], "layer_types": ["full_attention"] * 2},
        "layer_types",
    ),
}


@pytest.mark.parametrize("case", UNSUPPORTED)
def test_what_is_not_supported_is_named_in_one_line(load, case):
    changes, pattern = UNSUPPORTED[case]
    if "layer_types" in changes:
        changes = {"num_key_value_heads": 2, **changes}
    with pytest.raises(ModelError, match=pattern) as error:
        load(**changes)
    assert "config.json" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", [None, "", "[]", '{"hidden_size": 64', "\udcff"])
def test_an_unreadable_config_is_named_in_one_line(tmp_path, text):
    if text is not None:
        (tmp_path / "config.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ModelError, match=r"config\.json: ") as error:
        ModelConfig.load(tmp_path)
    assert "\n" not in str(error.value)
