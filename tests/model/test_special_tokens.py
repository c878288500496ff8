"""Tokens that stand beside tokenizer.json, and those that go around a text."""

import json
import random

import pytest
from chairlift.errors import ModelError
from chairlift.model.tokenizer import Tokenizer
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


FORMS = [
    *(decoder, other_flags, legacy, additional, extra, by_name, names_of_its_own, in_the_map),
    named_with_room,
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
    write(tmp_path, built, form(built))
    own = Tokenizer.load(tmp_path)
    theirs = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    for text in texts():
        assert own.encode(text) == theirs.encode(text), text
    assert any(own.encode(text) != ids for text, ids in plain_ids.items())


def texts():
    draw = random.Random(0)
    return [*TEXTS, *("".join(draw.choices(WORDS, k=draw.randrange(1, 9))) for _ in range(60))]


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
        ("added_tokens.json", {"<a>": "1"}, "<a>"),
    ],
)
def test_malformed_lists_of_tokens_are_refused_by_name(tmp_path, name, values, field):
    with pytest.raises(ModelError, match=f"{name}: {field}: expected"):
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
