"""How long attention takes on a GPU: recorded launches over keys and values that no cache holds.

It needs PyTorch alone.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch
from chairlift import _core
from chairlift.attention.backend import Scoring
from chairlift.attention.cuda import TILE_ROWS, CudaBackend, WorkLimits
from chairlift.attention.metadata import AttentionMetadata, AttentionWork
from chairlift.kernels.cuda import ops
from chairlift.kernels.cuda.device import Accelerator
from torch import Tensor

BLOCK_SIZE: Final = 16
FOREIGN_BYTES: Final = 512 << 20
"""Keys and values, or weights, that are read before the same come again: more than caches hold."""
_DTYPE: Final = torch.bfloat16
_SIDE: Final = 8192
"""Of the square matrices that tell what the arithmetic can do at most."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A step, by the tokens of its rows."""

    name: str
    seq_lens: Sequence[int]
    num_queries: Sequence[int]
    num_heads: int = 32
    num_kv_heads: int = 8
    head_dim: int = 128

    @property
    def kv_bytes(self) -> int:
        """Of keys and values, each read once."""
        return 2 * sum(self.seq_lens) * self.num_kv_heads * self.head_dim * _DTYPE.itemsize

    @property
    def num_operations(self) -> int:
        """Multiplications and additions of both products, of the visible pairs alone."""
        rows = zip(self.seq_lens, self.num_queries, strict=True)
        pairs = sum(q * (2 * length - q + 1) // 2 for length, q in rows)
        return 4 * pairs * self.num_heads * self.head_dim


class PagedAttention:
    """The attention of one layer over a batch, with everything it reads on the device."""

    def __init__(self, batch: Batch, accelerator: Accelerator, num_copies: int = 1) -> None:
        """Allocate `num_copies` caches, each with blocks of the rows in random order."""
        self.batch = batch
        device, rows = accelerator.device, len(batch.seq_lens)
        columns = -(-max(batch.seq_lens) // BLOCK_SIZE)
        counts = [-(-length // BLOCK_SIZE) for length in batch.seq_lens]
        self.backend = CudaBackend(device)
        shape = (num_copies, 1 + sum(counts), batch.num_kv_heads, BLOCK_SIZE, batch.head_dim)
        self.caches = self.backend.allocate(*shape, dtype=_DTYPE)
        self.caches.normal_()
        self.query = torch.randn(
            sum(batch.num_queries), batch.num_heads, batch.head_dim, dtype=_DTYPE, device=device
        )
        self.out = torch.empty_like(self.query)
        self.sinks: Tensor | None = None
        table = torch.zeros(1, rows, columns, dtype=torch.int32)
        order = 1 + torch.randperm(sum(counts), generator=torch.Generator().manual_seed(0)).int()
        for row, blocks in enumerate(torch.split(order, counts)):
            table[0, row, : len(blocks)] = blocks
        self.metadata = self._metadata(table, device)

    def _metadata(self, table: Tensor, device: torch.device) -> AttentionMetadata:
        batch, rows = self.batch, len(self.batch.seq_lens)
        queries_per_kv_head = batch.num_heads // batch.num_kv_heads
        limits = WorkLimits.of(
            max_num_seqs=rows,
            max_num_batched_tokens=sum(batch.num_queries),
            max_context_len=max(batch.seq_lens),
            num_pool_tokens=BLOCK_SIZE * self.caches.shape[2],
            num_kv_heads=batch.num_kv_heads,
            queries_per_kv_head=queries_per_kv_head,
        )
        self.backend.reserve(limits, rows, batch.num_kv_heads, batch.head_dim)
        starts = torch.tensor([0, *batch.num_queries], dtype=torch.int32).cumsum(0).int()
        lengths = torch.tensor(batch.seq_lens, dtype=torch.int32)
        splits = torch.zeros(limits.max_splits, 8, dtype=torch.int32)
        tiles = torch.zeros(limits.max_tiles, 3, dtype=torch.int32)
        lines = torch.arange(rows, dtype=torch.int32)
        num_splits, num_tiles, split_rows = _core.attention_work(
            lines,
            starts,
            lengths,
            splits,
            tiles,
            num_kv_heads=batch.num_kv_heads,
            group=queries_per_kv_head,
            split_len=limits.split_len,
            decode_rows=ops.MAX_DECODE_ROWS,
            tile_rows=max(TILE_ROWS),
            window=0,
        )
        work = AttentionWork(
            splits=splits[:num_splits].to(device) if num_splits else None,
            split_rows=split_rows,
            num_splits=torch.tensor([num_splits], dtype=torch.int32, device=device),
            tiles=tiles[:num_tiles].to(device),
            tile_rows=max(TILE_ROWS),
        )
        none = torch.zeros(0, dtype=torch.int32, device=device)
        return AttentionMetadata(
            rows=torch.arange(rows, dtype=torch.int32, device=device),
            query_start_loc=starts.to(device),
            seq_lens=lengths.to(device),
            positions=none,
            slot_mapping=none,
            block_tables=table.to(device),
            block_size=BLOCK_SIZE,
            work=(work,),
        )

    def attend(self, copy: int = 0) -> Tensor:
        """Compute the attention over one of the caches."""
        scale = self.batch.head_dim**-0.5
        return self.backend.attend(
            *(self.query, self.caches[copy], self.metadata),
            group=0,
            scoring=Scoring(scale, sinks=self.sinks),
            out=self.out,
        )

    def gathered(self, row: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return query, key and value of a row, `[1, heads, tokens, head_dim]`."""
        length, starts = self.batch.seq_lens[row], self.metadata.query_start_loc.tolist()
        blocks = self.metadata.block_tables[0, row, : -(-length // BLOCK_SIZE)].long()
        # [2, blocks, heads, block_size, head_dim] -> [2, heads, tokens, head_dim]
        pair = self.caches[0][:, blocks].transpose(1, 2).flatten(2, 3)[:, :, :length]
        query = self.query[starts[row] : starts[row + 1]].transpose(0, 1)
        return query[None], pair[:1], pair[1:]


def attention_seconds(batch: Batch, accelerator: Accelerator, repeat: int) -> float:
    """Return the time of one layer's attention, over caches that are not in the processor's."""
    count = max(1, min(64, FOREIGN_BYTES // batch.kv_bytes))
    attention = PagedAttention(batch, accelerator, count)

    def launches() -> None:
        for copy in range(count):
            attention.attend(copy)

    return seconds_of(accelerator.recorder().capture(launches), repeat) / count


Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Attention of `query` `[rows, num_heads, queries, head_dim]` to gathered keys and values."""


def torch_attention(batch: Batch) -> Attend:
    """Return PyTorch's attention for rows of one length, each with one query or all."""
    return partial(
        torch.nn.functional.scaled_dot_product_attention,
        is_causal=batch.num_queries[0] == batch.seq_lens[0],
        enable_gqa=True,
    )


def gathered_seconds(batch: Batch, accelerator: Accelerator, repeat: int, attend: Attend) -> float:
    """Return the time of another's attention over keys and values of the same shape, gathered.

    Only for rows of one length: that is what it takes.
    """
    count = max(1, min(64, FOREIGN_BYTES // batch.kv_bytes))
    rows, length, queries = len(batch.seq_lens), batch.seq_lens[0], batch.num_queries[0]

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=_DTYPE, device=accelerator.device)

    query = random(rows, batch.num_heads, queries, batch.head_dim)
    key, value = (random(count, rows, batch.num_kv_heads, length, batch.head_dim) for _ in range(2))

    def launches() -> None:
        for copy in range(count):
            attend(query, key[copy], value[copy])

    return seconds_of(accelerator.recorder().capture(launches), repeat) / count


def seconds_of(run: Callable[[], object], repeat: int) -> float:
    """Return the median time of launches on the current stream."""
    seconds = []
    for _ in range(repeat + 2):
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        before.record()
        run()
        after.record()
        after.synchronize()
        seconds.append(before.elapsed_time(after) * 1e-3)
    return float(statistics.median(seconds[2:]))


def copy_bytes_per_s(accelerator: Accelerator, repeat: int) -> float:
    """Return the bytes that the memory reads and write in a second when it copies."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device=accelerator.device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / seconds_of(lambda: target.copy_(source), repeat)


def product_operations_per_s(accelerator: Accelerator, repeat: int) -> float:
    """Return the multiplications and additions per second of a large matrix product by cuBLAS."""
    a = torch.randn(_SIDE, _SIDE, dtype=_DTYPE, device=accelerator.device)
    out = torch.empty_like(a)
    return 2 * _SIDE**3 / seconds_of(lambda: torch.mm(a, a, out=out), repeat)
