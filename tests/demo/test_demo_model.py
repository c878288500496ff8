"""The model that ships with the package, and the text it learns from."""

import itertools
import json
import random
import re
import subprocess
import sys
from typing import Any

import pytest
from chairlift.demo import MODEL_DIR
from tokenizers import Tokenizer

from tools.train_demo.conversations import make_conversation
from tools.train_demo.stories import make_story
from tools.train_demo.text import END_OF_TURN, SPECIAL_TOKENS, documents, render

MAX_BYTES = 8 * 1024 * 1024
QUESTIONS = {
    "Hello!": 40,
    "What is the colour of the sky?": 40,
    "What is the capital of France?": 40,
    "Count from 3 to 9.": 60,
    "Write a JSON object with a name and an age.": 60,
    "Tell me a story about a dragon.": 320,
}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(MODEL_DIR / "tokenizer.json"))


@pytest.fixture(scope="module")
def model() -> Any:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(MODEL_DIR, dtype=torch.float32)
    return loaded.eval()


@pytest.fixture(scope="module")
def hf_tokenizer() -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.AutoTokenizer.from_pretrained(MODEL_DIR)


def ask(model: Any, tokenizer: Any, question: str, max_new_tokens: int) -> list[int]:
    inputs = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    output = model.generate(**inputs, max_new_tokens=max_new_tokens, do_sample=False)
    return output[0, inputs["input_ids"].shape[1] :].tolist()


def test_importing_the_package_loads_nothing_heavy():
    code = (
        "import sys, chairlift.demo;"
        "print([m for m in ('torch', 'transformers', 'tokenizers') if m in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def test_the_model_folder_is_small():
    sizes = [path.stat().st_size for path in MODEL_DIR.iterdir()]
    assert max(sizes) <= MAX_BYTES
    assert sum(sizes) <= MAX_BYTES


@pytest.mark.parametrize(
    "text",
    [
        "Once upon a time",
        "  two  spaces \n\n\ttab, and a trailing space ",
        "naïve café — 日本語 Привет",
        "👩‍👩‍👧 ❤️ \u0000 \ufffd \U0010fffd",
        '12345 x=y+1; {"a": [1, 2]}',
    ],
)
def test_any_text_survives_the_tokenizer(tokenizer: Tokenizer, text: str):
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_random_text_survives_the_tokenizer(tokenizer: Tokenizer):
    rng = random.Random(0)
    alphabet = [c for c in map(chr, range(0x3000)) if c.isprintable()] + list("🚀🌈\n\t")
    for _ in range(200):
        text = "".join(rng.choices(alphabet, k=40))
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_special_tokens_are_single_tokens(tokenizer: Tokenizer):
    assert [tokenizer.encode(token).ids for token in SPECIAL_TOKENS] == [[0], [1], [2], [3], [4]]


def test_the_config_matches_the_tokenizer(tokenizer: Tokenizer):
    config = json.loads((MODEL_DIR / "config.json").read_text(encoding="utf-8"))
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["vocab_size"] == tokenizer.get_vocab_size()
    assert config["num_key_value_heads"] < config["num_attention_heads"]
    generation = json.loads((MODEL_DIR / "generation_config.json").read_text(encoding="utf-8"))
    assert tokenizer.token_to_id(END_OF_TURN) in generation["eos_token_id"]


def test_the_same_seed_gives_the_same_text():
    first = list(itertools.islice(documents(7), 200))
    assert first == list(itertools.islice(documents(7), 200))
    assert first != list(itertools.islice(documents(8), 200))


def test_the_text_leaves_no_template_marks():
    for text in itertools.islice(documents(1), 500):
        assert "{N}" not in text
        assert "|" not in text.replace("<|", "").replace("|>", "")
        assert not re.search(r"\S  ", text)


def test_stories_do_not_repeat():
    rng = random.Random(0)
    stories = [make_story(rng).text for _ in range(500)]
    assert len(set(stories)) == len(stories)


def test_the_chat_template_writes_what_the_model_was_trained_on(hf_tokenizer: Any):
    rng = random.Random(0)
    for _ in range(50):
        messages = make_conversation(rng)
        written = hf_tokenizer.apply_chat_template(messages, tokenize=False)
        assert written == render(messages)


def test_the_chat_template_refuses_an_unknown_role(hf_tokenizer: Any):
    with pytest.raises(Exception, match="expected role"):
        hf_tokenizer.apply_chat_template([{"role": "tool", "content": "x"}], tokenize=False)


@pytest.mark.parametrize(("question", "max_tokens"), QUESTIONS.items())
def test_an_answer_ends(model: Any, hf_tokenizer: Any, question: str, max_tokens: int):
    answer = ask(model, hf_tokenizer, question, max_tokens)
    assert answer[-1] == hf_tokenizer.convert_tokens_to_ids(END_OF_TURN)
    assert len(answer) > 1


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("What is the colour of the sky?", "blue"),
        pytest.param(
            "What is the capital of France?",
            "Paris",
            marks=pytest.mark.xfail(reason="the model is wrong here", strict=True),
        ),
        ("Count from 3 to 9.", "3, 4, 5, 6, 7, 8, 9"),
        pytest.param(
            "What is the opposite of hot?",
            "cold",
            marks=pytest.mark.xfail(reason="the model is wrong here", strict=True),
        ),
    ],
)
def test_simple_questions_are_answered(model: Any, hf_tokenizer: Any, question: str, expected: str):
    assert expected in hf_tokenizer.decode(ask(model, hf_tokenizer, question, 60))


def test_json_answers_are_json(model: Any, hf_tokenizer: Any):
    answer = ask(model, hf_tokenizer, "Write a JSON object with a name and an age.", 60)
    text = hf_tokenizer.decode(answer, skip_special_tokens=True)
    assert set(json.loads(text)) == {"name", "age"}


def test_a_story_is_much_longer_than_an_answer(model: Any, hf_tokenizer: Any):
    story = ask(model, hf_tokenizer, "Tell me a story about a dragon.", 320)
    answer = ask(model, hf_tokenizer, "What is 2 + 2? Answer in one word.", 40)
    assert len(story) > 60
    assert len(answer) < 6
