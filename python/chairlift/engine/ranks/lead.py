"""Rank 0: the process that schedules, samples and serves, and tells the others what to compute."""

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import torch
from torch import Tensor

from chairlift import _core
from chairlift.api.config import EngineConfig
from chairlift.api.errors import ModelError
from chairlift.api.machine import available_cores
from chairlift.attention.metadata import AttentionMetadata
from chairlift.engine.ranks.adapter_socket import LOAD_S, LeadEnd, Load
from chairlift.engine.ranks.device_gather import DeviceGather
from chairlift.engine.ranks.facts import Facts
from chairlift.engine.ranks.hosts import RemoteRanks
from chairlift.engine.ranks.messages import (
    Kind,
    copy_message,
    forward_message,
    logits_message,
    max_numbers,
)
from chairlift.engine.ranks.processes import RANK_MODULE, RankProcesses
from chairlift.engine.ranks.segment import Layout, Scratch
from chairlift.engine.runner.shape import RunnerShape
from chairlift.model.forward.transformer import Transformer
from chairlift.model.parts.recurrent import States

TIMEOUT_S: Final = 20.0
"""How long a rank waits for another one that computes: many times what the slowest layer takes."""
SPIN_S: Final = 50e-6
"""How long a rank waits before it sleeps, where each of its threads has a core."""


@dataclass(frozen=True, slots=True)
class RankSettings:
    """What the other ranks need to load their part."""

    model: str
    """Folder or file."""
    config: dict[str, Any]
    """The engine's settings."""
    max_model_len: int
    num_blocks: int
    num_snapshots: int
    """Snapshots of recurrent states."""
    num_ranks: int
    num_local_ranks: int
    """Those of them on this machine."""
    num_threads: int
    """Threads of each rank."""
    timeout_s: float
    """How long a rank waits for another one that computes."""
    on_gpus: bool
    """Rank r computes on GPU r."""

    @property
    def spin_s(self) -> float:
        """Return how long a rank waits before it sleeps."""
        has_cores = self.num_local_ranks * self.num_threads <= available_cores()
        return SPIN_S if has_cores else 0.0


class OtherRanks(Protocol):
    """The other ranks of one group, on this machine or on others."""

    @property
    def process_ids(self) -> list[int]:
        """Return their processes on this machine."""

    @property
    def adapters(self) -> list[LeadEnd]:
        """Return the socket of each, about adapters."""

    @property
    def is_owner(self) -> bool:
        """Whether this process has them; a fork of it has not."""

    def wait_until_ready(self) -> None:
        """Wait until every rank has its weights; `ModelError` where one cannot load them."""

    def close(self) -> None:
        """End what there is of them on this machine; the group has ended."""


