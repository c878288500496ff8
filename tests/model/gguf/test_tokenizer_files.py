"""The files that a tokenizer of a GGUF file is given away as."""

import json

import pytest
from chairlift.text.tokenizer import Tokenizer

from tests.model.gguf.vocabularies import byte_level, stored
from tests.model.gguf.written import TEXTS, write


@pytest.mark.parametrize("pre", ["qwen2", "llama-bpe", "smollm"])
@pytest.mark.parametrize("adds_bos", [True, False])
def test_another_program_builds_a_tokenizer_with_the_same_ids(tmp_path, pre, adds_bos):
    values = stored(byte_level(pre))
    path = write(tmp_path / "m.gguf", pre=pre, add_bos_token=adds_bos, **values)
    own = Tokenizer.load(path)
    folder = tmp_path / "files"
    folder.mkdir()
    for name, text in own.files().items():
        (folder / name).write_text(text, encoding="utf-8")
    # As another program reads them: the file alone, without what ours adds by its configuration.
    config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert config["add_bos_token"] is adds_bos
    (folder / "tokenizer_config.json").unlink()
    theirs = Tokenizer.load(folder)
    for text in TEXTS:
        for special in (True, False):
            assert theirs.encode(text, special) == own.encode(text, special)


def test_a_chat_template_travels_along(tmp_path):
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    values = stored(byte_level("qwen2"))
    path = write(tmp_path / "m.gguf", pre="qwen2", tokenizer__chat_template=template, **values)
    files = Tokenizer.load(path).files()
    assert json.loads(files["tokenizer_config.json"])["chat_template"] == template
