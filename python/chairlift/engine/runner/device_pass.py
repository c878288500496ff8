"""The forward passes of a process on its device: block tables, inputs of steps, recordings.

Everything of a step but its draws. Block tables live on the device, and the inputs of a step are
sent there in one copy (`staging.py`); what is launched is a recording where one fits
(`recordings.py`).
"""

from collections.abc import Callable
from functools import partial, reduce

import torch
from torch import Tensor

from chairlift import _core
from chairlift.attention.cuda import CudaBackend, WorkLimits
from chairlift.attention.metadata import AttentionMetadata, AttentionWork
from chairlift.engine.runner.recordings import (
    Captured,
    Recordings,
    StepSizes,
    WorkSizes,
    pad,
    pad_tiles,
)
from chairlift.engine.runner.shape import RunnerShape
from chairlift.engine.runner.staging import Inputs, Staging
from chairlift.kernels.cuda import draw_ops, ops
from chairlift.kernels.cuda.device import Accelerator, Event
from chairlift.model.forward.transformer import Transformer
from chairlift.model.parts.recurrent import cut_states

ShareIds = Callable[[Tensor], None]
"""Writes the ids `[T]` of rank 0, which alone draws, over those of this process."""


class _Pairs:
    """Pairs of int32 on the device."""

    def __init__(self, accelerator: Accelerator, limit: int) -> None:
        self._device = torch.zeros(limit, 2, dtype=torch.int32, device=accelerator.device)

    def send(self, pairs: Tensor) -> Tensor:
        """Return pairs `[N, 2]` of the host on the device, until the next are sent."""
        sent = self._device[: len(pairs)]
        sent.copy_(pairs, non_blocking=True)
        return sent


