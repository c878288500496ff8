"""NVRTC takes every kernel for every architecture, with no GPU and no toolkit.

Here one instantiation of each kernel for one architecture, and of attention for two; `make slow`
compiles these for all, and `make cuda-compile` all there are.
"""

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from chairlift.kernels.cuda.build import ARCHITECTURES, compile_kernel

from tests.cuda.emulation.library import CUDA, kernels
from tests.cuda.instantiations import BF16, F8, F16, F32, every_instance, instance

SAMPLES = [
    instance("paged_prefill", BF16, BF16, 64, 64),
    instance("paged_decode", BF16, F8, 128, 16),
    instance("sample", F32),
    instance("kv_write", BF16, F8, 128),
    instance("norm", BF16),
    instance("gemv", BF16, 4),
    instance("activate", F16),
    *map(instance, ("copy_blocks", "gather_tokens", "scatter_tokens", "sample_options")),
    *map(instance, ("route_experts", "group_by_expert")),
    instance("expert_gate_up", BF16, 64),
    instance("expert_down", F16, 16),
    instance("sum_experts", BF16),
    instance("copy_states"),
    instance("causal_conv", BF16),
    instance("selective_scan", BF16, 256),
    instance("gated_delta", F16, 128),
    instance("gated_norm", BF16),
]


ATTENTION = SAMPLES[:2]


def samples_of(architecture: str) -> list[str]:
    """Every fourth kernel, and of attention one: compiling each for each takes minutes."""
    number, others = ARCHITECTURES.index(architecture), SAMPLES[2:]
    return [ATTENTION[number % 2], *others[number :: len(ARCHITECTURES)]]


def test_every_kernel_is_compiled_for_some_architecture() -> None:
    assert {name for each in ARCHITECTURES for name in samples_of(each)} == set(SAMPLES)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("samples", [samples_of, pytest.param("all", marks=pytest.mark.slow)])
def test_kernels_compile_and_fit_the_registers(
    architecture: str, samples: Callable[[str], list[str]] | str
) -> None:
    pytest.importorskip("cuda.core", reason="needs chairlift[cuda]")

    def compiled(name: str) -> tuple[str, str]:
        code, symbol, log = compile_kernel(name, architecture)
        assert symbol in code
        return name, log

    with ThreadPoolExecutor(2) as pool:
        names = SAMPLES if isinstance(samples, str) else samples(architecture)
        logs = dict(pool.map(compiled, names))
    for name, log in logs.items():
        spilled = [int(n) for n in re.findall(r"(\d+) bytes spill", log)]
        assert spilled, log
        assert max(spilled) <= 32, f"{name}: {log}"


LARGEST = [
    instance("paged_prefill", BF16, BF16, 128, 128),
    instance("paged_prefill", BF16, BF16, 512, 64),
    instance("paged_decode", BF16, BF16, 512, 8),
]
"""The largest tile, and the largest heads."""


@pytest.mark.parametrize("architecture", [pytest.param("sm_80", marks=pytest.mark.slow), "sm_90a"])
@pytest.mark.parametrize("name", LARGEST)
def test_the_largest_shapes_fit_the_registers(name: str, architecture: str) -> None:
    pytest.importorskip("cuda.core", reason="needs chairlift[cuda]")
    log = compile_kernel(name, architecture).log
    spilled = [int(n) for n in re.findall(r"(\d+) bytes spill", log)]
    assert spilled, log
    assert max(spilled) <= 32, log


def test_every_kernel_has_an_instance() -> None:
    names = {re.sub(r"chairlift::|<.*", "", name) for name in every_instance()}
    assert names == set(kernels()) == {re.sub(r"chairlift::|<.*", "", name) for name in SAMPLES}


def test_only_one_header_knows_ptx() -> None:
    sources = [path for path in CUDA.rglob("*.cu*") if re.search(r"\basm\b", path.read_text())]
    assert [path.name for path in sources] == ["mma.cuh"]
