"""Commands say which file of a model is missing before they answer."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from tests.cli.conftest import Run
from tests.engine import tiny_encoder
from tests.model.gguf.files import small_model, write_model

MISSING = "model-00002-of-00003.safetensors"
PLAN = ("plan", "--device", "cpu")
BENCH = ("bench", "kernels", "--rows", "1", "--repeat", "3")


def without_a_shard(folder: Path) -> Path:
    """Store the tensors of a model in three files, and take one away."""
    single = folder / "model.safetensors"
    tensors, weight_map = load_file(single), {}
    for number in range(3):
        shard = f"model-0000{number + 1}-of-00003.safetensors"
        own = list(tensors)[number::3]
        save_file({name: tensors[name] for name in own}, folder / shard)
        weight_map |= dict.fromkeys(own, shard)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    single.unlink()
    (folder / MISSING).unlink()
    return folder


@pytest.fixture
def decoder(tiny_folder: Path, tmp_path: Path) -> Path:
    folder = without_a_shard(shutil.copytree(tiny_folder, tmp_path / "decoder"))
    # The head of a tied model is not looked for: nothing reads a file to find it.
    config = json.loads((folder / "config.json").read_text()) | {"tie_word_embeddings": True}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    folder = tmp_path / "encoder"
    folder.mkdir()
    tiny_encoder.write(folder)
    return without_a_shard(folder)


@pytest.mark.parametrize(
    "command",
    [
        *(PLAN, (*PLAN, "--model-impl", "transformers"), BENCH, ("kernels", "list")),
    ],
)
def test_a_missing_shard_of_a_decoder_is_named(
    chairlift: Run, decoder: Path, command: tuple[str, ...]
) -> None:
    done = chairlift(*command, decoder)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"error: {decoder}/{MISSING}: no such file\n"


def test_a_missing_shard_of_a_draft_model_is_named(
    chairlift: Run, decoder: Path, tiny_folder: Path
) -> None:
    done = chairlift(*PLAN, tiny_folder, "--draft", decoder)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: --draft: {decoder}/{MISSING}: no such file\n"


def test_a_missing_shard_of_an_encoder_is_named(chairlift: Run, encoder: Path) -> None:
    done = chairlift(*PLAN, encoder)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"error: {encoder}/{MISSING}: no such file\n"


@pytest.mark.parametrize("command", [PLAN, BENCH, ("kernels", "list")])
def test_a_missing_part_of_a_gguf_file_is_named(
    chairlift: Run, tmp_path: Path, command: tuple[str, ...]
) -> None:
    first = write_model(tmp_path / "m.gguf", small_model("qwen3"), split=8)
    missing = min(path for path in tmp_path.glob("*.gguf") if path != first)
    missing.unlink()
    done = chairlift(*command, first)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"error: {missing}: no such file\n"


def test_the_list_of_models_says_which_file_is_missing(
    chairlift: Run, decoder: Path, encoder: Path
) -> None:
    done = chairlift("models", decoder.parent, "--json")
    rows = {row["path"]: row for row in map(json.loads, done.stdout.splitlines())}
    for folder in (decoder, encoder):
        row = rows[str(folder)]
        assert not row["supported"]
        assert row["reason"] == f"{MISSING}: no such file"


Edit = Callable[[bytes], bytes]


@pytest.mark.parametrize("edit", [lambda data: data[:-64], lambda data: data[:40], lambda _: b""])
def test_a_shard_that_is_cut_short_is_named(chairlift: Run, decoder: Path, edit: Edit) -> None:
    whole = decoder / "model-00001-of-00003.safetensors"
    shutil.copy(whole, decoder / MISSING)
    whole.write_bytes(edit(whole.read_bytes()))
    done = chairlift(*PLAN, decoder)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"error: {whole}: not a whole safetensors file")
