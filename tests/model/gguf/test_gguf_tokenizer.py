"""A tokenizer from a GGUF file against the tokenizer.json of the same model."""

import json
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from chairlift._core import TextStream
from chairlift.errors import ModelError
from chairlift.model.tokenizer import Tokenizer
from chairlift.types import Chat, ChatMessage
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from tests.model.gguf.written import (
    BYTE,
    CONTROL,
    NORMAL,
    TEXT,
    TEXTS,
    UNKNOWN,
    USER_DEFINED,
    pieces_by_id,
    write,
)
from tests.tokenizer_families import byte_fallback_bpe

BYTE_LEVEL = pre_tokenizers.ByteLevel(add_prefix_space=False)
BYTES_ALONE = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
SEED_CODER = QWEN2.replace(r" ?[^\s\p{L}\p{N}]+[\r\n]*", r" ?[^\s\p{L}\p{N}\r\n]+")
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def digits() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Digits(individual_digits=True)


def split(*patterns: str) -> pre_tokenizers.PreTokenizer:
    splits = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in patterns]
    return pre_tokenizers.Sequence([*splits, BYTES_ALONE])


DEEPSEEK_CODER = pre_tokenizers.Sequence(
    [
        *(
            pre_tokenizers.Split(Regex(pattern), behavior="isolated")
            for pattern in (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\ud7ff]+")
        ),
        digits(),
        BYTES_ALONE,
    ]
)
GPT2 = BYTE_LEVEL, False, False
SMOLLM = pre_tokenizers.Sequence([digits(), BYTE_LEVEL]), False, False
SPLITTERS = {
    **dict.fromkeys(("gpt-2", "a.x-4.0", "mellum", "trillion", "granite-docling"), GPT2),
    **dict.fromkeys(("smollm", "starcoder", "refact", "minerva-7b"), SMOLLM),
    **dict.fromkeys(
        ("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "midm-2.0"),
        (split(LLAMA3), True, True),
    ),
    "smaug-bpe": (split(LLAMA3), False, False),
    **dict.fromkeys(
        ("qwen2", "deepseek-r1-qwen", "megrez", "kormo", "f2llmv2"), (split(QWEN2), False, False)
    ),
    "seed-coder": (split(SEED_CODER), False, False),
    "deepseek-coder": (DEEPSEEK_CODER, False, False),
    "tekken": (split(TEKKEN), True, True),
}
"""By `tokenizer.ggml.pre`: the splitter of tokenizer.json, whether a word that is a token is that
token, and whether the begin token is added."""
KINDS = list({id(entry[0]): name for name, entry in reversed(SPLITTERS.items())}.values())
"""One name of each splitter."""

ANY_TEXT = st.one_of(
    st.lists(
        st.sampled_from(["a", "B", " ", "  ", "\n", "\r\n", "\t", "'", "s", "'LL", "1", "23", ".."])
        | st.sampled_from(sorted(set(TEXT))),
        max_size=40,
    ).map("".join),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=60),
)


