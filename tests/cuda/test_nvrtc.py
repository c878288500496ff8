"""NVRTC takes every kernel for every architecture, with no GPU and no toolkit.

Here one instantiation of each kernel; `make cuda-compile` compiles them all.
"""

import re
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from tests.cuda.emulation.library import CUDA, kernels
from tests.cuda.instantiations import every_instance, instance
from tests.cuda.nvrtc import ARCHITECTURES, compile_cubin, source_of

BF16, F16, F8 = torch.bfloat16, torch.float16, torch.float8_e4m3fn
SAMPLES = [
    instance("paged_prefill", BF16, BF16, 64, 64),
    instance("paged_decode", BF16, F8, 128),
    instance("sample", torch.float32),
    instance("kv_write", BF16, F8, 128),
    instance("rms_norm", BF16),
    instance("silu_mul", F16),
    *map(instance, ("copy_blocks", "gather_tokens", "scatter_tokens")),
]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_kernel_compiles_and_fits_the_registers(architecture: str) -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs torch's CUDA packages")

    def compiled(name: str) -> tuple[str, str]:
        cubin, symbols, log = compile_cubin(source_of(name), [name], architecture)
        assert symbols[0].encode() in cubin
        return name, log

    with ThreadPoolExecutor(2) as pool:
        logs = dict(pool.map(compiled, SAMPLES))
    for name, log in logs.items():
        spilled = [int(n) for n in re.findall(r"(\d+) bytes spill", log)]
        assert spilled, log
        assert max(spilled) <= 32, f"{name}: {log}"


def test_every_kernel_has_an_instance() -> None:
    names = {re.sub(r"chairlift::|<.*", "", name) for name in every_instance()}
    assert names == set(kernels()) == {re.sub(r"chairlift::|<.*", "", name) for name in SAMPLES}


def test_only_one_header_knows_ptx() -> None:
    sources = [path for path in CUDA.rglob("*.cu*") if re.search(r"\basm\b", path.read_text())]
    assert [path.name for path in sources] == ["mma.cuh"]
