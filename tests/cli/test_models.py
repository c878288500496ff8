"""`chairlift models`: what is here, from headers alone, whatever else is in the way."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import huggingface_hub
import numpy as np
import pytest
from chairlift.api.errors import ModelError
from chairlift.checkpoints.files.folder import resolve_model

from tests.cli.conftest import Run
from tests.model.test_quantized_checkpoints import quantized

Row = dict[str, Any]
List = Callable[..., dict[str, Row]]


@pytest.fixture(autouse=True)
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty Hub cache, and no network."""
    folder = tmp_path / "hub"
    folder.mkdir()
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(folder))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    return folder


@pytest.fixture
def rows(chairlift: Run) -> List:
    """Return the rows of the JSON by name."""

    def run(*arguments: object) -> dict[str, Row]:
        done = chairlift("models", *arguments, "--json")
        assert (done.returncode, done.stderr) == (0, ""), done
        found = [json.loads(line) for line in done.stdout.splitlines()]
        named = {row["name"]: row for row in found}
        assert len(named) == len(found)
        for name, row in named.items():
            assert list(row) == [
                *("name", "path", "weight_bytes", "format", "family", "supported", "reason")
            ]
            assert row["supported"] == (not row["reason"])
            assert "\n" not in row["reason"]
            # A name is what the other commands take.
            assert resolve_model(name) == Path(row["path"])
        return named

    return run