@cache
def byte_level(pre: str) -> Backend:
    """Train a tokenizer; some words are tokens that no merges make."""
    pre_tokenizer, ignores_merges, _ = SPLITTERS[pre]
    trained = Backend(models.BPE())
    trained.pre_tokenizer = pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=["<|begin|>", "<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    trained.train_from_iterator([TEXT], trainer)
    model = json.loads(trained.to_str())["model"]
    vocabulary = model["vocab"]
    words = sorted({word for word, _ in pre_tokenizer.pre_tokenize_str(TEXT)} - set(vocabulary))
    vocabulary |= {word: len(vocabulary) + i for i, word in enumerate(words[::3])}
    backend = Backend(
        models.BPE(
            vocabulary,
            [tuple(pair) for pair in model["merges"]],
            ignore_merges=ignores_merges,
        )
    )
    backend.pre_tokenizer = pre_tokenizer
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|begin|>", "<|end|>", "<|im_end|>"])
    backend.add_tokens([AddedToken("<tool call>", normalized=False)])
    return backend


def stored(backend: Backend) -> dict[str, Any]:
    """Return what a GGUF file stores of a byte-level tokenizer."""
    added = backend.get_added_tokens_decoder()
    tokens = pieces_by_id(backend.get_vocab())
    kinds = [
        NORMAL if i not in added else CONTROL if added[i].special else USER_DEFINED
        for i in range(len(tokens))
    ]
    merges = [" ".join(pair) for pair in json.loads(backend.to_str())["model"]["merges"]]
    return {"tokens": tokens, "token_type": kinds, "merges": merges, "bos_token_id": 0}


def streamed(tokenizer: Tokenizer, ids: list[int]) -> str:
    text = TextStream(tokenizer.token_table(tokenizer.vocab_size))
    return "".join(text.push(token) for token in ids) + text.finish()


def error_of(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        Tokenizer.load(path)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(f"{path}: "), message
    return message.removeprefix(f"{path}: ")


# --- byte-level BPE ---------------------------------------------------------------------------


@pytest.mark.parametrize("pre", SPLITTERS)
def test_ids_and_texts_equal_those_of_tokenizer_json(tmp_path, pre):
    reference = byte_level(pre)
    tokenizer = Tokenizer.load(write(tmp_path / "m.gguf", pre=pre, **stored(reference)))
    assert tokenizer.vocab_size == reference.get_vocab_size()
    table = tokenizer.token_table(tokenizer.vocab_size)
    for text in TEXTS:
        ids = reference.encode(text).ids
        assert tokenizer.encode(text, add_special_tokens=False) == ids
        assert tokenizer.decode(ids) == reference.decode(ids) == text
        stream = TextStream(table)
        assert "".join(stream.push(token) for token in ids) + stream.finish() == text


@pytest.mark.parametrize("pre", KINDS)
def test_ids_of_any_text_equal_those_of_tokenizer_json(tmp_path, pre):
    reference = byte_level(pre)
    tokenizer = Tokenizer.load(write(tmp_path / "m.gguf", pre=pre, **stored(reference)))

    @settings(max_examples=150)
    @given(ANY_TEXT)
    def check(text):
        ids = reference.encode(text).ids
        assert tokenizer.encode(text, add_special_tokens=False) == ids
        assert tokenizer.decode(ids) == text

    check()


def test_the_splitters_of_the_families_differ_on_the_sample():
    words = {pre: tuple(SPLITTERS[pre][0].pre_tokenize_str(TEXT)) for pre in KINDS}
    del words["smaug-bpe"]  # as Llama 3
    assert len(set(words.values())) == len(words) > 5


def test_an_unknown_splitter_is_refused_with_the_names_of_the_known(tmp_path):
    path = write(tmp_path / "m.gguf", pre="poro-chat", **stored(byte_level("gpt-2")))
    message = error_of(path)
    assert message.startswith("tokenizer.ggml.pre: expected ")
    assert message.endswith('got "poro-chat"')
    expected = message.removeprefix("tokenizer.ggml.pre: expected ").partition(", got")[0]
    assert set(expected.replace(" or ", ", ").split(", ")) == set(SPLITTERS)


def test_special_and_user_defined_tokens_are_found_in_a_text(tmp_path):
    reference = byte_level("qwen2")
    tokenizer = Tokenizer.load(write(tmp_path / "m.gguf", pre="qwen2", **stored(reference)))
    text = "a<|im_end|>b<tool call> c<|im_end|"
    ids = tokenizer.encode(text)
    assert ids == reference.encode(text).ids
    assert reference.token_to_id("<|im_end|>") in ids
    assert reference.token_to_id("<tool call>") in ids
    assert tokenizer.decode(ids) == streamed(tokenizer, ids) == "ab<tool call> c<|im_end|"
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


@pytest.mark.parametrize("pre", SPLITTERS)
@pytest.mark.parametrize("given_value", [None, True, False])
def test_the_begin_token_is_added_as_the_metadata_or_the_splitter_says(tmp_path, pre, given_value):
    values = stored(byte_level(pre))
    path = write(tmp_path / "m.gguf", pre=pre, add_bos_token=given_value, **values)
    adds = SPLITTERS[pre][2] if given_value is None else given_value
    tokenizer = Tokenizer.load(path)
    assert tokenizer.encode("") == ([0] if adds else [])
    assert tokenizer.encode("", add_special_tokens=False) == []


def test_a_begin_token_that_is_asked_for_must_exist(tmp_path):
    values = stored(byte_level("gpt-2")) | {"bos_token_id": None}
    path = write(tmp_path / "m.gguf", pre="gpt-2", add_bos_token=True, **values)
    assert error_of(path) == "tokenizer.ggml.bos_token_id: expected a token's id, got nothing"


def test_special_tokens_have_the_names_of_tokenizer_config(tmp_path):
    values = stored(byte_level("gpt-2")) | {
        "bos_token_id": 0,
        "eos_token_id": 1,
        "padding_token_id": 1,
        "eot_token_id": 2,
    }
    tokenizer = Tokenizer.load(write(tmp_path / "m.gguf", pre="gpt-2", **values))
    assert tokenizer.special_tokens == {
        "bos_token": "<|begin|>",
        "eos_token": "<|end|>",
        "pad_token": "<|end|>",
    }
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids) == (0, (1,))


def test_an_end_token_of_another_kind_is_special(tmp_path):
    values = stored(byte_level("gpt-2"))
    token_id = values["tokens"].index("<tool call>")
    path = write(tmp_path / "m.gguf", pre="gpt-2", eos_token_id=token_id, **values)
    tokenizer = Tokenizer.load(path)
    ids = tokenizer.encode("a<tool call>")
    assert ids[-1] == token_id
    assert tokenizer.decode(ids) == streamed(tokenizer, ids) == "a"


# --- SentencePiece ----------------------------------------------------------------------------


llama2 = cache(byte_fallback_bpe)


@cache
def pieces() -> dict[str, Any]:
    """Return what a GGUF file stores of a SentencePiece model with bytes."""
    model = json.loads(llama2().to_str())["model"]
    tokens = pieces_by_id(model["vocab"])
    ranks = {"".join(pair): -float(rank) for rank, pair in reversed([*enumerate(model["merges"])])}
    kinds = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * (len(tokens) - 259)]
    scores = [*[0.0] * 259, *(ranks.get(token, -1e4 - i) for i, token in enumerate(tokens[259:]))]
    return {
        "tokens": [*tokens, "<tool call>"],
        "token_type": [*kinds, USER_DEFINED],
        "scores": [*scores, 0.0],
        "unknown_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def sentence_piece(text: str) -> list[int]:
    """Merge the two neighbours whose piece has the highest score, the leftmost first, until no two
    are a piece; what is no piece becomes bytes."""
    ids = {token: i for i, token in enumerate(pieces()["tokens"])}
    scores = pieces()["scores"]
    symbols = list(text.replace(" ", "▁"))
    while True:
        pairs = [
            (-scores[ids[left + right]], at)
            for at, (left, right) in enumerate(pairwise(symbols))
            if left + right in ids
        ]
        if not pairs:
            break
        _, at = min(pairs)
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
    return [
        token
        for symbol in symbols
        for token in (
            [ids[symbol]] if symbol in ids else [ids[f"<0x{byte:02X}>"] for byte in symbol.encode()]
        )
    ]


@pytest.mark.parametrize("adds_space", [None, True, False])
def test_pieces_merge_in_the_order_of_their_scores(tmp_path, adds_space):
    path = write(tmp_path / "m.gguf", model="llama", add_space_prefix=adds_space, **pieces())
    tokenizer = Tokenizer.load(path)
    prefix = "" if adds_space is False else " "
    table = tokenizer.token_table(tokenizer.vocab_size)

    @settings(max_examples=150)
    @given(ANY_TEXT)
    def check(text):
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert ids == sentence_piece(prefix + text if text else "")
        stream = TextStream(table)
        streamed = "".join(stream.push(token) for token in ids) + stream.finish()
        # A space of SentencePiece is a space of the text.
        assert streamed == tokenizer.decode(ids) == text.replace("▁", " ")

    check()
    for text in TEXTS:
        check.hypothesis.inner_test(text)


def test_pieces_decode_as_those_of_tokenizer_json(tmp_path):
    reference = llama2()
    tokenizer = Tokenizer.load(write(tmp_path / "m.gguf", model="llama", **pieces()))
    for text in TEXTS:
        ids = tokenizer.encode(text)
        assert ids[0] == 1
        assert tokenizer.decode(ids) == reference.decode(ids)
    text = "the <tool call> a<s>"
    assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False).endswith("<s>")
    assert tokenizer.encode(text)[-1] == 1
    assert pieces()["tokens"].index("<tool call>") in tokenizer.encode(text)


