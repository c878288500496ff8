"""Metadata that is not what it should be: one line that names the file and the key."""

from pathlib import Path

import pytest
from chairlift.api.errors import ModelError
from chairlift.text.tokenizer import Tokenizer

from tests.model.gguf.vocabularies import SPLITTERS, byte_level, pieces, stored
from tests.model.gguf.written import NORMAL, write


def error_of(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        Tokenizer.load(path)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(f"{path}: "), message
    return message.removeprefix(f"{path}: ")


def test_an_unknown_splitter_is_refused_with_the_names_of_the_known(tmp_path):
    path = write(tmp_path / "m.gguf", pre="poro-chat", **stored(byte_level("gpt-2")))
    message = error_of(path)
    assert message.startswith("tokenizer.ggml.pre: expected ")
    assert message.endswith('got "poro-chat"')
    expected = message.removeprefix("tokenizer.ggml.pre: expected ").partition(", got")[0]
    assert set(expected.replace(" or ", ", ").split(", ")) == set(SPLITTERS)


def test_a_begin_token_that_is_asked_for_must_exist(tmp_path):
    values = stored(byte_level("gpt-2")) | {"bos_token_id": None}
    path = write(tmp_path / "m.gguf", pre="gpt-2", add_bos_token=True, **values)
    assert error_of(path) == "tokenizer.ggml.bos_token_id: expected a token's id, got nothing"


WRONG = [
    ("model", "bert", 'model: expected gpt2, llama or gemma4, got "bert"'),
    ("model", None, "model: expected gpt2, llama or gemma4, got nothing"),
    ("model", 3, "model: expected gpt2, llama or gemma4, got 3"),
    ("pre", None, "pre: expected "),
    ("pre", 3, "pre: expected "),
    ("tokens", None, "tokens: expected a list of tokens, got nothing"),
    ("tokens", [1, 2], "tokens: expected a list of tokens, got "),
    ("tokens", "a", 'tokens: expected a list of tokens, got "a"'),
    ("tokens", ["a", "b", "a"], "tokens: expected different tokens, got a twice"),
    ("token_type", None, "token_type: expected {n} numbers, got nothing"),
    ("token_type", [1, 1], "token_type: expected {n} numbers, got 2 values of int32"),
    ("token_type", 1, "token_type: expected {n} numbers, got "),
    ("token_type", ["a"], "token_type: expected {n} numbers, got "),
    ("merges", None, "merges: expected a list of pairs, got nothing"),
    ("merges", [1, 2], "merges: expected a list of pairs, got "),
    ("merges", ["a b", "ab"], 'merges: expected two tokens, got "ab"'),
    ("merges", ["no such"], "merges: not a tokenizer: "),
    ("add_bos_token", 1, "add_bos_token: expected true or false, got 1"),
    ("add_eos_token", True, "add_eos_token: expected false"),
    ("eos_token_id", "a", "eos_token_id: expected an integer"),
    ("tokenizer__chat_template", 3, "tokenizer.chat_template: expected a string, got 3"),
    ("tokenizer__chat_template__tool_use", 3, "tokenizer.chat_template.tool_use: expected a "),
]


@pytest.mark.parametrize(("key", "value", "message"), WRONG)
def test_metadata_of_the_wrong_kind_is_refused_by_key(tmp_path, key, value, message):
    values = {"model": "gpt2", "pre": "gpt-2", **stored(byte_level("gpt-2"))}
    num_tokens = len(values["tokens"])
    if key == "tokens" and isinstance(value, list) and isinstance(value[0], str):
        values["token_type"] = [NORMAL] * len(value)
    error = error_of(write(tmp_path / "m.gguf", **values | {key: value}))
    expected = message.replace("{n}", str(num_tokens))
    prefix = "" if key.startswith("tokenizer") else "tokenizer.ggml."
    assert error.startswith(f"{prefix}{expected}")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("scores", None, "scores: expected {n} numbers, got nothing"),
        ("scores", [0.5], "scores: expected {n} numbers, got 1 values of float32"),
        ("scores", ["a"], "scores: expected {n} numbers, got 1 strings"),
        ("scores", "not a number", "scores: expected {n} finite numbers, got nan"),
        ("add_space_prefix", 1, "add_space_prefix: expected true or false, got 1"),
        ("tokens", "twice", "tokens: expected different tokens, got <s> twice"),
    ],
)
def test_metadata_of_pieces_of_the_wrong_kind_is_refused_by_key(tmp_path, key, value, message):
    values = dict(pieces())
    if value == "not a number":
        value = [*values["scores"][:-1], float("nan")]
    if value == "twice":
        value = [*values["tokens"][:-1], "<s>"]
    error = error_of(write(tmp_path / "m.gguf", model="llama", **values | {key: value}))
    assert error.startswith("tokenizer.ggml." + message.replace("{n}", str(len(values["tokens"]))))
