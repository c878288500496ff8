"""Tokens that stand beside tokenizer.json, and those that go around a text."""

import json
import random

import pytest
from chairlift.api.errors import ModelError
from chairlift.text.tokenizer import Tokenizer
from tokenizers import AddedToken, processors
from transformers import PreTrainedTokenizerFast

from tests.tokenizer_families import TEXTS, byte_fallback_bpe, byte_level_bpe

BACKENDS = {"byte level": byte_level_bpe, "byte fallback": byte_fallback_bpe}
WORDS = [
    "<think>",
    "<|tool|>",
    " </think> ",
    "<pad>",
    "<pAd>",
    "a",
    " ",
    "  ",
    "lift",
    "<tool call>",
]


def after(backend, number):
    return backend.get_vocab_size() + number


def flagged(content, **flags):
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    return {"content": content, **plain, **flags}


def decoder(backend):
    return {
        "tokenizer_config.json": {
            "eos_token": "<|tool|>",
            "added_tokens_decoder": {
                str(after(backend, 2)): flagged("</think>", lstrip=True, rstrip=True),
                str(after(backend, 0)): flagged("<think>", normalized=True),
                str(after(backend, 1)): flagged("<|tool|>", rstrip=True, special=True),
            },
        },
        # Not read where there is the other.
        "added_tokens.json": {"lift": after(backend, 0)},
    }


def other_flags(backend):
    number = backend.token_to_id("<tool call>")
    tokens = {str(number): flagged("<tool call>", lstrip=True, rstrip=True)}
    return {"tokenizer_config.json": {"added_tokens_decoder": tokens}}


def legacy(backend):
    return {
        "tokenizer_config.json": {"pad_token": "<pad>"},
        "added_tokens.json": {
            "<think>": after(backend, 0),
            "<pad>": after(backend, 2),
            "<|tool|>": after(backend, 1),
        },
        "special_tokens_map.json": {
            "additional_special_tokens": ["<|tool|>"],
            "cls_token": flagged("<think>", lstrip=True),
        },
    }


def additional(_):
    listed = ["<|tool|>", {**flagged("<think>", lstrip=True), "__type": "AddedToken"}]
    return {"tokenizer_config.json": {"additional_special_tokens": listed}}


def extra(_):
    return {"tokenizer_config.json": {"extra_special_tokens": ["<think>", "</think>", "<|tool|>"]}}


def by_name(_):
    tokens = {"tool_token": "<|tool|>", "think_token": "<think>"}
    return {"tokenizer_config.json": {"extra_special_tokens": tokens}}


def names_of_its_own(_):
    return {"tokenizer_config.json": {"image_token": "<|tool|>"}}


def in_the_map(_):
    return {"special_tokens_map.json": {"additional_special_tokens": ["<think>", "<|tool|>"]}}


def named_with_room(backend):
    # The embedding has rows behind the vocabulary, which the named token takes.
    return {
        "config.json": {"vocab_size": after(backend, 8)},
        "tokenizer_config.json": {"pad_token": "<pad>", "sep_token": "<think>"},
    }


def a_listed_end(backend):
    # A token with a role is special, whatever the list says.
    token = {str(after(backend, 0)): flagged("<think>", lstrip=True)}
    return {"tokenizer_config.json": {"eos_token": "<think>", "added_tokens_decoder": token}}


def objects_of_a_list(_):
    token = {"__type": "AddedToken", "content": "<|tool|>", "lstrip": True, "normalized": False}
    return {"tokenizer_config.json": {"extra_special_tokens": [token]}}


def a_list_in_each_file(_):
    return {
        "special_tokens_map.json": {"extra_special_tokens": ["<think>", "<|tool|>"]},
        "tokenizer_config.json": {"extra_special_tokens": ["</think>", "<|tool|>"]},
    }


def an_older_list_in_each_file(_):
    return {
        "special_tokens_map.json": {"additional_special_tokens": ["<|tool|>"]},
        "tokenizer_config.json": {"additional_special_tokens": ["<think>"]},
    }


def an_older_list_beside_a_newer_one(_):
    lists = {"extra_special_tokens": ["<think>"], "additional_special_tokens": ["<|tool|>"]}
    return {"tokenizer_config.json": lists}


def older_files_together(backend):
    return {
        "added_tokens.json": {"<|tool|>": after(backend, 1), "<think>": after(backend, 0)},
        "special_tokens_map.json": {"additional_special_tokens": ["<|tool|>"]},
        "tokenizer_config.json": {"additional_special_tokens": ["</think>"]},
    }