@pytest.mark.parametrize(("given_value", "expected"), [(None, [1]), (True, [1]), (False, [])])
def test_pieces_begin_with_the_begin_token_unless_told_otherwise(tmp_path, given_value, expected):
    path = write(tmp_path / "m.gguf", model="llama", add_bos_token=given_value, **pieces())
    assert Tokenizer.load(path).encode("") == expected


def test_scores_may_be_integers(tmp_path):
    values = pieces() | {"scores": [int(score) for score in pieces()["scores"]]}
    tokenizer = Tokenizer.load(write(tmp_path / "m.gguf", model="llama", **values))
    assert tokenizer.encode(TEXT, add_special_tokens=False) == sentence_piece(" " + TEXT)


# --- chat templates ---------------------------------------------------------------------------

CHAT = Chat([ChatMessage("user", "Hello 🚡")])


def test_chat_templates_are_read_by_name(tmp_path):
    path = write(
        tmp_path / "m.gguf",
        pre="gpt-2",
        tokenizer__chat_template="{{ bos_token }}{{ messages[0].content }}",
        tokenizer__chat_template__tool_use="tools",
        tokenizer__chat_templates=["tool_use"],
        **stored(byte_level("gpt-2")),
    )
    tokenizer = Tokenizer.load(path)
    assert tokenizer.has_chat_template
    assert tokenizer.render_chat(CHAT) == "<|begin|>Hello 🚡"
    with_tools = Chat(CHAT.messages, template_arguments={"tools": [{"name": "lift"}]})
    assert tokenizer.render_chat(with_tools) == "tools"


