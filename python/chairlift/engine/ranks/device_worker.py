"""A rank other than 0 on a device: it computes its part of each step, as rank 0 tells it."""

import torch
from torch import Tensor

from chairlift import _core
from chairlift.engine.ranks.device_gather import DeviceGather, WatchedEvent
from chairlift.engine.ranks.device_messages import read_step
from chairlift.engine.ranks.messages import Kind, max_numbers
from chairlift.engine.runner.device_pass import DevicePass
from chairlift.engine.runner.shape import RunnerShape


class DeviceWorker:
    """Launches the passes of one rank."""

    def __init__(
        self,
        group: _core.RankGroup,
        device_pass: DevicePass,
        gather: DeviceGather,
        shape: RunnerShape,
    ) -> None:
        """Take what it computes with.

        Args:
            group: Meets the processes of the other ranks.
            device_pass: Computes its part.
            gather: Meets their devices, which have joined.
            shape: Sizes.
        """
        self._group = group
        self._pass = device_pass
        self._gather = gather
        self._message = torch.zeros(max_numbers(shape), dtype=torch.int32)
        self._ends: list[WatchedEvent | None] = [None] * len(device_pass.staging.hosts)
        """The end of the last step whose inputs were on a side of the host."""
        self._num_steps = 0

    @torch.inference_mode()
    def run(self) -> None:
        """Record the launches, then compute until the group is closed.

        Raises:
            RankError: The group has ended otherwise.
        """
        self._pass.record(None, None)
        while (length := self._group.receive(self._message)) is not None:
            message = self._message[:length]
            match Kind(int(message[0])):
                case Kind.FORWARD:
                    self._launch(message)
                case Kind.SET_BLOCKS:
                    self._pass.set_blocks(self._pairs(message))
                case Kind.COPY_BLOCKS:
                    self._pass.copy_blocks(self._pairs(message))
                case Kind.COPY_STATES:
                    self._pass.copy_states(self._pairs(message))
                case other:
                    text = f"message: expected one about a device, got {other.name}"
                    raise ValueError(text)

    def _pairs(self, message: Tensor) -> Tensor:
        """Return the pairs of a message where the next one does not write over them."""
        pairs = message[1:].view(-1, 2)
        # PyTorch frees pinned memory once the copies out of it have ended.
        kept = self._gather.accelerator.host_buffer(*pairs.shape, dtype=torch.int32)
        return kept.copy_(pairs)

    def _launch(self, message: Tensor) -> None:
        turn = self._num_steps % len(self._ends)
        self._num_steps += 1
        if (end := self._ends[turn]) is not None:
            # The device may still read that side.
            end.synchronize()
        sizes = read_step(message, self._pass.staging.hosts[turn])
        self._pass.launch(turn, sizes)
        self._ends[turn] = self._gather.mark()
