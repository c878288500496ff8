"""Loading a tokenizer, what it encodes, and what it refuses."""

import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from chairlift._core import TextStream
from chairlift.api.errors import ModelError, Reason, RequestError
from chairlift.api.types import Chat, ChatMessage
from chairlift.text import token_table
from chairlift.text.tokenizer import Tokenizer
from tokenizers import Regex, decoders, models, normalizers
from tokenizers import Tokenizer as Backend
from transformers import PreTrainedTokenizerFast

from tests.tokenizer_families import FAMILIES, TEXTS, byte_fallback_bpe, byte_level_bpe, unigram

CHATML = (
    "{{ bos_token }}{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CHAT = Chat([ChatMessage("user", "Hello 🚡")])


def write(folder: Path, backend: Backend | None = None, **config) -> Path:
    """Make a model folder: `tokenizer.json`, and `tokenizer_config.json` where there is any."""
    (backend or byte_level_bpe()).save(str(folder / "tokenizer.json"))
    if config:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def load_error(folder: Path) -> str:
    with pytest.raises(ModelError) as caught:
        Tokenizer.load(folder)
    message = str(caught.value)
    assert "\n" not in message
    return message.replace(f"{folder}{os.sep}", "")


@pytest.mark.parametrize("family", FAMILIES)
def test_ids_and_texts_equal_transformers(tmp_path, family):
    write(tmp_path, FAMILIES[family]())
    tokenizer = Tokenizer.load(tmp_path)
    reference = PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    for text in TEXTS:
        for special in (True, False):
            ids = tokenizer.encode(text, add_special_tokens=special)
            assert ids == reference.encode(text, add_special_tokens=special)
            assert tokenizer.num_tokens(text, add_special_tokens=special) == len(ids)
            assert tokenizer.decode(ids, skip_special_tokens=special) == reference.decode(
                ids, skip_special_tokens=special, clean_up_tokenization_spaces=False
            )


def test_byte_level_text_survives_a_round_trip():
    tokenizer = Tokenizer(byte_level_bpe())
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_special_tokens_come_from_the_configuration(tmp_path):
    end = {"content": "<|end|>", "special": True}
    write(tmp_path, bos_token="<|begin|>", eos_token=end, pad_token=None, add_bos_token=False)
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.special_tokens == {"bos_token": "<|begin|>", "eos_token": "<|end|>"}
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids) == (0, (1,))


def test_older_files_keep_special_tokens_apart(tmp_path):
    write(tmp_path, eos_token="<|im_end|>")
    older = {"bos_token": "<|begin|>", "eos_token": "<|end|>"}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(older))
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.special_tokens == older


def test_a_folder_without_configuration_loads(tmp_path):
    tokenizer = Tokenizer.load(write(tmp_path))
    assert (tokenizer.special_tokens, tokenizer.bos_token_id) == ({}, None)
    assert tokenizer.eos_token_ids == ()


def test_a_special_token_that_is_no_token_has_no_id(tmp_path):
    tokenizer = Tokenizer.load(write(tmp_path, eos_token="<nowhere>", bos_token="<nothing>"))
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids) == (None, ())
    assert tokenizer.vocab_size == Tokenizer(byte_level_bpe()).vocab_size


def test_an_end_token_that_the_file_does_not_mark_as_special_is_skipped(tmp_path):
    tokenizer = Tokenizer.load(write(tmp_path, eos_token="<tool call>"))
    ids = tokenizer.encode("a<tool call>")
    assert tokenizer.decode(ids) == "a"
    text = TextStream(tokenizer.token_table(300))
    assert "".join(text.push(token) for token in ids) == "a"


@pytest.mark.parametrize(("add_bos_token", "expected"), [(True, [0]), (False, []), (None, [])])
def test_the_first_token_is_added_where_the_configuration_says_so(
    tmp_path, add_bos_token, expected
):
    write(tmp_path, bos_token="<|begin|>", add_bos_token=add_bos_token)
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.encode("") == expected
    assert tokenizer.encode("", add_special_tokens=False) == []