def test_a_model_without_chat_template_has_none(tmp_path):
    path = write(tmp_path / "m.gguf", pre="gpt-2", **stored(byte_level("gpt-2")))
    assert not Tokenizer.load(path).has_chat_template


# --- metadata that is not what it should be ---------------------------------------------------

WRONG = [
    ("model", "bert", 'model: expected gpt2 or llama, got "bert"'),
    ("model", None, "model: expected gpt2 or llama, got nothing"),
    ("model", 3, "model: expected gpt2 or llama, got 3"),
    ("pre", None, "pre: expected "),
    ("pre", 3, "pre: expected "),
    ("tokens", None, "tokens: expected a list of tokens, got nothing"),
    ("tokens", [1, 2], "tokens: expected a list of tokens, got "),
    ("tokens", "a", 'tokens: expected a list of tokens, got "a"'),
    ("tokens", ["a", "b", "a"], "tokens: expected different tokens, got 'a' twice"),
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
        ("tokens", "twice", "tokens: expected different tokens, got '<s>' twice"),
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


def test_an_id_outside_the_vocabulary_names_no_token(tmp_path):
    """As in llama.cpp: files pad with an id that the model does not have."""
    path = write(
        tmp_path / "m.gguf", pre="gpt-2", padding_token_id=10**6, **stored(byte_level("gpt-2"))
    )
    assert "pad_token" not in Tokenizer.load(path).special_tokens
