"""Runs plans on a device that works beside the engine thread.

    apply   host tables, as on a CPU, and inputs, where they are sent from; new blocks also to the
            device's block tables
    move    blocks to and from host memory, beside the step that is in flight
    run     inputs to the device, launches (recorded ones, `recordings.py`), tokens back
    wait    until the tokens are there

The token that a row drew last stays on the device: the next step is launched before the host knows
it. The host waits for nothing else, unless a draw depends on earlier tokens (`device_draws.py`).
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial, reduce

import torch
from torch import Tensor

from chairlift import _core
from chairlift.attention.cuda import CudaBackend, WorkLimits
from chairlift.attention.metadata import AttentionMetadata, AttentionWork
from chairlift.core.plan import PlanView
from chairlift.engine.runner.device_draws import DeviceSampler, Pending
from chairlift.engine.runner.model_runner import ModelRunner
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
from chairlift.engine.runner.step_inputs import SamplingInputs, StateMoves, StepInputs
from chairlift.kernels.cuda import draw_ops, ops
from chairlift.kernels.cuda.device import Accelerator, Event
from chairlift.model.forward.transformer import Transformer
from chairlift.model.parts.recurrent import cut_states


class _Pairs:
    """Pairs of int32 that go to the device.

    Attributes:
        hosts: `[., 2]`, one for each step under way, which may still be read when the next is
            written.
    """

    def __init__(self, accelerator: Accelerator, limit: int, num_hosts: int) -> None:
        self.hosts = [
            accelerator.host_buffer(limit, 2, dtype=torch.int32) for _ in range(num_hosts)
        ]
        self._device = torch.zeros(limit, 2, dtype=torch.int32, device=accelerator.device)

    def send(self, host: int, count: int) -> Tensor:
        """Return the first pairs of a host's side on the device, until the next are sent."""
        sent = self._device[:count]
        sent.copy_(self.hosts[host][:count], non_blocking=True)
        return sent