def known_tokens_in_the_older_file(backend):
    # How tokenizer.json searches for them counts.
    number = backend.token_to_id("<tool call>")
    backend.add_tokens([AddedToken("<tool call>", lstrip=True, rstrip=True, normalized=False)])
    return {
        "added_tokens.json": {"<tool call>": number, "<think>": after(backend, 0)},
        "special_tokens_map.json": {"bos_token": "<think>"},
    }


FORMS = [
    *(decoder, other_flags, legacy, additional, extra, by_name, names_of_its_own, in_the_map),
    *(named_with_room, a_listed_end, objects_of_a_list, a_list_in_each_file),
    *(an_older_list_in_each_file, an_older_list_beside_a_newer_one, older_files_together),
    known_tokens_in_the_older_file,
]


def write(folder, backend, files):
    backend.save(str(folder / "tokenizer.json"))
    for name, values in files.items():
        (folder / name).write_text(json.dumps(values), encoding="utf-8")
    return folder


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("form", FORMS)
def test_tokens_beside_the_file_have_the_ids_of_transformers(tmp_path, backend, form):
    built = BACKENDS[backend]()
    plain = Tokenizer.load(write(tmp_path, built, {}))
    plain_ids = {text: plain.encode(text) for text in texts()}
    files = form(built)
    own = Tokenizer.load(write(tmp_path, built, files))
    theirs = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    for text in texts():
        ids = own.encode(text)
        assert ids == theirs.encode(text), text
        for skip in (True, False):
            decoded = theirs.decode(ids, skip_special_tokens=skip)
            assert own.decode(ids, skip_special_tokens=skip) == decoded, text
    assert any(own.encode(text) != ids for text, ids in plain_ids.items())


def texts():
    draw = random.Random(0)
    return [*TEXTS, *("".join(draw.choices(WORDS, k=draw.randrange(1, 9))) for _ in range(60))]


MAP = {"bos_token": "<|begin|>", "eos_token": "<tool call>", "tool_token": "<|end|>"}


@pytest.mark.parametrize("is_listed", [True, False])
def test_the_older_map_goes_before_the_configuration_where_that_lists_no_tokens(
    tmp_path, is_listed
):
    built = byte_level_bpe()
    config = {"eos_token": "<|end|>"}
    if is_listed:
        token = {**flagged("<|end|>"), "special": True}
        config["added_tokens_decoder"] = {str(built.token_to_id("<|end|>")): token}
    files = {"tokenizer_config.json": config, "special_tokens_map.json": MAP}
    own = Tokenizer.load(write(tmp_path, built, files))
    theirs = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    assert own.special_tokens == theirs.special_tokens_map
    assert own.bos_token_id == theirs.bos_token_id
    # Each end that a file names ends an answer; the first is what `transformers` takes.
    assert own.eos_token_ids[0] == theirs.eos_token_id
    assert set(own.eos_token_ids) == {built.token_to_id(end) for end in ("<|end|>", "<tool call>")}


def test_names_of_a_list_are_those_of_templates(tmp_path):
    files = {"tokenizer_config.json": {"extra_special_tokens": {"tool_token": "<|tool|>"}}}
    own = Tokenizer.load(write(tmp_path, byte_level_bpe(), files))
    theirs = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    assert own.special_tokens == theirs.special_tokens_map == {"tool_token": "<|tool|>"}


def test_a_token_without_room_in_the_model_is_no_token(tmp_path):
    built = byte_level_bpe()
    size = built.get_vocab_size()
    plain = Tokenizer.load(write(tmp_path, built, {})).encode("a<pad>")
    files = {
        "config.json": {"text_config": {"vocab_size": size}},
        "tokenizer_config.json": {"pad_token": "<pad>"},
        "added_tokens.json": {"<pad>": size},
    }
    tokenizer = Tokenizer.load(write(tmp_path, built, files))
    assert tokenizer.encode("a<pad>") == plain
    assert tokenizer.vocab_size == size