def test_the_first_token_is_not_added_twice(tmp_path):
    write(tmp_path, byte_fallback_bpe(), bos_token="<s>", add_bos_token=True)
    assert Tokenizer.load(tmp_path).encode("") == [1]


def test_limits_of_a_training_set_do_not_cut_or_pad(tmp_path):
    backend = byte_level_bpe()
    backend.enable_truncation(4)
    backend.enable_padding(length=4)
    tokenizer = Tokenizer.load(write(tmp_path, backend))
    assert tokenizer.num_tokens(TEXTS[0]) == Tokenizer(byte_level_bpe()).num_tokens(TEXTS[0]) > 4
    assert tokenizer.num_tokens("a") == 1


def test_vocab_size_is_above_every_id_where_ids_have_gaps():
    backend = Backend(models.WordLevel({"a": 0, "b": 7}, unk_token="a"))
    backend.decoder = decoders.Fuse()
    tokenizer = Tokenizer(backend)
    assert tokenizer.vocab_size == 8
    text = TextStream(tokenizer.token_table(8))
    assert "".join(text.push(token) for token in range(8)) == "ab"


def test_a_table_narrower_than_the_vocabulary_holds_what_the_model_can_draw():
    tokenizer = Tokenizer(byte_level_bpe())
    ids = tokenizer.encode("a<|im_end|>")
    text = TextStream(tokenizer.token_table(ids[0] + 1), skip_special_tokens=False)
    assert "".join(text.push(token) for token in ids) == "a"


def test_a_lone_surrogate_is_refused():
    with pytest.raises(RequestError) as caught:
        Tokenizer(byte_level_bpe()).encode("a\ud800")
    assert caught.value.reason is Reason.BAD_PARAMETER
    assert (caught.value.field, caught.value.message) == ("prompt", "text is not valid Unicode")


@pytest.mark.parametrize("family", FAMILIES)
def test_other_threads_run_while_a_long_text_is_encoded_and_decoded(family):
    tokenizer = Tokenizer(FAMILIES[family]())
    text = TEXTS[0] * 3_000
    ids = tokenizer.encode(text)
    for work in (lambda: tokenizer.encode(text), lambda: tokenizer.decode(ids * 2)):
        ended, num_turns = threading.Event(), [0]

        def take_turns(ended=ended, num_turns=num_turns):
            while not ended.wait(1e-4):
                num_turns[0] += 1

        thread = threading.Thread(target=take_turns)
        thread.start()
        while not num_turns[0]:
            pass
        before = num_turns[0]
        work()
        during = num_turns[0] - before
        ended.set()
        thread.join()
        # With the lock held it is one or two, at the ends.
        assert during > 10


def test_threads_share_a_tokenizer():
    tokenizer = Tokenizer(byte_level_bpe(), chat_templates={"default": CHATML})

    def work(_: int) -> list[object]:
        encoded = [tokenizer.encode(text) for text in TEXTS]
        return [encoded, [tokenizer.decode(ids) for ids in encoded], tokenizer.render_chat(CHAT)]

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(work, range(64)))
    assert all(result == work(0) for result in results)


# --- chat -----------------------------------------------------------------------------------


def test_a_chat_is_encoded_with_the_special_tokens_that_its_template_writes(tmp_path):
    write(tmp_path, chat_template=CHATML, bos_token="<|begin|>", add_bos_token=True)
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.has_chat_template
    ids = tokenizer.encode(tokenizer.render_chat(CHAT), add_special_tokens=False)
    expected = "<|begin|><|im_start|>user\nHello 🚡<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.render_chat(CHAT) == expected
    assert tokenizer.decode(ids, skip_special_tokens=False) == expected
    assert ids.count(0) == 1


def test_a_chat_without_generation_prompt_ends_with_its_last_turn(tmp_path):
    tokenizer = Tokenizer.load(write(tmp_path, chat_template=CHATML))
    chat = Chat([ChatMessage("user", "a")], add_generation_prompt=False)
    assert tokenizer.render_chat(chat) == "<|im_start|>user\na<|im_end|>\n"


