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
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from chairlift.attention.cuda import CudaBackend
from chairlift.core.plan import PlanView
from chairlift.engine.runner.device_draws import DeviceSampler, Pending
from chairlift.engine.runner.device_pass import DevicePass
from chairlift.engine.runner.model_runner import ModelRunner
from chairlift.engine.runner.recordings import Captured, StepSizes
from chairlift.engine.runner.shape import RunnerShape
from chairlift.engine.runner.staging import Inputs
from chairlift.engine.runner.step_inputs import SamplingInputs, StateMoves, StepInputs
from chairlift.kernels.cuda.device import Accelerator, Event
from chairlift.model.forward.transformer import Transformer


class NewPass(Protocol):
    """Makes the passes of a runner; see `DevicePass`."""

    def __call__(
        self,
        model: Transformer,
        backend: CudaBackend,
        kv_cache: Tensor,
        shape: RunnerShape,
        accelerator: Accelerator,
        state_pool: Tensor | None,
    ) -> DevicePass:
        """Allocate all that a step takes."""


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
        new_pass: NewPass = DevicePass,
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
            new_pass: Makes what computes all of a step but its draws.
        """
        self._accelerator = accelerator
        self._shape = shape
        device_pass = new_pass(model, backend, kv_cache, shape, accelerator, state_pool)
        self._pass = device_pass
        whole_steps = device_pass.staging.hosts[: shape.steps_in_flight]
        states = device_pass.states
        super().__init__(model, kv_cache, shape, clock, host_pool, whole_steps, states)
        # -1 marks a token that the host does not know yet; `apply_plan` copies it.
        self._last_token.fill_(-1)
        # One side for each step under way, which may still be read when the next is written.
        self._updates, self._moves = (
            [accelerator.host_buffer(limit, 2, dtype=torch.int32) for _ in self._buffers]
            for limit in (self._block_tables.numel(), device_pass.max_moves)
        )
        self._draws = DeviceSampler(
            accelerator,
            device_pass.staging,
            device_pass.logits,
            device_pass.last_token,
            device_pass.mark,
        )
        device_pass.record(self._draws.launch, on_capture)
        self._before_step: Event | None = None

    def apply(self, plan: Tensor) -> StepInputs:
        """Apply a plan; send new blocks to the device's tables too.

        Args:
            plan: int32 `[num_numbers]`, from `Scheduler.schedule`.
        """
        turn = self._num_applied % len(self._buffers)
        inputs = super().apply(plan)
        if inputs.states is not None:
            inputs = inputs._replace(states=self._pinned(inputs.states, turn))
        updates = PlanView.of(plan.numpy()).block_updates
        if len(updates):
            group, row, column, block = updates.T
            _, num_lines, num_columns = self._pass.table_shape
            entries = self._updates[turn][: len(updates)]
            entries.numpy()[:, 0] = (group * num_lines + row) * num_columns + column
            entries.numpy()[:, 1] = block
            self._pass.set_blocks(entries)
        return inputs

    def _pinned(self, moves: StateMoves, turn: int) -> StateMoves:
        """Return copies of states where the device reads them."""
        counts = [len(part) for part in moves]
        pinned = self._moves[turn][: sum(counts)]
        torch.cat(moves, out=pinned)
        return StateMoves(*torch.split(pinned, counts))

    def _copy_states(self, moves: Tensor) -> None:
        """Copy recurrent states by one launch."""
        if len(moves):
            self._pass.copy_states(moves)

    def _copy_blocks(self, pairs: Tensor) -> None:
        self._pass.copy_blocks(pairs)

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
        is_whole = inputs.buffer is not None
        hosts = self._pass.staging.hosts
        turn = len(hosts) - 1 if inputs.buffer is None else inputs.buffer
        host, num_samples = hosts[turn], len(inputs.sample_rows)
        if not is_whole:
            _copy(inputs, host)
        sampling = self._fill_draws(host, inputs, probe)
        sizes = StepSizes.of(len(inputs.metadata.rows), len(inputs.input_ids), num_samples)
        self._pass.launch(turn, sizes)
        options = self.sampler.sequences(sampling.slots, sampling.position)
        if options is None:
            replay = self._pass.recordings.draw(num_samples)
            draw = replay or partial(self._draws.launch, num_samples)
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
