"""Kernels are compiled by NVRTC without a GPU, and once."""

import json
import os
import re
import shutil

import pytest
import torch
from chairlift.api.errors import ConfigError
from chairlift.cli import app
from chairlift.kernels.cuda import build, ops, sources
from chairlift.kernels.cuda.launch import launcher_of
from torch._subclasses.fake_tensor import FakeTensorMode
from typer.testing import CliRunner

NAME = "chairlift::activate<float>"


@pytest.fixture
def copied(tmp_path, monkeypatch):
    """A copy of the sources that a test may change."""
    folder = tmp_path / "sources"
    shutil.copytree(sources.source_folder(), folder)
    monkeypatch.setattr(sources, "source_folder", lambda: folder)
    return folder


def test_a_kernel_is_compiled_once(nvrtc, tmp_path):
    told = []
    progress = lambda *step: told.append(step)  # noqa: E731
    first = build.build([NAME], "sm_90a", progress, tmp_path)
    written = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert build.build([NAME], "sm_90a", progress, tmp_path) == first
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == written
    assert told == [(1, 1, NAME)] * 2
    binary = first[NAME]
    assert binary.cubin.read_bytes()[:4] == b"\x7fELF"
    assert binary.symbol in binary.cubin.read_bytes()


def test_another_architecture_or_header_is_another_kernel(nvrtc, tmp_path, copied):
    cubins = [build.build([NAME], arch, None, tmp_path)[NAME].cubin for arch in ("sm_80", "sm_90a")]
    header = next((copied / "include").rglob("*.cuh"))
    header.write_text(header.read_text() + "// changed\n")
    cubins.append(build.build([NAME], "sm_80", None, tmp_path)[NAME].cubin)
    assert len(set(cubins)) == 3


def test_other_options_of_the_compiler_are_another_kernel(nvrtc, tmp_path, monkeypatch):
    cubins = [build.build([NAME], "sm_80", None, tmp_path)[NAME].cubin]
    monkeypatch.setattr(build, "OPTIONS", {**build.OPTIONS, "use_fast_math": True})
    cubins.append(build.build([NAME], "sm_80", None, tmp_path)[NAME].cubin)
    assert len(set(cubins)) == 2


SPOILED = {
    "no machine code": lambda cubin, _: cubin.unlink(),
    "no description": lambda _, about: about.unlink(),
    "half of the machine code": lambda cubin, _: os.truncate(cubin, 100),
    "empty machine code": lambda cubin, _: os.truncate(cubin, 0),
    "half of the description": lambda _, about: os.truncate(about, 20),
    "another description": lambda _, about: about.write_text("[1]"),
    "no symbol": lambda _, about: about.write_text(
        json.dumps({**json.loads(about.read_text()), "symbol": None})
    ),
}


@pytest.mark.parametrize("case", SPOILED)
def test_an_entry_that_is_not_whole_is_compiled_again(nvrtc, tmp_path, case):
    first = build.build([NAME], "sm_80", None, tmp_path)[NAME]
    SPOILED[case](first.cubin, first.cubin.with_suffix(".json"))
    again = build.build([NAME], "sm_80", None, tmp_path)[NAME]
    assert again == first
    code = again.cubin.read_bytes()
    assert code[:4] == b"\x7fELF"
    assert again.symbol in code
    assert len(list(tmp_path.iterdir())) == 2, "nothing unfinished is left"


def test_a_folder_that_cannot_be_written_is_one_line(nvrtc, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"compiled kernels: .*XDG_CACHE_HOME") as error:
        build.build([NAME], "sm_80", None, tmp_path / "file" / "kernels")
    assert "\n" not in str(error.value)


def test_what_does_not_compile_is_named_with_what_the_compiler_says(nvrtc, tmp_path, copied):
    path = copied / "activate.cu"
    path.write_text(path.read_text() + "\nint x = nonsense;\n")
    with pytest.raises(ConfigError, match=re.escape(NAME)) as error:
        build.build([NAME], "sm_90a", None, tmp_path)
    assert "nonsense" in str(error.value)
    assert not list(tmp_path.glob("*.json"))


def test_the_command_compiles_and_lists(nvrtc, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(sources, "all_kernels", lambda: [NAME])
    run = CliRunner().invoke(app, ["kernels", "build", "--arch", "sm_80", "--arch", "sm_90a"])
    assert run.exit_code == 0, run.output
    assert "1 kernels for sm_80, sm_90a" in run.output
    assert len(list((tmp_path / "chairlift" / "kernels").glob("*.cubin"))) == 2
    assert CliRunner().invoke(app, ["kernels", "list"]).output == f"{NAME}\n"


def test_every_kernel_that_a_model_needs_is_defined():
    for name in sources.all_kernels():
        kernel = re.fullmatch(r"chairlift::(\w+)(<.*>)?", name)[1]
        assert re.search(rf"\b{kernel}\(", sources.source_of(name).read_text()), name


def test_pytorch_traces_an_operation_without_launching_it():
    with FakeTensorMode():
        gate_up = torch.empty(3, 128, dtype=torch.bfloat16)
        assert ops.silu_mul(gate_up).shape == (3, 64)
        assert ops.rms_norm(gate_up, torch.empty(128), 1e-6).shape == (3, 128)


def test_tensors_of_a_device_without_kernels_are_refused():
    with pytest.raises(RuntimeError, match="no CUDA kernels are loaded for device meta"):
        launcher_of(torch.empty(1, device="meta"))
