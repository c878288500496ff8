"""The incremental decoder against `tokenizers`, and stop strings, through the bindings."""

import random

import pytest
import tokenizers
from chairlift._core import TextStream, TokenTable
from chairlift.text.tokenizer import Tokenizer

from tests.tokenizer_families import FAMILIES, TEXTS, byte_fallback_bpe, byte_level_bpe

LONG = pytest.param(100_000, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])


@pytest.fixture(scope="module", params=FAMILIES)
def backend(request) -> tokenizers.Tokenizer:
    return FAMILIES[request.param]()


@pytest.fixture(scope="module")
def tokenizer(backend) -> Tokenizer:
    return Tokenizer(backend)


@pytest.fixture(scope="module")
def table(tokenizer) -> TokenTable:
    # Logits are wider than the vocabulary in many models.
    return tokenizer.token_table(tokenizer.vocab_size + 8)


def stream(table: TokenTable, ids: list[int], **options) -> tuple[str, str | None]:
    text = TextStream(table, **options)
    return "".join(text.push(token) for token in ids) + text.finish(), text.stopped


def random_ids(rng: random.Random, tokenizer: Tokenizer) -> list[int]:
    """Any ids in half of the cases, else pieces of real texts: their bytes form characters."""
    ids: list[int] = []
    while len(ids) < 3 or rng.random() < 0.8:
        if rng.random() < 0.5:
            ids += [rng.randrange(tokenizer.vocab_size + 8) for _ in range(rng.randrange(6))]
        else:
            text = tokenizer.encode(rng.choice(TEXTS))
            start = rng.randrange(len(text) + 1)
            ids += text[start : start + rng.randrange(12)]
    return ids


@pytest.mark.parametrize("skip_special_tokens", [True, False])
@pytest.mark.parametrize("num_sequences", [3000, LONG])
def test_deltas_of_random_tokens_concatenate_to_the_decode(
    tokenizer, table, num_sequences, skip_special_tokens
):
    rng = random.Random(num_sequences)
    for _ in range(num_sequences):
        ids = random_ids(rng, tokenizer)
        expected = tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)
        assert stream(table, ids, skip_special_tokens=skip_special_tokens) == (expected, None), ids


def test_every_id_decodes_alone_and_after_another(tokenizer, table):
    for token in range(tokenizer.vocab_size + 8):
        for ids in ([token], [token, token], [tokenizer.vocab_size - 1, token]):
            expected = tokenizer.decode(ids, skip_special_tokens=False)
            assert stream(table, ids, skip_special_tokens=False)[0] == expected, ids


def test_deltas_of_real_texts_concatenate_to_the_decode(tokenizer, table):
    for text in TEXTS:
        ids = tokenizer.encode(text)
        assert stream(table, ids)[0] == tokenizer.decode(ids)


@pytest.mark.parametrize("num_sequences", [1000, LONG])
def test_a_stop_string_cuts_where_find_does(tokenizer, table, num_sequences):
    rng = random.Random(num_sequences)
    num_stopped = 0
    for _ in range(num_sequences):
        ids = random_ids(rng, tokenizer)
        text = tokenizer.decode(ids)
        start = rng.randrange(len(text) + 1)
        stop = text[start : start + rng.randrange(1, 8)] if rng.random() < 0.8 else "never there"
        at = text.find(stop) if stop else -1
        expected = (text, None) if at < 0 else (text[:at], stop)
        assert stream(table, ids, stop=[stop]) == expected, (ids, stop)
        if at >= 0:
            kept = (text[: at + len(stop)], stop)
            assert stream(table, ids, stop=[stop], include_stop=True) == kept
            num_stopped += 1
    assert num_stopped > num_sequences / 2


def test_a_stop_string_is_found_at_every_split(tokenizer, table):
    """Every short piece of a text, however the tokens split it."""
    ids = tokenizer.encode(TEXTS[5])
    text = tokenizer.decode(ids)
    for start in range(len(text)):
        for end in range(start + 1, min(start + 8, len(text)) + 1):
            stop = text[start:end]
            assert stream(table, ids, stop=[stop]) == (text[: text.find(stop)], stop)


def test_a_character_of_several_tokens_comes_with_the_last():
    tokenizer = Tokenizer(byte_level_bpe())
    ids = tokenizer.encode("👩")
    assert len(ids) > 1
    text = TextStream(tokenizer.token_table(tokenizer.vocab_size))
    assert [text.push(token) for token in ids] == [""] * (len(ids) - 1) + ["👩"]
    assert text.finish() == ""


def test_a_byte_run_comes_with_the_token_that_ends_it():
    tokenizer = Tokenizer(byte_fallback_bpe())
    ids = tokenizer.encode("a\x00a", add_special_tokens=False)
    text = TextStream(tokenizer.token_table(tokenizer.vocab_size))
    assert [text.push(token) for token in ids] == ["a", "", "\x00a"]


def test_nothing_follows_a_stop_string():
    text = TextStream(TokenTable([b"a stop", b"b"], []), stop=["x", "stop"])
    assert text.push(0) == "a "
    assert text.stopped == "stop"
    assert text.push(1) == ""
    assert text.finish() == ""


def test_a_token_outside_the_table_contributes_nothing():
    assert stream(TokenTable([b"a"], []), [0, 1, -1, 0]) == ("aa", None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"special": [2]}, "special: id 2 is outside the vocabulary of 2"),
        ({"byte_fallback": [5]}, "byte_fallback: id 5 is outside the vocabulary of 2"),
        ({"byte_fallback": [1]}, "byte_fallback: id 1 must have one byte, got 2"),
        ({"first_tokens": [b"a"]}, "first_tokens must have 2 entries like tokens, got 1"),
    ],
)
def test_a_table_of_other_shape_is_refused(arguments, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        TokenTable([b"a", b"bc"], **{"special": [], **arguments})
