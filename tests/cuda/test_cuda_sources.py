"""The CUDA kernels with no GPU: what they compute (g++, threads) and that NVRTC takes them."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
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
        pytest.skip("needs g++")
    built = tmp_path_factory.mktemp("cuda") / "paged_attention.so"
    source = ROOT / "tests" / "cuda" / "paged_attention.cpp"
    flags = ["-std=c++20", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread"]
    includes = [f"-I{CUDA}", f"-I{CUDA / 'include'}"]
    subprocess.run([compiler, *flags, *includes, source, "-o", built], check=True)
    return ctypes.CDLL(str(built))


class Batch:
    """A ragged batch over shuffled blocks; what no row owns is NaN."""

    def __init__(
        self, seq_lens: list[int], num_queries: list[int], heads: tuple[int, int], head_dim: int
    ) -> None:
        generator = torch.Generator().manual_seed(0)
        self.seq_lens, self.num_queries = seq_lens, num_queries
        self.num_heads, self.num_kv_heads = heads
        per_row = [-(-length // BLOCK_SIZE) for length in seq_lens]
        num_blocks = 2 + sum(per_row)  # the null block and one that nobody owns
        shape = (2, num_blocks, self.num_kv_heads, BLOCK_SIZE, head_dim)
        self.cache = torch.full(shape, torch.nan)
        self.block_table = torch.zeros(len(seq_lens) + 1, max(per_row), dtype=torch.int32)
        self.rows = torch.arange(len(seq_lens), 0, -1, dtype=torch.int32)
        free = (1 + torch.randperm(num_blocks - 1, generator=generator)).tolist()
        self.keys, self.values = [], []
        for row, length, count in zip(self.rows.tolist(), seq_lens, per_row, strict=True):
            blocks = [free.pop() for _ in range(count)]
            self.block_table[row, :count] = torch.tensor(blocks)
            key, value = torch.randn(2, length, self.num_kv_heads, head_dim, generator=generator)
            for position in range(length):
                block, line = blocks[position // BLOCK_SIZE], position % BLOCK_SIZE
                self.cache[0, block, :, line] = key[position]
                self.cache[1, block, :, line] = value[position]
            self.keys.append(key)
            self.values.append(value)
        self.query = torch.randn(sum(num_queries), self.num_heads, head_dim, generator=generator)

    def expected(self, window: int) -> Tensor:
        """Dense attention in float64, `[T, num_heads, head_dim]`."""
        out, token, group = [], 0, self.num_heads // self.num_kv_heads
        for row, (length, count) in enumerate(zip(self.seq_lens, self.num_queries, strict=True)):
            key = self.keys[row].double().repeat_interleave(group, dim=1)
            value = self.values[row].double().repeat_interleave(group, dim=1)
            for last in range(length - count, length):
                first = max(0, last - window + 1) if window else 0
                seen = slice(first, last + 1)
                query = self.query[token].double()
                scores = torch.einsum("hd,khd->hk", query, key[seen]) * query.shape[-1] ** -0.5
                out.append(torch.einsum("hk,khd->hd", scores.softmax(-1), value[seen]))
                token += 1
        return torch.stack(out)

    def run(self, library: ctypes.CDLL, dtype: torch.dtype, window: int) -> Tensor:
        """The kernel's answer, `[T, num_heads, head_dim]`."""
        query, cache = self.query.to(dtype), self.cache.to(dtype)
        out = torch.full_like(query, torch.nan)
        starts = torch.tensor([0, *self.num_queries]).cumsum(0).to(torch.int32)
        seq_lens = torch.tensor(self.seq_lens, dtype=torch.int32)
        kv = PagedKv(
            cache.data_ptr(),
            self.block_table.data_ptr(),
            cache.shape[1],
            self.num_kv_heads,
            BLOCK_SIZE,
            query.shape[-1],
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
            query.shape[-1] ** -0.5,
        )
        name = {torch.float32: "float32", torch.bfloat16: "bfloat16"}[dtype]
        assert getattr(library, f"paged_attention_{name}")(params, len(query)) == 0
        return out


@pytest.mark.parametrize("window", [0, 5, 17])
@pytest.mark.parametrize("head_dim", [16, 64, 128])
def test_mixed_batch_matches_dense_attention(
    library: ctypes.CDLL, head_dim: int, window: int
) -> None:
    batch = Batch([1, 15, 16, 17, 40, 33], [1, 1, 16, 2, 1, 20], (4, 2), head_dim)
    out = batch.run(library, torch.float32, window)
    torch.testing.assert_close(out.double(), batch.expected(window), rtol=1e-5, atol=1e-5)


def test_bfloat16_differs_by_its_own_rounding(library: ctypes.CDLL) -> None:
    batch = Batch([50, 7], [3, 7], (8, 2), 64)
    for name in ("query", "cache"):
        setattr(batch, name, getattr(batch, name).bfloat16().float())
    batch.keys = [key.bfloat16() for key in batch.keys]
    batch.values = [value.bfloat16() for value in batch.values]
    out = batch.run(library, torch.bfloat16, 0)
    torch.testing.assert_close(out.double(), batch.expected(0), rtol=2**-8, atol=1e-3)


def test_bits_of_a_row_do_not_depend_on_the_batch(library: ctypes.CDLL) -> None:
    batch = Batch([40, 100, 33], [1, 9, 33], (2, 1), 64)
    together = batch.run(library, torch.float32, 0)
    rows, token = batch.rows, 0
    query = batch.query
    for row, (length, count) in enumerate([(40, 1), (100, 9), (33, 33)]):
        batch.seq_lens, batch.num_queries = [length], [count]
        batch.rows = rows[row : row + 1].clone()
        batch.query = query[token : token + count].clone()
        assert torch.equal(batch.run(library, torch.float32, 0), together[token : token + count])
        token += count


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
    log = b" " * size
    nvrtc.nvrtcGetProgramLog(program, log)
    assert status == nvrtc.nvrtcResult.NVRTC_SUCCESS, log.decode()
