"""`chairlift serve`: what it says, and the one line that each mistake gets."""

import contextlib
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Result, Run, environment


def assert_one_line(run: Result, *words: str, code: int = 2) -> None:
    assert run.returncode == code, run
    # In a process of its own the log lists the settings first.
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


def names_of_threads() -> list[str]:
    names = []
    for path in Path("/proc/self/task").glob("*/comm"):
        # A thread may end between the listing and the reading.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            names.append(path.read_text().strip())
    return names


def test_a_start_that_failed_leaves_no_guard_on_the_process(
    chairlift: Run, tiny_folder: Path, target: str
) -> None:
    chairlift("serve", tiny_folder, "--listen", target)
    until = time.monotonic() + 10
    while "chairlift-guard" in names_of_threads():
        assert time.monotonic() < until


def test_missing_model(chairlift: Run, tmp_path: Path) -> None:
    run = chairlift("serve", tmp_path / "nowhere", "--listen", "127.0.0.1:0")
    assert_one_line(run, "nowhere", code=1)


@pytest.mark.parametrize(
    "command",
    [
        "serve ./nope",
        "serve --listen nonsense",
        "serve --tls-cert /nope --tls-key /nope",
        "serve --auth-tokens /nope",
        "plan ./nope",
        "bench policies ./nope",
        "bench kernels ./nope",
        "bench quality ./nope --text pyproject.toml",
        "bench quality demo --text pyproject.toml --against ./nope",
        "bench quality demo --text /nope",
        "kernels list ./nope",
        "kernels build ./nope",
    ],
)
def test_a_cheap_mistake_is_found_before_torch_is_imported(command: str) -> None:
    code = """
import sys
from chairlift.cli import app
try:
    app(sys.argv[1:])
finally:
    print("torch" in sys.modules)
"""
    run = subprocess.run(
        [sys.executable, "-c", code, *command.split()],
        capture_output=True,
        text=True,
        env=environment(),
        check=False,
    )
    assert run.returncode in (1, 2), run
    assert run.stdout.splitlines()[-1] == "False", run
    assert "nope" in run.stderr or "nonsense" in run.stderr
    assert "draining" not in run.stderr
    assert run.stderr.splitlines()[-1].startswith("error: ")


@pytest.mark.parametrize("num_bytes", [0, 7, 100, 20_000])
def test_truncated_model(chairlift: Run, tiny_folder: Path, tmp_path: Path, num_bytes: int) -> None:
    folder = shutil.copytree(tiny_folder, tmp_path / "model")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:num_bytes])
    run = chairlift("serve", folder, "--listen", "127.0.0.1:0")
    assert_one_line(run, "model.safetensors", code=1)


def test_unsupported_architecture(chairlift: Run, tiny_folder: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_folder, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    config["architectures"] = ["MambaForCausalLM"]
    (folder / "config.json").write_text(json.dumps(config))
    run = chairlift("serve", folder, "--listen", "127.0.0.1:0")
    assert_one_line(run, "MambaForCausalLM", code=1)


def test_address_that_is_none(chairlift: Run, tiny_folder: Path) -> None:
    assert_one_line(chairlift("serve", tiny_folder, "--listen", "nonsense"), "listen")


def test_setting_out_of_range(chairlift: Run, tiny_folder: Path) -> None:
    assert_one_line(chairlift("serve", tiny_folder, "--max-num-seqs", "0"), "--max-num-seqs", "0")


def test_entries_of_the_file_are_defaults(chairlift: Run, tmp_path: Path) -> None:
    config = tmp_path / "chairlift.toml"
    config.write_text('max-num-seqs = 3\nlisten = "nonsense"\nbatch-window = "20ms"\n')
    run = chairlift("serve", "--config", config)
    assert "3 rows" in run.stdout
    assert_one_line(run, "listen")
