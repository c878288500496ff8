"""Rank 0 on a device: its forward passes, of which it tells the other ranks first."""

from collections.abc import Callable

import torch
from torch import Tensor

from chairlift import _core
from chairlift.api.errors import ModelError
from chairlift.attention.cuda import CudaBackend
from chairlift.engine.ranks.device_gather import WatchedEvent
from chairlift.engine.ranks.device_messages import step_message
from chairlift.engine.ranks.lead import Ranks
from chairlift.engine.ranks.messages import Kind, copy_message, max_numbers
from chairlift.engine.runner.device_pass import DevicePass
from chairlift.engine.runner.recordings import Captured, StepSizes
from chairlift.engine.runner.shape import RunnerShape
from chairlift.kernels.cuda.device import Accelerator
from chairlift.model.forward.transformer import Transformer


class LeadPass(DevicePass):
    """The passes of rank 0; `Ranks.begin` has started the others."""

    def __init__(
        self,
        ranks: Ranks,
        model: Transformer,
        backend: CudaBackend,
        kv_cache: Tensor,
        shape: RunnerShape,
        accelerator: Accelerator,
        state_pool: Tensor | None,
    ) -> None:
        """Allocate all that a step takes; see `DevicePass`.

        Args:
            ranks: The others.
            model: See `DevicePass`, like the next five.
            backend: See there.
            kv_cache: See there.
            shape: See there.
            accelerator: See there.
            state_pool: See there.
        """
        gather = ranks.devices
        assert gather is not None, "of ranks on GPUs"
        super().__init__(model, backend, kv_cache, shape, accelerator, state_pool, gather.share_ids)
        self._ranks = ranks
        self._gather = gather
        self._max_pairs = (max_numbers(shape) - 1) // 2

    def record(self, draw: Callable[[int], None] | None, on_capture: Captured | None) -> None:
        """See `DevicePass.record`.

        Raises:
            ModelError: A rank is lost meanwhile.
        """
        try:
            super().record(draw, on_capture)
        except _core.RankError as error:
            message = f"tensor_parallel: {error}"
            raise ModelError(message) from None

    def mark(self) -> WatchedEvent:
        """See `DevicePass.mark`."""
        return self._gather.mark()

    def set_blocks(self, entries: Tensor) -> None:
        """See `DevicePass.set_blocks`."""
        for part in torch.split(entries, self._max_pairs):
            self._ranks.send(copy_message(Kind.SET_BLOCKS, part))
        super().set_blocks(entries)

    def copy_blocks(self, pairs: Tensor) -> None:
        """See `DevicePass.copy_blocks`."""
        for part in torch.split(pairs, self._max_pairs):
            self._ranks.send(copy_message(Kind.COPY_BLOCKS, part))
        super().copy_blocks(pairs)

    def copy_states(self, moves: Tensor) -> None:
        """See `DevicePass.copy_states`."""
        for part in torch.split(moves, self._max_pairs):
            self._ranks.send(copy_message(Kind.COPY_STATES, part))
        super().copy_states(moves)

    def launch(self, turn: int, sizes: StepSizes) -> None:
        """See `DevicePass.launch`."""
        self._ranks.send(step_message(self.staging.hosts[turn], sizes))
        with self._ranks.in_step():
            super().launch(turn, sizes)
