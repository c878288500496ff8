"""A tokenizer from a GGUF file against the tokenizer.json of the same model."""

import json
from itertools import pairwise

import pytest
import tokenizers
from chairlift._core import TextStream
from chairlift.api.errors import ModelError
from chairlift.api.types import Chat, ChatMessage
from chairlift.text.tokenizer import Tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import normalizers

from tests.model.gguf.vocabularies import KINDS, SPLITTERS, byte_level, llama2, pieces, stored
from tests.model.gguf.written import TEXT, TEXTS, write

ANY_TEXT = st.one_of(
    st.lists(
        st.sampled_from(["a", "B", " ", "  ", "\n", "\r\n", "\t", "'", "s", "'LL", "1", "23", ".."])
        | st.sampled_from(sorted(set(TEXT))),
        max_size=40,
    ).map("".join),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=60),
)


def streamed(tokenizer: Tokenizer, ids: list[int]) -> str:
    text = TextStream(tokenizer.token_table(tokenizer.vocab_size))
    return "".join(text.push(token) for token in ids) + text.finish()


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


def test_stored_merges_are_those_of_gemma4(tmp_path):
    file = json.loads(llama2().to_str()) | {"added_tokens": []}
    reference = tokenizers.Tokenizer.from_str(json.dumps(file))
    reference.normalizer = normalizers.Replace(" ", "▁")
    merges = file["model"]["merges"]
    values = pieces() | {"scores": None, "merges": [" ".join(pair) for pair in merges]}
    tokenizer = Tokenizer.load(write(tmp_path / "m.gguf", model="gemma4", **values))
    for text in TEXTS:
        ids = reference.encode(text, add_special_tokens=False).ids
        assert tokenizer.encode(text) == [1, *ids]
        assert tokenizer.decode(ids) == text.replace("▁", " ")
    wrong = values | {"merges": ["ab"]}
    with pytest.raises(ModelError, match="merges: expected two tokens"):
        Tokenizer.load(write(tmp_path / "m.gguf", model="gemma4", **wrong))


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


def test_an_id_outside_the_vocabulary_names_no_token(tmp_path):
    """As in llama.cpp: files pad with an id that the model does not have."""
    path = write(
        tmp_path / "m.gguf", pre="gpt-2", padding_token_id=10**6, **stored(byte_level("gpt-2"))
    )
    assert "pad_token" not in Tokenizer.load(path).special_tokens


@pytest.mark.parametrize("adds_bos", [True, False])
def test_an_end_token_follows_each_text_where_the_metadata_says_so(tmp_path, adds_bos):
    values = stored(byte_level("qwen2"))
    ends = {"add_bos_token": adds_bos, "bos_token_id": 5, "add_eos_token": True, "eos_token_id": 7}
    tokenizer = Tokenizer.load(write(tmp_path / "m.gguf", pre="qwen2", **values | ends))
    inner = tokenizer.encode("a chair", add_special_tokens=False)
    expected = [*([5] if adds_bos else []), *inner, 7]
    assert tokenizer.encode("a chair") == expected
    ids, _ = tokenizer.encode_input("a chair", None, None, add_special_tokens=True)
    assert ids == expected
