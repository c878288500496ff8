"""The wheel as users get it: what is in it, and that it runs without a compiler."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAX_WHEEL_BYTES = 20 * 2**20


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The release wheel; cargo's target folder makes a second build a matter of seconds."""
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "maturin", "build", "--release", "--locked", "--quiet"]
    subprocess.run([*command, "--out", out], check=True, cwd=ROOT)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def names(wheel: Path) -> set[str]:
    return set(zipfile.ZipFile(wheel).namelist())


@pytest.mark.timeout(600)
def test_one_wheel_serves_every_python(wheel: Path) -> None:
    assert "-cp311-abi3-" in wheel.name
    assert wheel.stat().st_size < MAX_WHEEL_BYTES


def test_types_travel_with_the_code(names: set[str]) -> None:
    assert {"chairlift/py.typed", "chairlift/_core.pyi", "chairlift/_core.abi3.so"} <= names


@pytest.mark.parametrize("folder", ["chairlift", "chairlift/cli", "chairlift/v1"])
def test_every_module_is_in(names: set[str], folder: str) -> None:
    here = {f"{folder}/{path.name}" for path in (ROOT / "python" / folder).glob("*.py")}
    assert here
    assert here <= names


def test_proto_stubs_are_in(names: set[str]) -> None:
    for proto in (ROOT / "proto" / "chairlift" / "v1").glob("*.proto"):
        for ending in ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py"):
            assert f"chairlift/v1/{proto.stem}{ending}" in names


def test_cuda_sources_are_in(names: set[str]) -> None:
    cuda = ROOT / "cuda"
    sources = {f"chairlift/cuda/{p.relative_to(cuda)}" for p in cuda.rglob("*.cu*") if p.is_file()}
    assert sources
    assert {name for name in names if name.startswith("chairlift/cuda/")} == sources


def test_files_of_the_page_are_in(names: set[str]) -> None:
    folder = "chairlift/server/page/static"
    here = {f"{folder}/{path.name}" for path in (ROOT / "python" / folder).iterdir()}
    assert f"{folder}/index.html" in here
    assert here <= names


def test_demo_model_is_in(names: set[str]) -> None:
    model = "chairlift/demo/model"
    assert {f"{model}/{name}" for name in ("config.json", "tokenizer.json")} <= names
    assert f"{model}/model.safetensors" in names


def test_the_code_that_trained_it_is_not(names: set[str]) -> None:
    in_demo = {
        name for name in names if name.startswith("chairlift/demo/") and name.endswith(".py")
    }
    assert in_demo == {"chairlift/demo/__init__.py"}


def test_nothing_else_is_in(names: set[str]) -> None:
    assert all(name.startswith(("chairlift/", "chairlift-")) for name in names)
    assert not [name for name in names if "test" in name or "__pycache__" in name]


def test_unpacked_wheel_runs(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    code = "import chairlift, chairlift._core as core; print(chairlift.__file__, core.__version__)"
    run = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path)},
    )
    assert run.stdout.startswith(str(tmp_path))
    assert wheel.name.split("-")[1] in run.stdout


def test_sdist_holds_what_the_wheel_is_built_from(tmp_path: Path) -> None:
    import tarfile

    command = [sys.executable, "-m", "maturin", "sdist", "--out", str(tmp_path)]
    subprocess.run(command, check=True, cwd=ROOT, capture_output=True)
    (built,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(built) as archive:
        files = {m.name.partition("/")[2] for m in archive.getmembers() if m.isfile()}
    expected = {"Cargo.lock", "README.md", "cuda/paged_decode.cu", "pyproject.toml"}
    expected |= {"proto/chairlift/v1/generation.proto", "rust/chairlift-core/src/lib.rs"}
    # A real file and not a link out of the package.
    expected.add("python/chairlift/cuda/paged_decode.cu")
    assert expected <= files