class DeviceRunner(ModelRunner):
    """A `ModelRunner` whose tables of blocks and last tokens are on a device."""

    def __init__(
        self,
        model: Transformer,
        backend: CudaBackend,
        kv_cache: Tensor,
        shape: RunnerShape,
        clock: Callable[[], int],
        accelerator: Accelerator,
        on_capture: Captured | None = None,
        host_pool: Tensor | None = None,
        state_pool: Tensor | None = None,
    ) -> None:
        """Allocate all that a step takes, and record the launches of padded steps.

        Args:
            model: With its weights on the device.
            backend: The model's attention backend.
            kv_cache: On the device.
            shape: Sizes.
            clock: Returns nanoseconds.
            accelerator: The device.
            on_capture: Called after each recording.
            host_pool: Blocks in host memory that the device can reach.
            state_pool: States of a hybrid, `[rows, numbers]`: all rows, the probe, the snapshots.
        """
        self._accelerator = accelerator
        self._shape = shape
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
        self._staging = Staging(
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
        whole_steps = self._staging.hosts[: shape.steps_in_flight]
        states = None if state_pool is None else cut_states(spec, state_pool)
        super().__init__(model, kv_cache, shape, clock, host_pool, whole_steps, states)
        self._state_pool = state_pool
        # -1 marks a token that the host does not know yet; `apply_plan` copies it.
        self._last_token.fill_(-1)
        # One line more than there are rows: the probe's, whose blocks are the null block.
        tables = (shape.num_kv_groups, rows + 1, shape.max_blocks_per_row)
        self._device_tables = torch.zeros(tables, dtype=torch.int32, device=device)
        num_hosts = len(self._buffers)
        self._updates = _Pairs(accelerator, self._block_tables.numel(), num_hosts)
        # A row loads a state, gets a copy of one, and is saved once at most.
        num_moves = 0 if state_pool is None else 3 * rows
        self._moves = _Pairs(accelerator, num_moves, num_hosts)
        self._draws = DeviceSampler(accelerator, self._staging, rows, spec.vocab_size)
        shapes = [sizes for _, sizes in self._groups]
        self._recordings = Recordings(shape, shapes, self._limits.max_tiles)
        self._record(on_capture)
        self._before_step: Event | None = None

    def apply(self, plan: Tensor) -> StepInputs:
        """Apply a plan; send new blocks to the device's tables too.

        Args:
            plan: int32 `[num_numbers]`, from `Scheduler.schedule`.
        """
        turn = self._num_applied % len(self._buffers)
        inputs = super().apply(plan)
        if inputs.states is not None:
            inputs = inputs._replace(states=self._send(inputs.states, turn))
        updates = PlanView.of(plan.numpy()).block_updates
        if len(updates):
            group, row, column, block = updates.T
            _, num_lines, num_columns = self._device_tables.shape
            entries, count = self._updates.hosts[turn].numpy(), len(updates)
            entries[:count, 0] = (group * num_lines + row) * num_columns + column
            entries[:count, 1] = block
            sent = self._updates.send(turn, count)
            self._device_tables.view(-1).index_put_((sent[:, 0],), sent[:, 1])
        return inputs

    def _send(self, moves: StateMoves, turn: int) -> StateMoves:
        """Return copies of states as the device reads them, after those of the step before."""
        counts = [len(part) for part in moves]
        torch.cat(moves, out=self._moves.hosts[turn][: sum(counts)])
        return StateMoves(*torch.split(self._moves.send(turn, sum(counts)), counts))

    def _copy_states(self, moves: Tensor) -> None:
        """Copy recurrent states by one launch."""
        if len(moves):
            assert self._state_pool is not None, "of a hybrid"
            ops.copy_states(self._state_pool, moves)

    def _swap(self, host_pool: Tensor, inputs: StepInputs) -> None:
        """Copy beside the step in flight; later launches wait for the copies.

        The scheduler frees no block that a step in flight reads or writes, so that the copies are
        independent of that step. They wait for the launches before it: a block that is swapped in
        may lie where the `copies` of an earlier plan have read.
        """
        start = self._before_step or self._accelerator.record()
        with self._accelerator.side_stream():
            self._accelerator.wait_for(start)
            super()._swap(host_pool, inputs)
            moved = self._accelerator.record()
        self._accelerator.wait_for(moved)

    @torch.inference_mode()
    def run(self, inputs: StepInputs) -> Pending:
        """Launch a step; return its draws, which are known once it has ended."""
        launched = self._launch(inputs)
        if inputs.states is not None:
            self._copy_states(inputs.states.saves)
        return launched

    @torch.inference_mode()
    def probe(self) -> None:
        """Run a row without a request; raise if the model fails for it."""
        inputs, sampling = self.probe_inputs()
        null_row = torch.full_like(inputs.metadata.rows, self._shape.max_num_seqs)
        metadata = replace(inputs.metadata, rows=null_row)
        self.check_probe(self._launch(inputs._replace(metadata=metadata), sampling).wait())

    def _launch(self, inputs: StepInputs, probe: SamplingInputs | None = None) -> Pending:
        # A step that was launched in part has no event for its end: no copies run beside it.
        before, self._before_step = self._accelerator.record(), None
        turn = -1 if inputs.buffer is None else inputs.buffer
        host = self._staging.hosts[turn]
        num_rows, num_samples = len(inputs.metadata.rows), len(inputs.sample_rows)
        sizes = StepSizes.of(num_rows, len(inputs.input_ids), num_samples)
        recordings = self._recordings
        padded = recordings.padded(sizes)
        if inputs.buffer is None:
            _copy(inputs, host)
        sampling = self._fill_draws(host, inputs, probe)
        pad(host, sizes, padded, recordings.num_draws(num_samples))
        work = self._cut(host, num_rows, recordings.tile_rows(padded.num_tokens))
        if not padded.is_decodes:
            pad_tiles(host, work)
        self._staging.upload(turn, host.end_of_splits(work.num_splits))
        forward = recordings.forward(padded, work) or partial(self._compute, sizes, work)
        forward()
        options = self.sampler.sequences(sampling.slots, sampling.position)
        is_whole = inputs.buffer is not None
        if options is None:
            draw = recordings.draw(num_samples) or partial(self._draws.launch, num_samples)
            draw()
        else:
            self._draws.launch_with_options(turn, sampling, options, is_whole=is_whole)
        pending = self._draws.fetch(turn, sampling, options, is_whole=is_whole)
        self._before_step = before
        return pending

    def _fill_draws(
        self, host: Inputs, inputs: StepInputs, probe: SamplingInputs | None
    ) -> SamplingInputs:
        """Write the inputs of the draws to the host's side; a probe brings its own."""
        num_samples = len(inputs.sample_rows)
        out = host.drawn_rows[:num_samples], host.index[:num_samples], host.position[:num_samples]
        sampling = probe
        if sampling is None:
            sampling = self.sampling_inputs(inputs, out)
        else:
            for part, value in zip(
                out, (sampling.rows, sampling.index, sampling.position), strict=True
            ):
                part.copy_(value)
        parameters = (host.temperature, host.top_k, host.top_p, host.min_p, host.seed)
        self.sampler.gather(sampling.slots, *parameters)
        return sampling

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
        device = self._staging.device
        input_ids, rows = device.input_ids[:num_tokens], device.rows[:num_rows]
        query_start_loc = device.query_start_loc[: num_rows + 1]
        draw_ops.gather_tokens(input_ids, self._draws.last_token, rows, query_start_loc)
        metadata = AttentionMetadata(
            rows=rows,
            query_start_loc=query_start_loc,
            seq_lens=device.seq_lens[:num_rows],
            positions=device.positions[:num_tokens],
            slot_mapping=device.slot_mapping[:, :num_tokens],
            block_tables=self._device_tables,
            block_size=self._block_size,
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
        batch = (input_ids, metadata, self.kv_cache, selected, None)
        hidden = self.model.forward(*batch, self._states)
        if num_samples:
            self.model.logits(hidden, out=self._draws.logits[:num_samples])

    @torch.inference_mode()
    def _record(self, on_capture: Captured | None) -> None:
        """Record the launches of padded steps."""
        # Recording may run the launches: over padding, which writes nothing.
        host = self._staging.hosts[0]
        host.slot_mapping.fill_(-1)
        host.drawn_rows.fill_(-1)
        host.tiles.fill_(-1)
        host.top_p.fill_(1)
        self._staging.upload(0, host.end_of_splits([0] * self._shape.num_kv_groups))
        recorder = self._accelerator.recorder()
        self._recordings.record(recorder, self._compute, self._draws.launch, on_capture)


def _copy(inputs: StepInputs, host: Inputs) -> None:
    """Write the inputs of a part of a step, which views the whole step's, to a side of its own."""
    ids, metadata, sample_rows, *_ = inputs
    num_rows, num_tokens = len(metadata.rows), len(ids)
    host.input_ids[:num_tokens] = ids
    host.positions[:num_tokens] = metadata.positions
    host.slot_mapping[:, :num_tokens] = metadata.slot_mapping
    host.rows[:num_rows] = metadata.rows
    host.query_start_loc[: num_rows + 1] = metadata.query_start_loc
    host.seq_lens[:num_rows] = metadata.seq_lens
    host.sample_rows[: len(sample_rows)] = sample_rows