class DevicePass:
    """What a process computes of each step on its device.

    Attributes:
        staging: The inputs on both sides.
        recordings: Launches of padded steps.
        logits: float32 `[S, vocab_size]`, of the step that the device computes.
        last_token: int32 `[R + 1]`, on the device: the last that each row has drawn.
        table_shape: KV groups, lines and columns of the block tables; the last line is the probe's,
            whose blocks are the null block.
        max_moves: Copies of recurrent states of a step, at most.
    """

    def __init__(
        self,
        model: Transformer,
        backend: CudaBackend,
        kv_cache: Tensor,
        shape: RunnerShape,
        accelerator: Accelerator,
        state_pool: Tensor | None = None,
        share_ids: ShareIds | None = None,
    ) -> None:
        """Allocate all that a step takes.

        Args:
            model: With its weights on the device.
            backend: The model's attention backend.
            kv_cache: On the device.
            shape: Sizes.
            accelerator: The device.
            state_pool: States of a hybrid, `[rows, numbers]`: all rows, the probe, the snapshots.
            share_ids: Gives all ranks the same ids; None where there is one rank.
        """
        self._model = model
        self._kv_cache = kv_cache
        self._shape = shape
        self._accelerator = accelerator
        self._share_ids = share_ids
        spec, device, rows = model.config.spec, accelerator.device, shape.max_num_seqs
        self._groups = list(zip(spec.kv_windows, spec.group_shapes, strict=True))
        limits = [
            WorkLimits.of(
                max_num_seqs=rows,
                max_num_batched_tokens=shape.max_num_batched_tokens,
                max_context_len=shape.max_blocks_per_row * shape.block_size,
                num_pool_tokens=kv_cache.shape[2] * shape.block_size,
                num_kv_heads=sizes.num_kv_heads,
                queries_per_kv_head=sizes.queries_per_kv_head,
            )
            for _, sizes in self._groups
        ]
        self._limits = reduce(WorkLimits.at_least, limits)
        max_kv_heads = max(sizes.num_kv_heads for _, sizes in self._groups)
        backend.reserve(self._limits, rows, max_kv_heads, max(spec.head_dims))
        self.staging = Staging(
            accelerator,
            max_num_seqs=rows,
            max_num_tokens=shape.max_num_batched_tokens,
            max_num_samples=rows + shape.max_num_drafts,
            num_groups=shape.num_kv_groups,
            max_tiles=self._limits.max_tiles,
            max_splits=self._limits.max_splits,
            # The last one is for parts of a step, and for the probe.
            num_hosts=shape.steps_in_flight + 1,
        )
        num_samples = len(self.staging.device.drawn_rows)
        self.logits = torch.empty(num_samples, spec.vocab_size, dtype=torch.float32, device=device)
        self.last_token = torch.zeros(rows + 1, dtype=torch.int32, device=device)
        self.table_shape = shape.num_kv_groups, rows + 1, shape.max_blocks_per_row
        self._tables = torch.zeros(self.table_shape, dtype=torch.int32, device=device)
        self._updates = _Pairs(accelerator, self._tables.numel())
        self._state_pool = state_pool
        self.states = None if state_pool is None else cut_states(spec, state_pool)
        # A row loads a state, gets a copy of one, and is saved once at most.
        self.max_moves = 0 if state_pool is None else 3 * rows
        self._moves = _Pairs(accelerator, self.max_moves)
        shapes = [sizes for _, sizes in self._groups]
        self.recordings = Recordings(shape, shapes, self._limits.max_tiles)

    @torch.inference_mode()
    def record(self, draw: Callable[[int], None] | None, on_capture: Captured | None) -> None:
        """Record the launches of padded steps; see `Recordings.record`."""
        # Recording may run the launches: over padding, which writes nothing.
        host = self.staging.hosts[0]
        host.slot_mapping.fill_(-1)
        host.drawn_rows.fill_(-1)
        host.tiles.fill_(-1)
        host.top_p.fill_(1)
        self.staging.upload(0, host.end_of_splits([0] * self._shape.num_kv_groups))
        recorder = self._accelerator.recorder()
        self.recordings.record(recorder, self._compute, draw, on_capture)

    def mark(self) -> Event:
        """Mark the end of the launches so far."""
        return self._accelerator.record()

    def set_blocks(self, entries: Tensor) -> None:
        """Write to the block tables; int32 `[N, 2]`: places in all of them, and blocks."""
        sent = self._updates.send(entries)
        self._tables.view(-1).index_put_((sent[:, 0],), sent[:, 1])

    def copy_blocks(self, pairs: Tensor) -> None:
        """Copy whole blocks within the pool; int32 `[N, 2]`: source and target."""
        self._model.copy_blocks(self._kv_cache, pairs)

    def copy_states(self, moves: Tensor) -> None:
        """Copy recurrent states between rows by one launch; int32 `[N, 2]`: target and source."""
        assert self._state_pool is not None, "of a hybrid"
        ops.copy_states(self._state_pool, self._moves.send(moves))

    def launch(self, turn: int, sizes: StepSizes) -> None:
        """Launch a forward pass up to its logits.

        Args:
            turn: Number of the host's side of the inputs, which the step before does not use.
            sizes: What the step has; the inputs are written.
        """
        host, recordings = self.staging.hosts[turn], self.recordings
        padded = recordings.padded(sizes)
        pad(host, sizes, padded, recordings.num_draws(sizes.num_samples))
        work = self._cut(host, sizes.num_rows, recordings.tile_rows(padded.num_tokens))
        if not padded.is_decodes:
            pad_tiles(host, work)
        self.staging.upload(turn, host.end_of_splits(work.num_splits))
        forward = recordings.forward(padded, work) or partial(self._compute, sizes, work)
        forward()

    def _cut(self, host: Inputs, num_rows: int, tile_rows: int) -> WorkSizes:
        """Split the attention of each KV group over the rows into work items."""
        counts: tuple[list[int], list[int], list[int]] = [], [], []
        for group, (window, heads) in enumerate(self._groups):
            num_splits, num_tiles, split_rows = _core.attention_work(
                host.rows[:num_rows],
                host.query_start_loc[: num_rows + 1],
                host.seq_lens[:num_rows],
                host.splits[group],
                host.tiles[group],
                num_kv_heads=heads.num_kv_heads,
                group=heads.queries_per_kv_head,
                split_len=self._limits.split_len,
                decode_rows=ops.MAX_DECODE_ROWS,
                tile_rows=tile_rows,
                window=window or 0,
            )
            host.num_splits[group] = num_splits
            for part, count in zip(counts, (num_splits, split_rows, num_tiles), strict=True):
                part.append(count)
        return WorkSizes(*counts, tile_rows)

    def _compute(self, sizes: StepSizes, work: WorkSizes) -> None:
        """Launch a forward pass up to its logits over the inputs on the device."""
        num_rows, num_tokens, num_samples, is_decodes = sizes
        device = self.staging.device
        input_ids, rows = device.input_ids[:num_tokens], device.rows[:num_rows]
        query_start_loc = device.query_start_loc[: num_rows + 1]
        draw_ops.gather_tokens(input_ids, self.last_token, rows, query_start_loc)
        if self._share_ids is not None:
            self._share_ids(input_ids)
        metadata = AttentionMetadata(
            rows=rows,
            query_start_loc=query_start_loc,
            seq_lens=device.seq_lens[:num_rows],
            positions=device.positions[:num_tokens],
            slot_mapping=device.slot_mapping[:, :num_tokens],
            block_tables=self._tables,
            block_size=self._shape.block_size,
            work=tuple(
                AttentionWork(
                    splits=device.splits[group] if num_splits else None,
                    split_rows=split_rows,
                    num_splits=device.num_splits[group],
                    tiles=device.tiles[group, :num_tiles],
                    tile_rows=work.tile_rows,
                )
                for group, (num_splits, split_rows, num_tiles) in enumerate(
                    zip(work.num_splits, work.split_rows, work.num_tiles, strict=True)
                )
            ),
        )
        # Where every row decodes, its tokens sample in order.
        selected = None if is_decodes else device.sample_rows[:num_samples]
        batch = (input_ids, metadata, self._kv_cache, selected, None)
        hidden = self._model.forward(*batch, self.states)
        if num_samples:
            self._model.logits(hidden, out=self.logits[:num_samples])
