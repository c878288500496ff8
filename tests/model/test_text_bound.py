"""No token stands for more bytes than the bound says, and where that may be there is none."""

import pytest
from chairlift.api.errors import ModelError
from chairlift.text.text_bound import longest_token_bytes
from chairlift.text.tokenizer import Tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from tests.tokenizer_families import FAMILIES, TEXTS, byte_fallback_bpe, byte_level_bpe, unigram

BOUNDED = {name: make() for name, make in FAMILIES.items() if "unigram" not in name}
PIECES = st.sampled_from([*TEXTS, " ", "  ", "\n", "a", "é", "缆", "🚡", "<tool call>", "<0x41>"])


@pytest.mark.parametrize("family", BOUNDED)
def test_a_text_has_no_fewer_tokens_than_the_bound_says(family):
    longest = longest_token_bytes(BOUNDED[family])
    assert longest is not None
    tokenizer = Tokenizer(BOUNDED[family])

    @settings(max_examples=200, deadline=None)
    @given(st.one_of(st.lists(PIECES, max_size=30).map("".join), st.text(max_size=200)))
    def check(text):
        try:
            num_bytes = len(text.encode())
        except UnicodeEncodeError:
            return
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert len(ids) * longest >= num_bytes

    check()


def replaced(old, new):
    backend = byte_level_bpe()
    backend.normalizer = normalizers.Sequence([normalizers.Replace(old, new)])
    return backend


def normalized(normalizer):
    backend = byte_level_bpe()
    backend.normalizer = normalizer
    return backend


def split(pre_tokenizer):
    backend = byte_level_bpe()
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizer, backend.pre_tokenizer])
    return backend


def added(**kind):
    backend = byte_level_bpe()
    backend.add_tokens([AddedToken("<greedy>", **kind)])
    return backend


def words(model):
    backend = Backend(model)
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return backend


UNBOUNDED = {
    "NFKC": normalized(normalizers.NFKC()),
    "lowercase": normalized(normalizers.Lowercase()),
    "strip": normalized(normalizers.Strip()),
    "a replacement that is shorter": replaced("缆", "a"),
    "a replacement of a pattern": replaced(Regex(" +"), " "),
    "a pre-tokenizer that drops spaces": split(pre_tokenizers.WhitespaceSplit()),
    "a split that drops": split(pre_tokenizers.Split(" ", "removed")),
    "a token that takes the space before it": added(lstrip=True),
    "a token that takes the space behind it": added(rstrip=True),
    "one unknown token for each word": words(models.WordLevel({"a": 0}, unk_token="a")),
    "one unknown token for many characters": words(
        models.BPE(vocab={"a": 0, "u": 1}, merges=[], unk_token="u", fuse_unk=True)
    ),
    "unknown characters that vanish": words(models.BPE(vocab={"a": 0}, merges=[])),
    "unigram": unigram(),
}


@pytest.mark.parametrize("kind", UNBOUNDED)
def test_there_is_no_bound_where_text_may_become_shorter(kind):
    assert longest_token_bytes(UNBOUNDED[kind]) is None


def test_the_bound_of_bytes_as_characters_is_the_longest_token():
    backend = byte_level_bpe()
    backend.add_tokens(["<a token of twenty-nine bytes>"])
    assert longest_token_bytes(backend) == 30


def test_an_unknown_character_counts_as_its_bytes():
    backend = Backend(models.BPE(vocab={"a": 0, "u": 1}, merges=[], unk_token="u"))
    assert longest_token_bytes(backend) == 4
    backend.normalizer = normalizers.Replace(" ", "▁")
    assert longest_token_bytes(backend) == 4
    assert longest_token_bytes(byte_fallback_bpe()) is not None


@pytest.mark.parametrize(
    "steps",
    [
        [decoders.Replace("e", "x" * 2**20)],
        [decoders.WordPiece(), decoders.Replace("e", "eee")] + [decoders.Replace("e", "eee")] * 3,
        [decoders.Replace(Regex("."), "x" * 100)],
        [decoders.Replace("", "x" * 100)],
    ],
)
def test_a_decoder_that_multiplies_texts_is_refused_without_generation_too(steps):
    backend = unigram()
    backend.decoder = decoders.Sequence(steps)
    with pytest.raises(ModelError, match="the replacements of the decoder make texts"):
        Tokenizer(backend, generates=False)


def test_any_decoder_that_keeps_lengths_will_do_without_generation():
    backend = unigram()
    steps = [decoders.WordPiece(), decoders.CTC(), decoders.Metaspace(), decoders.Replace("e", "é")]
    backend.decoder = decoders.Sequence(steps)
    Tokenizer(backend, generates=False)