def test_a_token_that_would_get_another_id_than_its_file_says_is_refused(tmp_path):
    built = byte_level_bpe()
    number = after(built, 5)
    write(tmp_path, built, {"added_tokens.json": {"<think>": number}})
    with pytest.raises(
        ModelError, match=f"expected the id {number} for '<think>', got {number - 5}"
    ):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize(
    ("name", "values", "field"),
    [
        ("tokenizer_config.json", {"added_tokens_decoder": [1]}, "added_tokens_decoder"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"x": {}}}, "added_tokens_decoder"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"1": "<a>"}}, "added_tokens_decoder"),
        ("tokenizer_config.json", {"extra_special_tokens": "<a>"}, "extra_special_tokens"),
        ("tokenizer_config.json", {"additional_special_tokens": [3]}, "additional_special_tokens"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"9": {"content": 3}}}, "added_tokens_"),
        ("tokenizer_config.json", {"extra_special_tokens": [{"content": "a", "special": 3}]}, "ex"),
        ("special_tokens_map.json", {"additional_special_tokens": 3}, "additional_special_tokens"),
        ("added_tokens.json", {"<a>": "1"}, "<a>"),
        ("added_tokens.json", {"<a>": -1}, "<a>"),
        ("added_tokens.json", {"<a>": True}, "<a>"),
    ],
)
def test_malformed_lists_of_tokens_are_refused_by_name(tmp_path, name, values, field):
    with pytest.raises(ModelError, match=f"{name}: {field}.*: expected"):
        Tokenizer.load(write(tmp_path, byte_level_bpe(), {name: values}))


def template(single):
    tokens = [("<|begin|>", 0), ("<|end|>", 1)]
    own = processors.TemplateProcessing(single=single, special_tokens=tokens)
    return processors.Sequence([processors.ByteLevel(), own])


BEGIN, END = [0], [1]
AROUND = [
    (None, True, True, BEGIN, END),
    (None, True, False, BEGIN, []),
    (None, False, True, [], END),
    (None, False, False, [], []),
    (processors.ByteLevel(), True, True, BEGIN, END),
    (template("<|begin|> $A"), True, True, BEGIN, END),
    (template("$A <|end|>"), True, True, BEGIN, END),
    (template("$A <|end|>"), False, False, [], END),
    (processors.RobertaProcessing(("<|end|>", 1), ("<|begin|>", 0)), True, True, BEGIN, END),
]


@pytest.mark.parametrize(("processor", "bos", "eos", "before", "behind"), AROUND)
def test_each_way_to_encode_puts_the_same_tokens_around_a_text(
    tmp_path, processor, bos, eos, before, behind
):
    built = byte_level_bpe()
    if processor is not None:
        built.post_processor = processor
    config = {
        "bos_token": "<|begin|>",
        "eos_token": "<|end|>",
        "add_bos_token": bos,
        "add_eos_token": eos,
    }
    tokenizer = Tokenizer.load(write(tmp_path, built, {"tokenizer_config.json": config}))
    text = "step on a moving chair"
    inner = tokenizer.encode(text, add_special_tokens=False)
    expected = [*before, *inner, *behind]
    assert tokenizer.encode(text) == expected
    assert tokenizer.num_tokens(text) == len(expected)
    whole, _ = tokenizer.encode_input(text, None, None, add_special_tokens=True)
    assert whole == expected
    bare, _ = tokenizer.encode_input(text, None, None, add_special_tokens=False)
    assert bare == inner
    most = len(expected) - 2
    cut, _ = tokenizer.encode_input(text, None, most, add_special_tokens=True)
    assert cut == [*before, *inner[:-2], *behind]


def test_both_texts_of_a_pair_have_the_tokens_around_them(tmp_path):
    config = {"bos_token": "<|begin|>", "eos_token": "<|end|>"}
    config |= {"add_bos_token": True, "add_eos_token": True}
    built = byte_level_bpe()
    tokenizer = Tokenizer.load(write(tmp_path, built, {"tokenizer_config.json": config}))
    ids, num_first = tokenizer.encode_input("a", "b", None, add_special_tokens=True)
    a, b = (tokenizer.encode(text) for text in "ab")
    assert (ids, num_first) == ([*a, *b], len(a))


def test_a_named_token_keeps_how_it_takes_the_spaces_beside_it(tmp_path):
    built = byte_level_bpe()
    built.add_tokens([AddedToken("<mask>", lstrip=True)])
    tokenizer = Tokenizer.load(
        write(tmp_path, built, {"tokenizer_config.json": {"mask_token": "<mask>"}})
    )
    assert tokenizer.encode("a <mask>") == tokenizer.encode("a<mask>")
    assert tokenizer.decode(tokenizer.encode("a<mask>")) == "a"