def test_templates_see_names_and_arguments(tmp_path):
    template = "{{ messages[0].name }}{{ 'name' in messages[1] }}{{ mode }}"
    tokenizer = Tokenizer.load(write(tmp_path, chat_template=template))
    messages = [ChatMessage("user", "a", name="Ada"), ChatMessage("user", "b")]
    chat = Chat(messages, template_arguments={"mode": "brief"})
    assert tokenizer.render_chat(chat) == "AdaFalsebrief"


def test_of_named_templates_tools_choose_theirs(tmp_path):
    templates = [
        {"name": "default", "template": "plain"},
        {"name": "tool_use", "template": "tools"},
    ]
    tokenizer = Tokenizer.load(write(tmp_path, chat_template=templates))
    assert tokenizer.render_chat(CHAT) == "plain"
    with_tools = Chat(CHAT.messages, template_arguments={"tools": [{"name": "lift"}]})
    assert tokenizer.render_chat(with_tools) == "tools"


@pytest.mark.parametrize("is_list", [True, False])
def test_named_templates_are_a_list_or_an_object(tmp_path, is_list):
    named = {"default": "plain", "tool_use": "tools", "rag": "documents"}
    listed = [{"name": name, "template": template} for name, template in named.items()]
    tokenizer = Tokenizer.load(write(tmp_path, chat_template=listed if is_list else named))
    assert tokenizer.render_chat(CHAT) == "plain"
    assert tokenizer.render_chat(Chat(CHAT.messages, template_arguments={"tools": [1]})) == "tools"


def test_a_checkpoint_with_images_has_its_template_in_a_file_of_its_own(tmp_path):
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "plain"}))
    assert Tokenizer.load(write(tmp_path)).render_chat(CHAT) == "plain"
    tokenizer = Tokenizer.load(write(tmp_path, chat_template="nearer"))
    assert tokenizer.render_chat(CHAT) == "nearer"


def test_template_files_go_before_the_configuration(tmp_path):
    write(tmp_path, chat_template="old")
    (tmp_path / "chat_template.jinja").write_text("new", encoding="utf-8")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.render_chat(CHAT) == "new"
    with_tools = Chat(CHAT.messages, template_arguments={"tools": [{"name": "lift"}]})
    assert tokenizer.render_chat(with_tools) == "tools"


def test_a_chat_for_a_model_without_template_is_refused(tmp_path):
    tokenizer = Tokenizer.load(write(tmp_path))
    assert not tokenizer.has_chat_template
    with pytest.raises(RequestError) as caught:
        tokenizer.render_chat(CHAT)
    assert (caught.value.reason, caught.value.field) == (Reason.BAD_PARAMETER, "chat")
    assert caught.value.message == "the model has no chat template: send text or token ids"


@pytest.mark.parametrize(
    "name",
    ["messages", "add_generation_prompt", "bos_token", "eos_token", "pad_token", "tool_token"],
)
def test_arguments_replace_neither_the_conversation_nor_special_tokens(tmp_path, name):
    write(tmp_path, chat_template=CHATML, tool_token="<tool call>")
    chat = Chat(CHAT.messages, template_arguments={name: "a" * 1000})
    with pytest.raises(RequestError) as caught:
        Tokenizer.load(tmp_path).render_chat(chat)
    error = caught.value
    assert (error.reason, error.field) == (Reason.BAD_PARAMETER, "chat.template_arguments")
    assert error.message == f"chat.template_arguments: the name '{name}' is reserved"


# --- files that are not what they should be ---------------------------------------------------


def test_a_missing_tokenizer_is_an_error(tmp_path):
    assert load_error(tmp_path) == "tokenizer.json: no such file or directory"


@pytest.mark.parametrize("data", [b"", b"{", b"{}", b"[1]", b"\xff\xfe", b'{"model": {"type": 1}}'])
def test_a_corrupt_tokenizer_is_an_error(tmp_path, data):
    (tmp_path / "tokenizer.json").write_bytes(data)
    assert load_error(tmp_path).startswith("tokenizer.json: not a tokenizer: ")


def test_a_truncated_tokenizer_is_an_error(tmp_path):
    path = write(tmp_path) / "tokenizer.json"
    path.write_bytes(path.read_bytes()[:-100])
    assert load_error(tmp_path).startswith("tokenizer.json: not a tokenizer: ")


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff"])
def test_a_corrupt_configuration_is_an_error(tmp_path, data):
    (write(tmp_path) / "tokenizer_config.json").write_bytes(data)
    assert load_error(tmp_path).startswith("tokenizer_config.json: ")


