"""`chairlift serve`: what it says, and the one line that each mistake gets."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import Result, Run


def assert_one_line(run: Result, *words: str) -> None:
    assert run.returncode == 1, run
    # In a process of its own the log tells the settings first.
    lines = [
        line for line in run.stderr.splitlines() if " chairlift.cli.serve: setting " not in line
    ]
    assert len(lines) == 1, run.stderr
    assert lines[0].startswith("error: ")
    for word in words:
        assert word in lines[0]


def test_it_says_where_it_listens_and_what_start_up_took(server: subprocess.Popen[str]) -> None:
    first, second = server.lines
    assert "continuous batching, 4 rows, 32 tokens a step" in first
    assert second.startswith("serving on 127.0.0.1:")
    for part in ("imports", "weights", "warm-up"):
        assert part in second


@pytest.mark.parametrize("chairlift", ["in this process", "in its own process"], indirect=True)
def test_port_in_use(chairlift: Run, tiny_folder: Path, target: str) -> None:
    run = chairlift("serve", tiny_folder, "--listen", target)
    assert_one_line(run, target, "address already in use")


def test_missing_model(chairlift: Run, tmp_path: Path) -> None:
    run = chairlift("serve", tmp_path / "nowhere", "--listen", "127.0.0.1:0")
    assert_one_line(run, "nowhere")


@pytest.mark.parametrize("num_bytes", [0, 7, 100, 20_000])
def test_truncated_model(chairlift: Run, tiny_folder: Path, tmp_path: Path, num_bytes: int) -> None:
    folder = shutil.copytree(tiny_folder, tmp_path / "model")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:num_bytes])
    assert_one_line(chairlift("serve", folder, "--listen", "127.0.0.1:0"), "model.safetensors")


def test_unsupported_architecture(chairlift: Run, tiny_folder: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_folder, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    config["architectures"] = ["MambaForCausalLM"]
    (folder / "config.json").write_text(json.dumps(config))
    assert_one_line(chairlift("serve", folder, "--listen", "127.0.0.1:0"), "MambaForCausalLM")


def test_address_that_is_none(chairlift: Run, tiny_folder: Path) -> None:
    assert_one_line(chairlift("serve", tiny_folder, "--listen", "nonsense"), "listen")


def test_setting_out_of_range(chairlift: Run, tiny_folder: Path) -> None:
    assert_one_line(chairlift("serve", tiny_folder, "--max-num-seqs", "0"), "max_num_seqs", "0")


def test_entries_of_the_file_are_defaults(chairlift: Run, tmp_path: Path) -> None:
    config = tmp_path / "chairlift.toml"
    config.write_text('max-num-seqs = 3\nlisten = "nonsense"\nbatch-window = "20ms"\n')
    run = chairlift("serve", "--config", config)
    assert "3 rows" in run.stdout
    assert_one_line(run, "listen")
