"""The inputs of attention beside queries, keys and values."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class AttentionWork:
    """How a GPU's attention over a step is cut, for the layers of a KV group.

    See `_core.attention_work`; all tensors are int32.
    """

    splits: Tensor | None
    """`[., 8]`: of rows with few queries; None where there are none."""
    split_rows: int
    """The most packed rows of a row in `splits`."""
    num_splits: Tensor
    """`[1]`: how many of `splits` there are; only the device reads it."""
    tiles: Tensor
    """`[num_tiles, 3]`: of rows with many queries."""
    tile_rows: int
    """Packed rows of a tile."""


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """A ragged batch: T tokens of R rows, each row's tokens adjacent, in G KV groups.

    All tensors are int32, on the device of the keys and values.
    """

    rows: Tensor
    """`[R]`: line of each row in the block tables."""
    query_start_loc: Tensor
    """`[R + 1]`: where each row's tokens start."""
    seq_lens: Tensor
    """`[R]`: tokens of each row after this step; its queries are the last of them."""
    positions: Tensor
    """`[T]`: place of each token in its row."""
    slot_mapping: Tensor
    """`[G, T]`: block * block_size + offset, where each token's key and value go."""
    block_tables: Tensor
    """`[G, max_num_seqs, max_blocks_per_row]`: the blocks of each row, in order."""
    block_size: int
    """Tokens of a block."""
    views: tuple[int, ...] | None = None
    """Key for reusing a recording: batches with an equal key are views of the same memory. None
    disables reuse."""
    work: tuple[AttentionWork, ...] = ()
    """`[G]` on a GPU; a CPU needs none."""
