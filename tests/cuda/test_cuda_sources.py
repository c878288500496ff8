"""The CUDA kernels with no GPU: what they compute (g++, threads) and that NVRTC takes them."""

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from chairlift.attention.metadata import AttentionMetadata
from chairlift.attention.reference import ReferenceBackend
from torch import Tensor

ROOT = Path(__file__).parents[2]
CUDA = ROOT / "cuda"
BLOCK_SIZE = 16
POINTER, INT = ctypes.c_void_p, ctypes.c_int


class PagedKv(ctypes.Structure):
    """Mirrors chairlift/paged_kv.cuh."""

    _fields_ = [
        ("cache", POINTER),
        ("block_table", POINTER),
        ("num_blocks", INT),
        ("num_kv_heads", INT),
        ("block_size", INT),
        ("head_dim", INT),
        ("max_blocks_per_row", INT),
    ]


class PagedAttentionParams(ctypes.Structure):
    """Mirrors paged_attention.cu."""

    _fields_ = [
        ("query", POINTER),
        ("kv", PagedKv),
        ("rows", POINTER),
        ("query_start_loc", POINTER),
        ("seq_lens", POINTER),
        ("out", POINTER),
        ("num_rows", INT),
        ("num_heads", INT),
        ("window", INT),
        ("scale", ctypes.c_float),
    ]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    compiler = shutil.which("g++")
    if compiler is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("needs g++")
    built = tmp_path_factory.mktemp("cuda") / "paged_attention.so"
    source = ROOT / "tests" / "cuda" / "paged_attention.cpp"
    flags = ["-std=c++20", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread"]
    includes = [f"-I{CUDA}", f"-I{CUDA / 'include'}"]
    subprocess.run([compiler, *flags, *includes, source, "-o", built], check=True)
    return ctypes.CDLL(str(built))


class Batch:
    """A ragged batch over shuffled blocks; what no row owns is NaN."""

    def __init__(
        self,
        seq_lens: list[int],
        num_queries: list[int],
        heads: tuple[int, int],
        head_dim: int,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        random = torch.Generator().manual_seed(0)
        self.num_heads, self.num_kv_heads = heads
        self.seq_lens, self.num_queries = seq_lens, num_queries
        self.rows = torch.arange(len(seq_lens), 0, -1, dtype=torch.int32)
        per_row = [-(-length // BLOCK_SIZE) for length in seq_lens]
        self.num_blocks = 2 + sum(per_row)  # the null block and one that nobody owns
        free = (1 + torch.randperm(self.num_blocks - 1, generator=random)).int()
        self.block_table = torch.zeros(len(seq_lens) + 1, max(per_row), dtype=torch.int32)
        slots = []
        for row, length, count in zip(self.rows.tolist(), seq_lens, per_row, strict=True):
            blocks, free = free[:count], free[count:]
            self.block_table[row, :count] = blocks
            position = torch.arange(length)
            slots.append(blocks[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE)
        self.slots = torch.cat(slots)
        shape = (2, len(self.slots), self.num_kv_heads, head_dim)
        self.key, self.value = torch.randn(shape, generator=random).to(dtype)
        shape = (sum(num_queries), self.num_heads, head_dim)
        self.query = torch.randn(shape, generator=random).to(dtype)

    @property
    def starts(self) -> Tensor:
        """`[R + 1]`: where each row's queries start."""
        return torch.tensor([0, *self.num_queries]).cumsum(0).to(torch.int32)

    def expected(self, window: int = 0) -> Tensor:
        """The PyTorch twin's answer in float64, `[T, num_heads, head_dim]`."""
        twin, head_dim = ReferenceBackend(), self.query.shape[-1]
        shape = (1, self.num_blocks, self.num_kv_heads, BLOCK_SIZE, head_dim)
        (cache,) = twin.allocate(*shape, torch.float64)
        twin.write(cache, self.key.double(), self.value.double(), self.slots, BLOCK_SIZE)
        metadata = AttentionMetadata(
            rows=self.rows,
            query_start_loc=self.starts,
            seq_lens=torch.tensor(self.seq_lens, dtype=torch.int32),
            positions=torch.empty(0),
            slot_mapping=torch.empty(0),
            block_tables=self.block_table[None],
            block_size=BLOCK_SIZE,
        )
        query, scale = self.query.double(), head_dim**-0.5
        return twin.attend(query, cache, metadata, group=0, scale=scale, window=window or None)

    def run(self, library: ctypes.CDLL, window: int = 0) -> Tensor:
        """The kernel's answer, `[T, num_heads, head_dim]`."""
        query, head_dim = self.query, self.query.shape[-1]
        shape = (2, self.num_blocks, self.num_kv_heads, BLOCK_SIZE, head_dim)
        cache = torch.full(shape, torch.nan, dtype=query.dtype)
        cache[0, self.slots // BLOCK_SIZE, :, self.slots % BLOCK_SIZE] = self.key
        cache[1, self.slots // BLOCK_SIZE, :, self.slots % BLOCK_SIZE] = self.value
        out = torch.full_like(query, torch.nan)
        starts, seq_lens = self.starts, torch.tensor(self.seq_lens, dtype=torch.int32)
        kv = PagedKv(
            cache.data_ptr(),
            self.block_table.data_ptr(),
            self.num_blocks,
            self.num_kv_heads,
            BLOCK_SIZE,
            head_dim,
            self.block_table.shape[1],
        )
        params = PagedAttentionParams(
            query.data_ptr(),
            kv,
            self.rows.data_ptr(),
            starts.data_ptr(),
            seq_lens.data_ptr(),
            out.data_ptr(),
            len(self.seq_lens),
            self.num_heads,
            window,
            head_dim**-0.5,
        )
        name = {torch.float32: "float32", torch.bfloat16: "bfloat16"}[query.dtype]
        assert getattr(library, f"paged_attention_{name}")(params, len(query)) == 0
        return out


@pytest.mark.parametrize("window", [0, 5, 17])
@pytest.mark.parametrize("head_dim", [16, 64, 128])
def test_mixed_batch_matches_the_twin(library: ctypes.CDLL, head_dim: int, window: int) -> None:
    batch = Batch([1, 15, 16, 17, 40, 33], [1, 1, 16, 2, 1, 20], (4, 2), head_dim)
    out = batch.run(library, window)
    torch.testing.assert_close(out.double(), batch.expected(window), rtol=1e-5, atol=1e-5)


def test_bfloat16_differs_by_its_own_rounding(library: ctypes.CDLL) -> None:
    batch = Batch([50, 7], [3, 7], (8, 2), 64, torch.bfloat16)
    out = batch.run(library)
    torch.testing.assert_close(out.double(), batch.expected(), rtol=2**-8, atol=1e-3)


def test_bits_of_a_row_do_not_depend_on_the_batch(library: ctypes.CDLL) -> None:
    batch = Batch([40, 100, 33], [1, 9, 33], (2, 1), 64)
    together = batch.run(library)
    starts, query, rows = batch.starts.tolist(), batch.query, batch.rows
    for row, (length, count) in enumerate([(40, 1), (100, 9), (33, 33)]):
        batch.seq_lens, batch.num_queries = [length], [count]
        batch.rows = rows[row : row + 1].clone()
        batch.query = query[starts[row] : starts[row + 1]].clone()
        assert torch.equal(batch.run(library), together[starts[row] : starts[row + 1]])


@pytest.mark.parametrize("element", ["float", "chairlift::bfloat16"])
def test_nvrtc_compiles_the_kernel(element: str) -> None:
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="needs torch's CUDA packages")
    source = (CUDA / "paged_attention.cu").read_bytes()
    _, program = nvrtc.nvrtcCreateProgram(source, b"paged_attention.cu", 0, [], [])
    name = f"chairlift::paged_attention<{element}, 128>".encode()
    nvrtc.nvrtcAddNameExpression(program, name)
    options = [b"--std=c++17", b"--gpu-architecture=compute_80", f"-I{CUDA / 'include'}".encode()]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    _, size = nvrtc.nvrtcGetProgramLogSize(program)
    # NVRTC writes into it, and Python shares all bytes of length 1: an empty log must not be one.
    log = bytes(size + 1)
    nvrtc.nvrtcGetProgramLog(program, log)
    assert status == nvrtc.nvrtcResult.NVRTC_SUCCESS, log.decode()
