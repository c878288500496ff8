"""Gathers on the devices of ranks: a launch like the others, which a graph holds."""

from contextlib import suppress

import torch
from torch import Tensor

from chairlift import _core
from chairlift.engine.ranks.device_meeting import Meeting, meet
from chairlift.engine.ranks.segment import Scratch
from chairlift.engine.ranks.watch import Watch
from chairlift.kernels.cuda.device import Accelerator, Event


class DeviceGather:
    """Puts the parts of all ranks side by side, from device to device; see `Gather`.

    Each rank calls it for the same rows in the same order, as the launches of a step have it.
    """

    def __init__(self, accelerator: Accelerator, scratch: Scratch) -> None:
        """Meet no rank yet.

        Args:
            accelerator: The device of this rank.
            scratch: Memory of its layers.
        """
        self.accelerator = accelerator
        self._scratch = scratch
        self._meeting: Meeting | None = None

    def join(self, group: _core.RankGroup, rank: int, num_ranks: int, timeout_s: float) -> None:
        """Meet the devices of the other ranks, in the place of those before.

        Args:
            group: Meets the processes of the ranks.
            rank: Number of this one.
            num_ranks: How many there are.
            timeout_s: How long it waits for its device at most.

        Raises:
            ModelError: The devices cannot meet.
            RankError: The group has ended.
        """
        self._num_ranks = num_ranks
        meeting = meet(group, self.accelerator, rank, num_ranks, timeout_s)
        self._meeting = meeting
        self.watch = Watch(group, rank, timeout_s, meeting.abort)

    def leave(self) -> None:
        """Drop what was recorded, which an abort waits for; the group has ended."""
        if self._meeting is not None:
            # A GPU that has failed frees nothing.
            with suppress(RuntimeError):
                self.accelerator.recorder()
            self.watch.close()
            self._meeting = None

    def gather(self, x: Tensor, out: Tensor, widths: list[int]) -> None:
        """See `Gather.gather`; all ranks send as many columns as the widest has."""
        num_tokens, widest = len(x), max(widths)
        part = x
        if not x.is_contiguous() or x.shape[1] < widest:
            part = x.new_empty(num_tokens, widest)
            part[:, : x.shape[1]] = x
        parts = x.new_empty(len(widths), num_tokens, widest)
        self._gather(part, parts)
        for columns, of_rank in zip(torch.split(out, widths, dim=1), parts, strict=True):
            columns.copy_(of_rank[:, : columns.shape[1]])

    def share_ids(self, input_ids: Tensor) -> None:
        """Write the ids `[T]` of rank 0 over those of this one."""
        parts = input_ids.new_empty(self._num_ranks, len(input_ids))
        self._gather(input_ids, parts)
        input_ids.copy_(parts[0])

    def scratch(self, num_numbers: int, dtype: torch.dtype, *, is_input: bool) -> Tensor:
        """See `Gather.scratch`."""
        return self._scratch.take(num_numbers, dtype, is_input=is_input)

    def mark(self) -> "WatchedEvent":
        """Mark the end of the launches so far."""
        return WatchedEvent(self.accelerator.record(), self.watch)

    def _gather(self, part: Tensor, parts: Tensor) -> None:
        assert self._meeting is not None, "the ranks have joined"
        with self.watch.waiting():
            self._meeting.gather(part.view(-1), parts.view(-1))


class WatchedEvent:
    """An event of a device that waits for other ranks: there is a bound for it."""

    def __init__(self, event: Event, watch: Watch) -> None:
        self._event = event
        self._watch = watch

    def synchronize(self) -> None:
        """Wait until the device has reached it.

        Raises:
            RankError: The group has ended.
        """
        with self._watch.waiting():
            self._event.synchronize()