@pytest.mark.parametrize("template", [3, {"default": 1}, ["a"], [{"name": "default"}]])
def test_a_chat_template_of_another_type_is_an_error(tmp_path, template):
    expected = "chat_template: expected a string or a list of named templates"
    message = load_error(write(tmp_path, chat_template=template))
    assert message == f"tokenizer_config.json: {expected}"


def test_a_chat_template_that_is_no_text_is_an_error(tmp_path):
    (write(tmp_path) / "chat_template.jinja").write_bytes(b"\xff")
    assert load_error(tmp_path).startswith("chat_template.jinja: not a chat template: ")


@pytest.mark.parametrize(
    ("decoder", "message"),
    [
        (None, "the tokenizer has no decoder"),
        (decoders.WordPiece(), "decoder WordPiece is not supported"),
        (decoders.BPEDecoder(), "decoder BPEDecoder is not supported"),
        (decoders.CTC(), "decoder CTC is not supported"),
        (decoders.Sequence([]), "decoder  is not supported"),
        (
            decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()]),
            "decoder ByteFallback, Metaspace is not supported",
        ),
        (
            decoders.Sequence([decoders.ByteFallback(), decoders.Strip(" ", 1, 0)]),
            "decoder ByteFallback, Strip is not supported",
        ),
        (
            decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 2, 0)]),
            "decoder {'type': 'Strip', 'content': ' ', 'start': 2, 'stop': 0} is not supported",
        ),
    ],
)
def test_a_decoder_that_a_table_cannot_hold_is_an_error(tmp_path, decoder, message):
    backend = unigram()
    if decoder is None:
        data = json.loads(backend.to_str())
        backend = Backend.from_str(json.dumps({**data, "decoder": None}))
    else:
        backend.decoder = decoder
    assert load_error(write(tmp_path, backend)).startswith(f"tokenizer.json: {message}")


def growing(*steps):
    backend = unigram()
    backend.decoder = decoders.Sequence([*steps, decoders.Fuse()])
    return backend


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([decoders.Replace("e", "x" * 2**20)], "a token has"),
        # Each step alone is harmless.
        ([decoders.Replace("e", "ee" * 2)] * 12, "a token has"),
        # Nothing stands between any two characters.
        ([decoders.Replace("", "x" * 2000)], "a token has"),
    ],
)
def test_a_decoder_that_makes_tokens_too_long_is_refused_before_it_does(tmp_path, steps, message):
    tokenizer = Tokenizer.load(write(tmp_path, growing(*steps)))
    with pytest.raises(ModelError, match=f"tokenizer.json: the decoder replaces so that {message}"):
        tokenizer.token_table(300)


def test_the_tokens_of_a_table_are_bounded_together(tmp_path, monkeypatch):
    monkeypatch.setattr(token_table, "MAX_TABLE_CHARACTERS", 20)
    tokenizer = Tokenizer.load(write(tmp_path, growing(decoders.Replace("e", "eeee"))))
    with pytest.raises(ModelError, match="so that all tokens have"):
        tokenizer.token_table(300)


def test_a_decoder_has_a_bounded_number_of_steps(tmp_path):
    message = load_error(write(tmp_path, growing(*[decoders.Replace("a", "b")] * 17)))
    assert message == "tokenizer.json: the decoder has 17 steps, expected at most 16"


@pytest.mark.parametrize(
    "steps",
    [
        [normalizers.Replace("e", "x" * 100)],
        [normalizers.Replace("e", "eee")] * 4,
        [normalizers.Replace(Regex("."), "x" * 100)],
        [normalizers.Prepend("x" * 2**20)],
    ],
)
def test_a_normalizer_that_multiplies_texts_is_refused(tmp_path, steps):
    backend = unigram()
    backend.normalizer = normalizers.Sequence(steps)
    assert load_error(write(tmp_path, backend)).startswith("tokenizer.json: the replacements of")
