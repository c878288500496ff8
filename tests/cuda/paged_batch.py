"""A ragged batch over a shuffled cache, and the attention that it should give."""

import torch
from torch import Tensor

from tests.cuda.emulation import guarded
from tests.cuda.instantiations import BLOCK_SIZE
from tests.kernels import reference


class PagedBatch:
    """Sequences with their last tokens as queries. What nobody may read is NaN."""

    def __init__(
        self,
        seq_lens: list[int],
        num_queries: list[int],
        heads: tuple[int, int],
        head_dim: int,
        dtype: torch.dtype = torch.bfloat16,
        kv_dtype: torch.dtype | None = None,
        window: int = 0,
        softcap: float = 0.0,
        sinks: bool = False,
        seed: int = 0,
    ) -> None:
        random = torch.Generator().manual_seed(seed)
        self.seq_lens, self.num_queries = seq_lens, num_queries
        self.num_heads, self.num_kv_heads = heads
        self.head_dim, self.dtype, self.kv_dtype = head_dim, dtype, kv_dtype or dtype
        self.window, self.softcap = window, softcap
        self.scale = 2.0 * head_dim**-0.5  # sharper than usual: mistakes show
        self.sinks = torch.randn(heads[0], generator=random) if sinks else None
        is_narrow = self.kv_dtype.itemsize == 1
        self.kv_scales = torch.rand(2, heads[1], generator=random) / 20 if is_narrow else None
        self.query = [self._draw(random, n, heads[0]).to(dtype) for n in num_queries]
        self.kv = [self._draw_kv(random, n) for n in seq_lens]
        self.rows = torch.randperm(len(seq_lens) + 1, generator=random)[: len(seq_lens)].int()
        self._fill_cache(random)

    def _draw(self, random: torch.Generator, *shape: int) -> Tensor:
        return torch.randn(*shape, self.head_dim, generator=random)

    def _draw_kv(self, random: torch.Generator, length: int) -> Tensor:
        """As stored, `[2, length, num_kv_heads, head_dim]`."""
        numbers = self._draw(random, 2, length, self.num_kv_heads)
        if self.kv_scales is not None:
            numbers = (numbers / self.kv_scales[:, None, :, None]).clamp(-448, 448)
        return numbers.to(self.kv_dtype)

    def _fill_cache(self, random: torch.Generator) -> None:
        counts = [-(-length // BLOCK_SIZE) for length in self.seq_lens]
        self.num_blocks = 2 + sum(counts)  # the null block, and one that nobody owns
        free = (1 + torch.randperm(self.num_blocks - 1, generator=random)).int()
        shape = (2, self.num_blocks, self.num_kv_heads, BLOCK_SIZE, self.head_dim)
        cache = torch.full(shape, torch.nan).to(self.kv_dtype)
        # Lines end where the longest sequence does: what lies behind belongs to the next line.
        self.block_table = torch.full((len(counts) + 1, max(counts)), 2**30, dtype=torch.int32)
        for row, length, count, kv in zip(
            self.rows.tolist(), self.seq_lens, counts, self.kv, strict=True
        ):
            blocks, free = free[:count], free[count:]
            self.block_table[row, :count] = blocks
            position = torch.arange(length)
            block, offset = blocks[position // BLOCK_SIZE], position % BLOCK_SIZE
            cache.view(torch.uint8 if self.kv_dtype.itemsize == 1 else self.kv_dtype)[
                :, block, :, offset
            ] = kv.view(torch.uint8 if self.kv_dtype.itemsize == 1 else self.kv_dtype).permute(
                1, 0, 2, 3
            )
        self._hide_what_left_the_window(cache)
        self.cache, self.heads_per_block = guarded(cache), self.num_kv_heads

    def _hide_what_left_the_window(self, cache: Tensor) -> None:
        """Blocks that no query of a row sees any more belong to somebody else."""
        if self.window == 0:
            return
        for row, length, count in zip(
            self.rows.tolist(), self.seq_lens, self.num_queries, strict=True
        ):
            gone = max(0, length - count - self.window + 1) // BLOCK_SIZE
            self.block_table[row, :gone] = 0

    def move_apart(self) -> None:
        """Put what another layer has in each block between the blocks: 64 numbers before."""
        two, num_blocks, num_heads, *head = self.cache.shape
        own, self.heads_per_block = self.cache[0, 0].numel(), num_heads + 1
        room = self.heads_per_block * own // num_heads
        numbers = guarded(torch.full((two, num_blocks, room), torch.nan).to(self.kv_dtype))
        moved = numbers[:, :, 64 : 64 + own].unflatten(2, (num_heads, *head))
        as_bytes = torch.uint8 if self.kv_dtype.itemsize == 1 else self.kv_dtype
        moved.view(as_bytes).copy_(self.cache.view(as_bytes))
        self.cache = moved

    @property
    def group(self) -> int:
        return self.num_heads // self.num_kv_heads

    @property
    def starts(self) -> Tensor:
        """`[R + 1]`: where each row's queries start."""
        return torch.tensor([0, *self.num_queries]).cumsum(0).to(torch.int32)

    def alone(self, index: int) -> "PagedBatch":
        """The same sequence in a batch of its own, over the same cache."""
        one = object.__new__(PagedBatch)
        one.__dict__ = dict(self.__dict__)
        one.seq_lens, one.num_queries = [self.seq_lens[index]], [self.num_queries[index]]
        one.query, one.kv = [self.query[index]], [self.kv[index]]
        one.rows = self.rows[index : index + 1].clone()
        return one

    def expected(self) -> Tensor:
        """The dense twin's answer in float64, `[T, num_heads, head_dim]`."""
        scales = torch.ones(2, self.num_kv_heads) if self.kv_scales is None else self.kv_scales
        out = []
        for query, kv in zip(self.query, self.kv, strict=True):
            key, value = kv.double() * scales.double()[:, None, :, None]
            out.append(
                reference.attention(
                    query.double(),
                    key,
                    value,
                    self.scale,
                    self.window or None,
                    self.softcap,
                    self.sinks,
                )
            )
        return torch.cat(out)

    def error(self, out: Tensor) -> float:
        """The largest difference from the twin, as a share of what rounding may cost."""
        rounding = 2**-8 if self.dtype == torch.bfloat16 else 2**-11
        values = max(float(kv[1].double().abs().max()) for kv in self.kv)
        if self.kv_scales is not None:
            values *= float(self.kv_scales[1].max())
        difference = (out.double() - self.expected()).abs().max()
        return float(difference) / (rounding * max(values, 1.0))
