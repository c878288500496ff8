"""Adapters (LoRA) on all ranks: each reads its part of the same open files.

What a slot holds changes by a message amid those of the steps, in the same order on every rank.
"""

import weakref
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from itertools import count
from pathlib import Path

from chairlift import _core
from chairlift.api.errors import ModelError
from chairlift.engine.ranks.adapter_socket import Load
from chairlift.engine.ranks.lead import Ranks
from chairlift.engine.ranks.messages import adapter_message
from chairlift.model.config import ModelConfig
from chairlift.model.lora.config import FILE as CONFIG_FILE
from chairlift.model.lora.folder import AdapterFolder, OpenAdapter
from chairlift.model.lora.load import FILE as TENSOR_FILE
from chairlift.model.lora.load import PackedAdapter, load_adapter
from chairlift.model.lora.tables import AdapterTables


@dataclass(frozen=True, slots=True)
class _SharedAdapter(PackedAdapter):
    """The update of rank 0, and what the others have read."""

    load: Load
    start: int
    """Which start of the other ranks has read it; see `Ranks.num_starts`."""


class LeadAdapters(AdapterTables):
    """The tables of rank 0, whose changes the other ranks follow."""

    def __init__(self, num_layers: int, num_slots: int, ranks: Ranks) -> None:
        """Make empty tables.

        Args:
            num_layers: Decoder layers of the model.
            num_slots: Adapters that they hold at most.
            ranks: The other ranks.
        """
        super().__init__(num_layers, num_slots)
        self._ranks = ranks
        self._held: dict[int, _SharedAdapter] = {}
        self._numbers = count(1)

    def read(
        self, folder: Path | AdapterFolder, config: ModelConfig, max_rank: int
    ) -> PackedAdapter:
        """See `AdapterTables.read`; every rank reads its part.

        Raises:
            ModelError: A rank cannot read it, or takes too long.
        """
        place = AdapterFolder(folder) if isinstance(folder, Path) else folder
        try:
            files = OpenAdapter.of(place, (CONFIG_FILE, TENSOR_FILE))
        except OSError as error:
            message = f"{place.path}: {(error.strerror or 'cannot be read').lower()}"
            raise ModelError(message) from error
        packed = load_adapter(files, config, max_rank)
        load = Load(next(self._numbers), files, max_rank)
        # One that is given up leaves nothing on the other ranks.
        end = weakref.finalize(files, _forget, weakref.ref(self._ranks), load.number)
        end.atexit = False
        start = self._ranks.load_adapter(load)
        values = {field.name: getattr(packed, field.name) for field in fields(packed)}
        return _SharedAdapter(**values, load=load, start=start)

    def set(self, slot: int, adapter: PackedAdapter | None) -> None:
        """See `AdapterTables.set`.

        Raises:
            ModelError: The other ranks were started again since they read it.
            RankError: The group has ended.
        """
        if adapter is None:
            if self._held.pop(slot, None) is not None:
                # Where the group has ended, the next one begins without it.
                with suppress(_core.RankError):
                    self._ranks.send(adapter_message(slot, 0))
        else:
            assert isinstance(adapter, _SharedAdapter), "from `read`"
            if adapter.start != self._ranks.num_starts:
                message = "the ranks were started again meanwhile; load it once more"
                raise ModelError(message)
            self._ranks.send(adapter_message(slot, adapter.load.number))
            self._held[slot] = adapter
        super().set(slot, adapter)

    def restore(self) -> None:
        """Put the adapters of this rank into the slots of others, which were started again.

        Raises:
            ModelError: One cannot be read.
        """
        for slot, adapter in self._held.items():
            start = self._ranks.load_adapter(adapter.load)
            self._ranks.send(adapter_message(slot, adapter.load.number))
            self._held[slot] = replace(adapter, start=start)


def _forget(ranks: weakref.ref[Ranks], number: int) -> None:
    # The files of an engine that is dropped must not keep its ranks.
    if (found := ranks()) is not None:
        found.forget_adapter(number)
