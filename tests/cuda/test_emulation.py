"""The emulation itself: it computes what a GPU does, and planted bugs do not get past it."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.cuda.emulation import EmulationError, Library, build, guarded
from tests.cuda.emulation.library import compiler
from tests.cuda.instantiations import instance

PLANTED = Path(__file__).parent / "planted"
NAMES = [
    *(f"chairlift::mirror<{w}, {b}>" for w, b in ("10", "01", "11")),
    *(f"chairlift::{name}<{x}>" for name in ("reuse", "ring", "meet", "shuffle") for x in (0, 1)),
    *(f"chairlift::{name}" for name in ("mixed", "write_global", "read_global")),
    *(f"chairlift::{name}" for name in ("write_shared", "copy_to")),
    *(
        f"chairlift::{k}<chairlift::{t}16>"
        for k in ("product", "convert")
        for t in ("bfloat", "float")
    ),
]


@pytest.fixture(scope="module")
def library() -> Library:
    if compiler() is None:
        pytest.skip("needs g++")
    return build(NAMES, PLANTED)


@pytest.fixture
def run(library: Library) -> Callable[..., None]:
    """Launch one block of 64 threads with 256 bytes of shared memory."""

    def launch(name: str, *args: Tensor | int, shared_bytes: int = 1024) -> None:
        library.launch(f"chairlift::{name}", (1,), 64, shared_bytes, args)

    return launch


@pytest.fixture
def numbers() -> tuple[Tensor, Tensor]:
    return guarded(torch.zeros(256)), guarded(torch.arange(256.0) + 1)


Run = Callable[..., None]
Pair = tuple[Tensor, Tensor]


def test_copies_are_there_after_the_wait_and_the_barrier(run: Run, numbers: Pair) -> None:
    out, source = numbers
    run("mirror<1, 1>", out, source)
    assert torch.equal(out[:64], source[:64].flip(0))


@pytest.mark.parametrize("name", ["mirror<0, 1>", "mirror<1, 0>"])
def test_a_missing_wait_or_barrier_reads_nan(run: Run, numbers: Pair, name: str) -> None:
    run(name, *numbers)
    assert numbers[0][:64].isnan().any()


def test_a_copy_into_what_is_still_read_shows(run: Run, numbers: Pair) -> None:
    out, source = numbers
    expected = source[:128].view(2, 64).flip(1).flatten()
    run("reuse<1>", out, source)
    assert torch.equal(out[:128], expected)
    run("reuse<0>", out, source)
    assert not torch.equal(out[:128], expected)


def test_a_wait_that_leaves_too_many_groups_reads_nan(run: Run, numbers: Pair) -> None:
    out, source = numbers
    run("ring<0>", out, source)
    assert torch.equal(out[::4], source[::4])
    assert torch.equal(out[1::4], source[::4])
    run("ring<1>", out, source)
    assert out[::4].isnan().all()


def test_a_divergent_barrier_is_an_error_and_no_hang(run: Run, numbers: Pair) -> None:
    run("meet<0>", numbers[0])
    with pytest.raises(EmulationError, match=r"divergent __syncthreads: 40 of 64 .* 24 have ended"):
        run("meet<1>", numbers[0])


def test_a_shuffle_that_a_lane_misses_is_an_error(run: Run, numbers: Pair) -> None:
    run("shuffle<0>", numbers[0])
    assert (numbers[0][:64] == 32).all()
    with pytest.raises(EmulationError, match="divergent __shfl_xor_sync"):
        run("shuffle<1>", numbers[0])


def test_lanes_at_different_collectives_are_an_error(run: Run, numbers: Pair) -> None:
    with pytest.raises(EmulationError, match=r"is at __ballot_sync while .* at __shfl_xor_sync"):
        run("mixed", numbers[0])


@pytest.mark.parametrize("distance", [256, -1200])
def test_a_bad_global_address_is_an_error(run: Run, numbers: Pair, distance: int) -> None:
    out, source = numbers
    for arguments in (("write_global", out, distance), ("read_global", out, source, distance)):
        with pytest.raises(EmulationError, match="touches memory that is not its own"):
            run(*arguments)
    run("write_global", out, 192)


def test_a_write_past_shared_memory_is_an_error(run: Run, numbers: Pair) -> None:
    run("write_shared", numbers[0], 4, shared_bytes=272)
    with pytest.raises(EmulationError, match="past the end of shared memory"):
        run("write_shared", numbers[0], 5, shared_bytes=272)
    with pytest.raises(EmulationError, match="touches memory that is not its own"):
        run("write_shared", numbers[0], 300, shared_bytes=272)


def test_copies_must_fit_be_aligned_and_be_waited_for(run: Run, numbers: Pair) -> None:
    for offset, message in ((1024, "outside shared"), (-16, "outside"), (0, "nobody waited for")):
        with pytest.raises(EmulationError, match=message):
            run("copy_to", numbers[1], offset)
    with pytest.raises(EmulationError, match="not aligned"):
        run("copy_to", numbers[1], 8, shared_bytes=2048)


def test_arguments_are_checked(library: Library, numbers: Pair) -> None:
    for arguments in ([], [numbers[0], 1.5], [1, 1]):
        with pytest.raises(TypeError):
            library.launch("chairlift::write_global", (1,), 64, 0, arguments)
    with pytest.raises(KeyError):
        library.launch("chairlift::nothing", (1,), 64, 0, [])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_tensor_cores_multiply_matrices(library: Library, dtype: torch.dtype) -> None:
    random = torch.Generator().manual_seed(0)
    a, b = (torch.randn(16, n, generator=random).to(dtype) for n in (16, 8))
    c = guarded(torch.full((16, 8), torch.nan))
    name = instance("product", dtype)
    library.launch(name, (1,), 32, 768, [c, guarded(a), guarded(b)])
    torch.testing.assert_close(c.double(), a.double() @ b.double(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_conversions_are_those_of_pytorch(library: Library, dtype: torch.dtype) -> None:
    random = torch.Generator().manual_seed(0)
    source = torch.randn(256, generator=random) * 2.0 ** torch.arange(-20, 12).repeat(8)
    source[:3] = torch.tensor([0.0, -0.0, torch.nan])
    source[3:8] = torch.tensor([448.0, 2**-9 * 1.5, -(2**-10), 17.0, 19.0])  # ties and ends
    out, rounded = torch.empty(256), torch.empty(256)
    narrow = torch.empty(256, dtype=torch.uint8)
    name = instance("convert", dtype)
    library.launch(name, (4,), 64, 0, [out, rounded, narrow, source])
    every = torch.arange(256).to(torch.uint8).view(torch.float8_e4m3fn).float()
    is_number = ~every.isnan()
    assert torch.equal(out[is_number], every[is_number])
    torch.testing.assert_close(rounded, source.to(dtype).float(), rtol=0, atol=0, equal_nan=True)
    expected = source.clamp(-448, 448).to(torch.float8_e4m3fn)
    assert torch.equal(narrow & 0x7F, expected.view(torch.uint8) & 0x7F)