class Ranks:
    """The other ranks, as rank 0 sees them. They start with each runner."""

    def __init__(
        self,
        settings: RankSettings,
        scratch: Scratch,
        hosts: EngineConfig | None = None,
        module: str = RANK_MODULE,
        devices: DeviceGather | None = None,
    ) -> None:
        """Start none yet.

        Args:
            settings: What each rank needs to load its part.
            scratch: Memory of this rank's layers.
            hosts: How ranks of other hosts join; None starts processes on this machine.
            module: The module of those processes.
            devices: Meets their devices; None on CPUs.
        """
        self._hosts = hosts
        self.devices = devices
        self._module = module
        self._settings = settings
        self._scratch = scratch
        self._group: _core.RankGroup | None = None
        self._end: weakref.finalize[..., Ranks] | None = None
        self._others: OtherRanks | None = None
        self._loading = threading.Lock()
        self.process_ids: list[int] = []
        self.num_starts = 0
        """How often the processes were started."""
        self.on_begin: Callable[[], None] | None = None
        """Called when they have their part."""

    @property
    def fault(self) -> str | None:
        """Why the group has ended; None while it has not."""
        return None if self._group is None else self._group.fault

    def begin(self, shape: RunnerShape) -> None:
        """Start the other ranks, in the place of those before, and wait until they have their part.

        Raises:
            ModelError: One cannot load its part or does not join, their devices cannot meet, or
                there is no shared memory.
        """
        self.close()
        start = self._start_processes if self._hosts is None else self._start_remote
        group, others = start(shape)
        self._group = group
        self._end = weakref.finalize(self, _end, group, others, self.devices)
        self._others = others
        self.process_ids = others.process_ids
        try:
            others.wait_until_ready()
            self._join_devices(group)
            self.num_starts += 1
            if self.on_begin is not None:
                self.on_begin()
        except BaseException:
            self.close()
            raise

    def _start_processes(self, shape: RunnerShape) -> tuple[_core.RankGroup, RankProcesses]:
        settings = self._settings
        layout = Layout(settings.num_ranks, max_numbers(shape))
        descriptor = layout.create()
        try:
            group = layout.open(descriptor, 0, settings.spin_s, settings.timeout_s)
            common = {
                **{name: getattr(settings, name) for name in RankSettings.__slots__},
                "spin_s": settings.spin_s,
                "descriptor": descriptor,
                "layout": layout,
                "shape": shape,
                "parent": os.getpid(),
            }
            each = [{**common, "rank": rank} for rank in range(1, settings.num_ranks)]
            processes = RankProcesses(
                each, descriptor, lambda rank: group.fail(rank, has_ended=True), self._module
            )
        finally:
            os.close(descriptor)
        return group, processes

    def _start_remote(self, shape: RunnerShape) -> tuple[_core.RankGroup, RemoteRanks]:
        settings, hosts = self._settings, self._hosts
        assert hosts is not None, "with hosts"
        facts = Facts.of(Path(settings.model))
        remote = RemoteRanks(hosts, facts, settings.spin_s, settings.timeout_s)
        given = {name: getattr(settings, name) for name in RankSettings.__slots__}
        remote.tell({**given, "shape": shape})
        return remote.group, remote

    def close(self) -> None:
        """End the processes; without effect where there are none."""
        if self._end is not None:
            self._end()
        self.process_ids = []

    def send(self, message: Tensor) -> None:
        """Tell all other ranks what to compute by int32 numbers `[N]`.

        Raises:
            RankError: The group has ended.
        """
        self._running.send(message)

    def load_adapter(self, load: Load) -> int:
        """Have all other ranks read an adapter; called on any thread.

        Returns:
            The start of the ranks that have read it; see `num_starts`.

        Raises:
            ModelError: One cannot read it.
        """
        with self._loading:
            others, start = self._others, self.num_starts
            assert others is not None, "a runner began the group"
            for end in others.adapters:
                end.begin(load)
            deadline = time.monotonic() + LOAD_S
            for end in others.adapters:
                end.wait(load.number, deadline)
        return start

    def forget_adapter(self, number: int) -> None:
        """Have the other ranks drop an adapter that is in no slot."""
        for end in () if self._others is None else self._others.adapters:
            end.forget(number)

    def gather(self, x: Tensor, out: Tensor, widths: list[int]) -> None:
        """See `Gather.gather`."""
        self._running.gather(x, out, widths)

    def scratch(self, num_numbers: int, dtype: torch.dtype, *, is_input: bool) -> Tensor:
        """See `Gather.scratch`."""
        return self._scratch.take(num_numbers, dtype, is_input=is_input)

    @contextmanager
    def in_step(self) -> Iterator[None]:
        """End the group where this rank fails amid a step: the others wait for it."""
        try:
            yield
        except BaseException:
            self._running.fail(0)
            raise

    def _join_devices(self, group: _core.RankGroup) -> None:
        settings = self._settings
        if self.devices is None:
            return
        try:
            self.devices.join(group, 0, settings.num_ranks, settings.timeout_s)
        except _core.RankError as error:
            message = f"tensor_parallel: {error}"
            raise ModelError(message) from None

    @property
    def _running(self) -> _core.RankGroup:
        assert self._group is not None, "a runner began the group"
        return self._group


class LeadTransformer(Transformer):
    """The part of the model that rank 0 computes, together with the others."""

    ranks: Ranks
    _hidden: Tensor

    def forward(
        self,
        input_ids: Tensor,
        metadata: AttentionMetadata,
        kv_cache: Tensor,
        selected: Tensor | None = None,
        adapters: Tensor | None = None,
        states: States | None = None,
    ) -> Tensor:
        """See `Transformer.forward`."""
        self.ranks.send(forward_message(input_ids, metadata, selected, adapters))
        batch = input_ids, metadata, kv_cache, selected, adapters, states
        with self.ranks.in_step():
            self._hidden = super().forward(*batch)
        return self._hidden

    def logits(self, hidden: Tensor, out: Tensor | None = None) -> Tensor:
        """See `Transformer.logits`; `hidden` are rows of the last forward pass."""
        offset = int(hidden.storage_offset() - self._hidden.storage_offset())
        self.ranks.send(logits_message(offset // hidden.stride(0), len(hidden)))
        with self.ranks.in_step():
            return super().logits(hidden, out)

    def copy_blocks(self, kv_cache: Tensor, pairs: Tensor) -> None:
        """See `Transformer.copy_blocks`."""
        self.ranks.send(copy_message(Kind.COPY_BLOCKS, pairs))
        with self.ranks.in_step():
            super().copy_blocks(kv_cache, pairs)

    def copy_states(self, states: States, moves: Tensor) -> None:
        """See `Transformer.copy_states`."""
        if len(moves) == 0:
            return
        self.ranks.send(copy_message(Kind.COPY_STATES, moves))
        with self.ranks.in_step():
            super().copy_states(states, moves)


def _end(group: _core.RankGroup, others: OtherRanks, devices: DeviceGather | None) -> None:
    # A fork of this process shares the group, and may end while it goes on.
    if others.is_owner:
        group.close()
        if devices is not None:
            devices.leave()
        others.close()
