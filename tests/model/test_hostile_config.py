"""Files of a model folder whose values no model has: one line that names the field, at once."""

import json
import os

import pytest
from chairlift.api.errors import ModelError
from chairlift.checkpoints.files.fields import MAX_INT, MAX_OF
from chairlift.model.config import ModelConfig
from chairlift.text.tokenizer import Tokenizer

from tests.engine.tiny_model import write_tokenizer

CONFIG = {
    "architectures": ["MistralForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 112,
    "max_position_embeddings": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "vocab_size": 131,
    "sliding_window": 20,
    "head_dim": 16,
}
INTEGERS = [name for name, value in CONFIG.items() if isinstance(value, int)]
HUGE = [2**31, 10**9 + 2**31, 10**30, 10**400, -1, -(10**400), 1.5, float("inf"), float("nan"), "1"]
HUGE += [True, [1], {"a": 1}]
DEEP = "[" * 100_000 + "]" * 100_000


def failure(load, name):
    """Return the one short line with which a folder is refused, which names a file."""
    with pytest.raises(ModelError) as error:
        load()
    message = str(error.value)
    assert name in message
    assert "\n" not in message
    assert len(message) < 500
    message.encode()
    return message


def write(folder, **changes):
    (folder / "config.json").write_text(json.dumps({**CONFIG, **changes}))


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("value", HUGE, ids=lambda value: str(value)[:20])
def test_an_integer_that_no_model_has_is_named(tmp_path, name, value):
    write(tmp_path, **{name: value})
    failure(lambda: ModelConfig.load(tmp_path), f"config.json: {name}: expected")


@pytest.mark.parametrize("name", MAX_OF)
def test_an_integer_above_its_bound_is_refused_at_once(tmp_path, name):
    # Each field is one of this family, whose last layer has the attention.
    kinds = {"architectures": ["Qwen3_5ForCausalLM"], "full_attention_interval": 2}
    write(tmp_path, **{**kinds, name: MAX_OF[name] + 1})
    message = failure(lambda: ModelConfig.load(tmp_path), f"config.json: {name}: expected")
    assert f"an integer from 1 to {MAX_OF[name]}, got {MAX_OF[name] + 1}" in message


def test_the_most_layers_are_looked_at_in_a_moment(tmp_path):
    write(tmp_path, num_hidden_layers=MAX_OF["num_hidden_layers"])
    assert ModelConfig.load(tmp_path).spec.num_layers == MAX_OF["num_hidden_layers"]


ROPE = {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4}
NUMBERS = {
    "theta of 0": ({"rope_theta": 1e-300}, "rope_theta"),
    "an infinite theta": ({"rope_theta": float("inf")}, "rope_theta"),
    "a theta beyond floats": ({"rope_theta": 10**400}, "rope_theta"),
    "eps beyond float32": ({"rms_norm_eps": 1e39}, "rms_norm_eps"),
    "eps that is not a number": ({"rms_norm_eps": float("nan")}, "rms_norm_eps"),
    "factor of 0": ({"rope_scaling": {"rope_type": "linear", "factor": 0}}, "factor"),
    "llama3 factor of 0": ({"rope_scaling": {**ROPE, "factor": 0}}, "factor"),
    "equal frequencies": ({"rope_scaling": {**ROPE, "low_freq_factor": 4}}, "high_freq_factor"),
    "original length": (
        {"rope_scaling": {**ROPE, "original_max_position_embeddings": 10**400}},
        "original_max_position_embeddings",
    ),
    "rope type": ({"rope_scaling": {"rope_type": ["linear"], "factor": 2}}, "rope_type"),
    "an end token beyond 32 bits": ({"eos_token_id": 2**31}, "eos_token_id"),
    "many end tokens": ({"eos_token_id": [1] * 1000}, "eos_token_id"),
    "end tokens in a list": ({"eos_token_id": [[1]]}, "eos_token_id"),
    "a long name": ({"architectures": "x" * 10**6}, "architectures"),
    "many names": ({"architectures": ["x"] * 10**5}, "architectures"),
    "a name that is a list": ({"architectures": [["x"]]}, "architectures"),
    "a long type": ({"dtype": "\n" * 10**5}, "dtype"),
}


@pytest.mark.parametrize("case", NUMBERS)
def test_a_value_that_cannot_be_computed_with_is_named(tmp_path, case):
    changes, name = NUMBERS[case]
    write(tmp_path, **changes)
    failure(lambda: ModelConfig.load(tmp_path), f"{name}: expected")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 10**400),
        ("temperature", float("nan")),
        ("top_k", 10**400),
        ("top_k", -2),
        ("top_p", 1.5),
        ("top_p", 0),
        ("min_p", 2),
        ("eos_token_id", -(10**30)),
    ],
)
def test_a_sampling_default_that_no_request_may_have_is_named(tmp_path, name, value):
    write(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({name: value}))
    failure(lambda: ModelConfig.load(tmp_path), f"generation_config.json: {name}: expected")


