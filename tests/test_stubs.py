"""The committed stubs are what proto/ generates."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# `make stubs` makes it; the compiler has an environment of its own.
PYTHON = ROOT / ".tools" / "grpc-1.76.0" / "bin" / "python"


def test_the_committed_stubs_are_current(tmp_path):
    if not PYTHON.exists():
        reason = "the proto compiler is not installed: `make stubs` brings it"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    protos = sorted(str(path) for path in (ROOT / "proto").rglob("*.proto"))
    outputs = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python")]
    subprocess.run(
        [PYTHON, "-m", "grpc_tools.protoc", f"-I{ROOT / 'proto'}", *outputs, *protos], check=True
    )
    generated = {path.name: path.read_text() for path in (tmp_path / "chairlift" / "v1").iterdir()}
    committed = {
        path.name: path.read_text()
        for path in (ROOT / "python" / "chairlift" / "v1").glob("*_pb2*.py*")
    }
    assert generated == committed
