"""How the devices of a group find one another: by the segment, without a file or a port.

`torch.distributed` wants a store of keys and values in which all ranks see the same. Each has its
own, and what one writes goes to the others in rounds of the group's barrier, which are bounded.
"""

import json
import threading
import time
from collections import deque
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

import torch
from torch import Tensor
from torch.distributed.distributed_c10d import Store

from chairlift import _core
from chairlift.api.errors import ModelError
from chairlift.kernels.cuda.device import Accelerator, Collectives

MEET_S: Final = 300.0
"""Until all devices have met."""
_FRAME_BYTES: Final = 8192
"""What a rank says in a round, filled up with spaces."""
_PAUSE_S: Final = 0.002
"""Between two rounds in which no rank has written anything."""


class _SharedStore(Store):
    """The store of one rank; threads of `torch.distributed` wait in it."""

    def __init__(self) -> None:
        super().__init__()
        self._values: dict[str, bytes] = {}
        self._unsent: deque[tuple[str, bytes]] = deque()
        self._changed = threading.Condition()
        self._is_closed = False

    def set(self, key: str, value: bytes) -> None:  # type: ignore[override]
        """Write a value, for all ranks."""
        with self._changed:
            self._unsent.append((key, bytes(value)))
            self._keep(key, bytes(value))

    def get(self, key: str) -> bytes:
        """Return a value, once a rank has written it."""
        self.wait([key])
        return self._values[key]

    def check(self, keys: Sequence[str]) -> bool:
        """Return whether all values are there."""
        return all(key in self._values for key in keys)

    def wait(self, keys: Sequence[str], _timeout: timedelta | None = None) -> None:
        """Wait until all values are there.

        Raises:
            TimeoutError: One is not there in time, or comes no more.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self.check(keys), MEET_S)
            if not self.check(keys):
                message = f"a rank has not written {keys}"
                raise TimeoutError(message)

    def take(self) -> tuple[str, bytes] | None:
        """Return what is to be sent to the others next; None where there is nothing."""
        with self._changed:
            return self._unsent.popleft() if self._unsent else None

    def receive(self, key: str, value: bytes) -> None:
        """Take what another rank has written."""
        with self._changed:
            self._keep(key, value)

    def close(self) -> None:
        """End all waits: no rank writes any more."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _keep(self, key: str, value: bytes) -> None:
        self._values[key] = value
        self._changed.notify_all()


class Meeting:
    """The devices of a group, which have met."""

    def __init__(self, collectives: Collectives, store: Store) -> None:
        """Take what they meet by; the store has to live as long."""
        self._collectives = collectives
        self._store = store

    def gather(self, part: Tensor, parts: Tensor) -> None:
        """Write what all ranks have, `[N]` each, to `parts` `[num_ranks * N]`."""
        self._collectives._allgather_base(parts, part).wait()

    def abort(self) -> None:
        """End what waits for other devices; it may return late."""
        self._collectives.abort()


class _Connecting:
    """Connects on a thread of its own, since nothing bounds how long that takes."""

    def __init__(
        self, accelerator: Accelerator, rank: int, num_ranks: int, timeout_s: float
    ) -> None:
        self.store = _SharedStore()
        self.meeting: Meeting | None = None
        self.error: BaseException | None = None
        arguments = accelerator, rank, num_ranks, timeout_s
        self._thread = threading.Thread(
            target=self._run, args=arguments, name="chairlift-rank-meeting", daemon=True
        )
        self._thread.start()

    @property
    def has_ended(self) -> bool:
        return not self._thread.is_alive()

    def _run(self, accelerator: Accelerator, rank: int, num_ranks: int, timeout_s: float) -> None:
        try:
            collectives = accelerator.connect(self.store, rank, num_ranks, timeout_s)
            meeting = Meeting(collectives, self.store)
            number = torch.tensor([rank], dtype=torch.int32, device=accelerator.device)
            found = number.new_empty(num_ranks)
            # The first operation waits for all ranks.
            meeting.gather(number, found)
            accelerator.record().synchronize()
            if found.tolist() != [*range(num_ranks)]:
                message = f"ranks: expected 0 to {num_ranks - 1}, got {found.tolist()}"
                raise RuntimeError(message)
            self.meeting = meeting
        except BaseException as error:
            self.error = error


def meet(
    group: _core.RankGroup, accelerator: Accelerator, rank: int, num_ranks: int, timeout_s: float
) -> Meeting:
    """Return what the devices of all ranks gather by; every rank calls this.

    Args:
        group: Meets the processes of the ranks.
        accelerator: The device of this rank.
        rank: Its number.
        num_ranks: How many there are.
        timeout_s: How long an operation takes at most, where there is a bound.

    Raises:
        ModelError: The devices cannot meet.
        RankError: The group has ended.
    """
    connecting = _Connecting(accelerator, rank, num_ranks, timeout_s)
    try:
        _exchange_until_all_have_met(group, connecting, num_ranks)
    finally:
        connecting.store.close()
    if connecting.meeting is None:
        reason = connecting.error or f"they have not met in {MEET_S:g} s"
        group.fail(rank)
        message = f"tensor_parallel: the devices of the ranks cannot meet: {reason}"
        raise ModelError(message)
    return connecting.meeting


def _exchange_until_all_have_met(
    group: _core.RankGroup, connecting: _Connecting, num_ranks: int
) -> None:
    """Tell the others what this rank writes, until all have met, or this rank cannot."""
    deadline = time.monotonic() + MEET_S
    while True:
        # In this order: what was written before the end is sent before the end is told.
        has_ended, written = connecting.has_ended, connecting.store.take()
        key, value = written or ("", b"")
        said_here = {"key": key, "value": value.hex(), "is_done": has_ended and written is None}
        all_said = _exchange(group, said_here, num_ranks)
        for said in all_said:
            if said["key"]:
                connecting.store.receive(said["key"], bytes.fromhex(said["value"]))
        if all(said["is_done"] for said in all_said) or connecting.error is not None:
            return
        if time.monotonic() >= deadline:
            return
        if not any(said["key"] for said in all_said):
            time.sleep(_PAUSE_S)


def _exchange(group: _core.RankGroup, said: dict[str, Any], num_ranks: int) -> list[dict[str, Any]]:
    """Return what each rank says in a round."""
    frame = bytearray(json.dumps(said).encode().ljust(_FRAME_BYTES))
    numbers = torch.frombuffer(frame, dtype=_NUMBER)
    width = len(numbers)
    found = numbers.new_empty(1, num_ranks * width)
    group.gather(numbers.view(1, width), found, [width] * num_ranks)
    return [json.loads(_bytes(part)) for part in torch.split(found[0], width)]


def _bytes(numbers: Tensor) -> bytes:
    return bytes(numbers.view(torch.uint8).numpy())


_NUMBER: Final = torch.float32
"""What ranks gather; the bits stay as they are."""
