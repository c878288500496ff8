"""What rank 0 tells the others, as int32 numbers: the inputs of a step, and which logits it wants.

A message says all that a step reads. No rank keeps tables of requests beside those of rank 0, so
that ranks cannot disagree about them.
"""

from enum import IntEnum
from typing import NamedTuple

import torch
from torch import Tensor

from chairlift.attention.metadata import AttentionMetadata
from chairlift.engine.runner.shape import RunnerShape

_HEADER = 7


class Kind(IntEnum):
    """What a message asks for; it is the first number."""

    FORWARD = 0
    LOGITS = 1
    COPY_BLOCKS = 2
    COPY_STATES = 3
    SET_ADAPTER = 4
    SET_BLOCKS = 5


def max_numbers(shape: RunnerShape) -> int:
    """Return the numbers of the longest message."""
    tokens, rows = shape.max_num_batched_tokens, shape.max_num_seqs
    tables = shape.num_kv_groups * rows * shape.max_blocks_per_row
    # A token may be selected twice: to draw behind it, and for its score.
    return _HEADER + tokens * (5 + shape.num_kv_groups) + 3 * rows + 1 + tables


def forward_message(
    input_ids: Tensor,
    metadata: AttentionMetadata,
    selected: Tensor | None,
    adapters: Tensor | None,
) -> Tensor:
    """Return the message `[N]` about a forward pass; see `Transformer.forward`."""
    num_tokens, num_rows = len(input_ids), len(metadata.rows)
    num_selected = -1 if selected is None else len(selected)
    num_columns = -(-int(metadata.seq_lens.max()) // metadata.block_size)
    tables = metadata.block_tables[:, :, :num_columns].index_select(1, metadata.rows)
    has_adapters = adapters is not None
    sizes = num_tokens, num_rows, num_selected, len(tables), tables.shape[2], has_adapters
    parts = [
        torch.tensor([Kind.FORWARD, *sizes], dtype=torch.int32),
        input_ids,
        metadata.positions,
        metadata.rows,
        metadata.query_start_loc,
        metadata.seq_lens,
        metadata.slot_mapping.flatten(),
        tables.flatten(),
    ]
    parts += [part for part in (selected, adapters) if part is not None]
    return torch.cat(parts)


def logits_message(first: int, count: int) -> Tensor:
    """Return the message `[3]` about the logits of some rows of the last forward pass."""
    return torch.tensor([Kind.LOGITS, first, count], dtype=torch.int32)


def copy_message(kind: Kind, pairs: Tensor) -> Tensor:
    """Return the message about pairs of numbers, int32 `[N, 2]`, such as blocks to be copied."""
    return torch.cat([torch.tensor([kind], dtype=torch.int32), pairs.flatten()])


def adapter_message(slot: int, number: int) -> Tensor:
    """Return the message `[3]` about the adapter of a slot; the number 0 is none."""
    return torch.tensor([Kind.SET_ADAPTER, slot, number], dtype=torch.int32)


class ForwardInputs(NamedTuple):
    """The inputs of a forward pass, as `Transformer.forward` takes them."""

    input_ids: Tensor
    metadata: AttentionMetadata
    selected: Tensor | None
    adapters: Tensor | None


class Inbox:
    """Memory for the inputs of a step, which stays where it is: a recorded pass can run again."""

    def __init__(self, shape: RunnerShape) -> None:
        """Allocate it for the largest step."""
        tokens, rows, groups = (
            shape.max_num_batched_tokens,
            shape.max_num_seqs,
            shape.num_kv_groups,
        )
        self.message = _int32(max_numbers(shape))
        self._block_size = shape.block_size
        self._input_ids, self._positions = _int32(tokens), _int32(tokens)
        self._selected, self._adapters = _int32(2 * tokens), _int32(tokens)
        self._query_start_loc, self._seq_lens = _int32(rows + 1), _int32(rows)
        self._slot_mapping = _int32(groups, tokens)
        # The probe has a row, too.
        self._block_tables = _int32(groups, rows + 1, shape.max_blocks_per_row)
        self._rows = _int32(rows)

    def read(self, length: int) -> ForwardInputs:
        """Copy the inputs of a forward pass out of the message, whose numbers are so many."""
        message = self.message[:length]
        header = message[1:_HEADER].tolist()
        tokens, rows, num_selected, groups, columns, has_adapters = header
        tables = groups * rows * columns
        sizes = [tokens, tokens, rows, rows + 1, rows, groups * tokens, tables]
        sizes += [max(0, num_selected), tokens if has_adapters else 0]
        parts = torch.split(message[_HEADER:], sizes)
        metadata = AttentionMetadata(
            rows=self._rows[:rows],
            query_start_loc=self._query_start_loc[: rows + 1],
            seq_lens=self._seq_lens[:rows],
            positions=self._positions[:tokens],
            slot_mapping=self._slot_mapping[:, :tokens],
            block_tables=self._block_tables,
            block_size=self._block_size,
            views=(rows, tokens, has_adapters) if num_selected < 0 else None,
        )
        selected = None if num_selected < 0 else self._selected[:num_selected]
        into = (
            *(self._input_ids[:tokens], metadata.positions, metadata.rows),
            *(metadata.query_start_loc, metadata.seq_lens, metadata.slot_mapping),
        )
        *others, block_tables, selected_tokens, adapter_slots = parts
        for place, part in zip(into, others, strict=True):
            place.copy_(part.view(place.shape))
        self._block_tables[:, metadata.rows, :columns] = block_tables.view(groups, rows, columns)
        self._selected[: max(0, num_selected)] = selected_tokens
        self._adapters[: len(adapter_slots)] = adapter_slots
        adapters = self._adapters[:tokens] if has_adapters else None
        return ForwardInputs(self._input_ids[:tokens], metadata, selected, adapters)


def _int32(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int32)