def test_a_token_of_minus_one_is_none(tmp_path):
    write(tmp_path, bos_token_id=-1, eos_token_id=[-1, MAX_INT])
    config = ModelConfig.load(tmp_path)
    assert (config.bos_token_id, config.eos_token_ids) == (None, (MAX_INT,))


CONTENTS = {
    "nested lists": DEEP.encode(),
    "nested objects": b'{"a":' * 100_000,
    "a nested value": f'{{"hidden_size": {DEEP}}}'.encode(),
    "half of a surrogate pair": b'{"bos_token": "\\ud800"}',
    "the same in UTF-8": b'{"bos_token": "\xed\xa0\x80"}',
    "digits without end": b'{"hidden_size": ' + b"9" * 100_000 + b"}",
    "a number": b"1",
    "nothing": b"",
}
FILES = {
    "config.json": ModelConfig.load,
    "generation_config.json": ModelConfig.load,
    "tokenizer.json": Tokenizer.load,
    "tokenizer_config.json": Tokenizer.load,
    "special_tokens_map.json": Tokenizer.load,
}


@pytest.fixture
def folder(tmp_path):
    write(tmp_path)
    write_tokenizer(tmp_path, 131)
    return tmp_path


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("case", CONTENTS)
def test_a_file_that_cannot_be_is_named(folder, file, case):
    (folder / file).write_bytes(CONTENTS[case])
    failure(lambda: FILES[file](folder), f"{file}: ")


@pytest.mark.parametrize("file", [*FILES, "chat_template.jinja"])
@pytest.mark.parametrize("kind", ["a pipe", "a folder", "a device", "a loop"])
def test_what_is_no_file_is_named_and_not_waited_for(folder, file, kind):
    path = folder / file
    path.unlink(missing_ok=True)
    match kind:
        case "a pipe":
            os.mkfifo(path)
        case "a folder":
            path.mkdir()
        case "a device":
            path.symlink_to("/dev/zero")
        case "a loop":
            path.symlink_to(file)
    load = FILES.get(file, Tokenizer.load)
    if (file, kind) == ("chat_template.jinja", "a loop"):
        assert not load(folder).has_chat_template
        return
    failure(lambda: load(folder), f"{file}: ")


def test_a_pair_of_surrogates_is_a_character(folder):
    (folder / "tokenizer_config.json").write_text('{"bos_token": "\\ud83c\\udfbf"}')
    assert Tokenizer.load(folder).special_tokens["bos_token"] == "\N{SKI AND SKI BOOT}"


def test_a_tokenizer_that_makes_its_library_panic_is_named(folder):
    path = folder / "tokenizer.json"
    values = json.loads(path.read_text())
    values["model"]["continuing_subword_prefix"] = "a" * 100
    path.write_text(json.dumps(values))
    failure(lambda: Tokenizer.load(folder), "tokenizer.json: not a tokenizer: ")