def write_gguf(path: Path, kind: str = "llama") -> Path:
    """Write the header that a model needs, and an embedding in Q8_0 beside a norm in float32."""
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(path, kind)
    writer.add_uint32(f"{kind}.attention.head_count", 4)
    writer.add_uint32(f"{kind}.block_count", 1)
    writer.add_uint32(f"{kind}.embedding_length", 64)
    writer.add_uint32(f"{kind}.feed_forward_length", 64)
    writer.add_uint32(f"{kind}.context_length", 64)
    writer.add_float32(f"{kind}.attention.layer_norm_rms_epsilon", 1e-5)
    blocks = gguf.quantize(np.ones((32, 64), np.float32), gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("token_embd.weight", blocks, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("output_norm.weight", np.ones(64, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def snapshot_of(cache: Path, name: str, ref: str = "main") -> Path:
    """Make the folder of a repository in the cache."""
    repository = cache / f"models--{name.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / ref).write_text("0" * 40)
    snapshot = repository / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    return snapshot


def test_the_demo_is_here(rows: List) -> None:
    demo = rows()["demo"]
    weights = Path(demo["path"]) / "model.safetensors"
    assert 0.99 * weights.stat().st_size < demo["weight_bytes"] < weights.stat().st_size
    assert (demo["format"], demo["family"]) == ("bf16", "LlamaForCausalLM")
    assert demo["supported"] is True


def test_a_folder_is_listed_one_level_deep(rows: List, tiny_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "models"
    shutil.copytree(tiny_folder, folder / "tiny")
    shutil.copytree(tiny_folder, folder / "deeper" / "still" / "tiny")
    (folder / "empty").mkdir()
    (folder / "notes.txt").write_text("a")
    write_gguf(folder / "a.gguf")
    write_gguf(folder / "of-a-model" / "b.gguf")
    found = rows(folder)
    inside = {name for name in found if name.startswith(str(folder))}
    assert inside == {f"{folder}/{name}" for name in ("tiny", "a.gguf", "of-a-model/b.gguf")}
    tiny, a = found[f"{folder}/tiny"], found[f"{folder}/a.gguf"]
    assert (tiny["format"], tiny["supported"]) == ("f32", True)
    assert a["weight_bytes"] == 32 * 64 // 32 * 34 + 64 * 4
    assert (a["format"], a["family"], a["reason"]) == ("Q8_0", "LlamaForCausalLM", "")


def test_a_model_folder_lists_itself(rows: List, tiny_folder: Path) -> None:
    assert rows(tiny_folder)[str(tiny_folder)]["supported"] is True


def test_a_quantized_checkpoint_has_the_name_of_its_method(rows: List, tmp_path: Path) -> None:
    quantized(tmp_path / "m", "awq, group 32")
    row = rows(tmp_path / "m")[f"{tmp_path}/m"]
    assert (row["format"], row["reason"]) == ("awq", "")
    assert 0 < row["weight_bytes"] < (tmp_path / "m" / "model.safetensors").stat().st_size


def test_the_parts_of_a_gguf_model_are_one_row(rows: List, tmp_path: Path) -> None:
    for part in (1, 2):
        write_gguf(tmp_path / "m" / f"m-{part:05}-of-00002.gguf")
    found = rows(tmp_path / "m")
    (name,) = (name for name in found if "of-00002" in name)
    assert name.endswith("m-00001-of-00002.gguf")
    assert "also in" in found[name]["reason"]
    files = (tmp_path / "m").iterdir()
    assert found[name]["weight_bytes"] == sum(file.stat().st_size for file in files)


def test_relative_names_stay_relative(
    rows: List, tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(tiny_folder, tmp_path / "here" / "demo")
    write_gguf(tmp_path / "here" / "m.gguf")
    monkeypatch.chdir(tmp_path / "here")
    found = rows(".")
    assert found["m.gguf"]["supported"]
    assert found["./demo"]["path"] == "demo"
    assert found["demo"]["path"] != "demo"


def test_models_of_the_hub_cache_have_the_names_of_the_hub(
    rows: List, hub_cache: Path, tiny_folder: Path
) -> None:
    shutil.copytree(tiny_folder, snapshot_of(hub_cache, "owner/whole"), dirs_exist_ok=True)
    files = snapshot_of(hub_cache, "owner/files")
    for name in ("m-Q4_K_M.gguf", "m.Q8_0.gguf", "other.Q8_0.gguf", "BF16/m-BF16.gguf"):
        write_gguf(files / name)
    shutil.copytree(tiny_folder, snapshot_of(hub_cache, "a/old", "pr-1"), dirs_exist_ok=True)
    snapshot_of(hub_cache, "owner/nothing")
    (hub_cache / "models--not--whole").mkdir()
    (hub_cache / "datasets--owner--data" / "snapshots").mkdir(parents=True)
    found = rows()
    assert {name for name in found if "/" in name} == {
        "owner/whole",
        "owner/files:BF16",
        "owner/files:Q4_K_M",
        "owner/files:m.Q8_0",
        "owner/files:other.Q8_0",
    }
    assert all(row["supported"] for row in found.values())


def test_without_a_hub_cache_the_others_are_listed(rows: List, hub_cache: Path) -> None:
    hub_cache.rmdir()
    assert "demo" in rows()
    hub_cache.write_text("a file")
    assert "demo" in rows()


def edited(source: Path, folder: Path, **values: Any) -> Path:
    shutil.copytree(source, folder)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
    return folder


def test_a_model_that_cannot_be_served_says_why(
    rows: List, tiny_folder: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "models"
    edited(tiny_folder, folder / "other", architectures=["GrokForCausalLM"])
    edited(tiny_folder, folder / "heads", num_attention_heads="four")
    write_gguf(folder / "moe.gguf", kind="grok")
    found = rows(folder)
    other, heads, moe = (found[f"{folder}/{name}"] for name in ("other", "heads", "moe.gguf"))
    assert other["reason"].startswith("config.json: architectures: expected LlamaForCausalLM")
    assert (other["family"], other["format"]) == ("GrokForCausalLM", "f32")
    assert heads["reason"].startswith("config.json: num_attention_heads: expected an integer")
    assert moe["reason"].startswith("moe.gguf: general.architecture: expected llama")
    assert (moe["family"], moe["format"]) == ("grok", "Q8_0")


def test_corrupt_models_do_not_keep_others_from_the_list(
    rows: List, chairlift: Run, tiny_folder: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "models"
    shutil.copytree(tiny_folder, folder / "good")
    broken = {
        "json": ("config.json", b"{"),
        "bytes": ("config.json", b"\xff\x00"),
        "list": ("config.json", b"[1]"),
        "header": ("model.safetensors", b"\xff" * 16),
        "empty": ("model.safetensors", b""),
        "odd": ("config.json", b'{"architectures": [[]]}'),
    }
    for name, (file, data) in broken.items():
        shutil.copytree(tiny_folder, folder / name)
        (folder / name / file).write_bytes(data)
    shutil.copytree(tiny_folder, folder / "missing")
    (folder / "missing" / "model.safetensors").unlink()
    (folder / "garbage.gguf").write_bytes(b"GGUF" + b"\xff" * 100)
    (folder / "none.gguf").write_bytes(b"")
    cut = write_gguf(folder / "cut.gguf")
    cut.write_bytes(cut.read_bytes()[:-100])
    os.mkfifo(folder / "pipe.gguf")
    (folder / "gone.gguf").symlink_to(folder / "nowhere")
    (folder / "loop").symlink_to(folder / "loop")
    run = chairlift("models", folder, "--json")
    assert (run.returncode, run.stderr) == (0, "")
    found = {Path(row["path"]).name: row for row in map(json.loads, run.stdout.splitlines())}
    bad = {*broken, "missing", "garbage.gguf", "none.gguf", "cut.gguf", "pipe.gguf", "gone.gguf"}
    assert {name for name, row in found.items() if row["reason"]} == bad
    assert found["good"]["supported"] is True
    assert found["missing"]["reason"] == "model.safetensors: no such file"
    assert found["cut.gguf"]["weight_bytes"] == cut.stat().st_size
    table = chairlift("models", folder)
    assert table.returncode == 0
    assert "not a whole GGUF file" in table.stdout


def test_a_person_reads_sizes_and_plain_names(
    chairlift: Run, tiny_folder: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "m"
    shutil.copytree(tiny_folder, folder / "a[red]\x1b[31m")
    run = chairlift("models", folder)
    assert run.returncode == 0, run
    for words in ("name", "size", "MiB", "bf16", "LlamaForCausalLM", "yes", r"a[red]\x1b[31m"):
        assert words in run.stdout.replace("\n", "")
    assert "\x1b" not in run.stdout


@pytest.mark.parametrize("name", ["no-such", "file"])
def test_a_folder_that_is_none_is_one_line(chairlift: Run, tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("a")
    run = chairlift("models", tmp_path / name)
    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr.startswith(f"error: {tmp_path / name}: no")
    assert run.stderr.count("\n") == 1


def test_many_models_are_bounded(rows: List, tmp_path: Path) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(1100):
        (folder / f"{number}.gguf").write_bytes(b"")
    found = [name for name in rows(folder) if name.endswith(".gguf")]
    assert len(found) == 1000
    with pytest.raises(ModelError):
        resolve_model(str(folder))
