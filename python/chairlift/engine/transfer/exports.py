"""Blocks that leave an engine: those of prompts that it computes for other servers.

```text
engine thread   request queued      -> the names of its blocks are looked for
                block computed, hit -> copied once, to each export that lacks it
any thread      BlockExport.take    -> in messages; what was taken is no longer held
```

The copies of all exports together are bounded: an export whose call does not take its blocks ends,
and its copies are dropped.
"""

import secrets

from chairlift import _core
from chairlift.engine.prepare.block_export import BlockExport, ExportedBlock, HeldBytes
from chairlift.engine.prepare.prepared import Prepared
from chairlift.engine.transfer.layout import BlockContents


class BlockExports:
    """The exports of one engine: a `BlockExchange`.

    Attributes:
        names_key: 32 secret bytes by which the scheduler names blocks.
        held: The bytes of all exports.
    """

    is_loading = False

    def __init__(self, contents: BlockContents) -> None:
        """Export blocks.

        Args:
            contents: Copies blocks of the pool.
        """
        self.names_key = secrets.token_bytes(32)
        self.held = HeldBytes()
        self._contents = contents
        self._wanted: dict[bytes, list[tuple[BlockExport, int]]] = {}
        self._exports: list[tuple[BlockExport, list[bytes]]] = []

    def attach(self, scheduler: _core.Scheduler) -> None:
        """Begin with a new scheduler; what it computes for exports of before is lost."""
        self._wanted.clear()
        self._exports.clear()
        scheduler.track_block_uses()

    def begin(self, scheduler: _core.Scheduler, request_id: int, prepared: Prepared) -> None:
        """Look for the blocks of a request that has an export."""
        export = prepared.export
        if export is None:
            return
        blocks = scheduler.block_names(request_id, export.first)
        names = blocks.names
        self._exports.append((export, names))
        for number, name in enumerate(names, start=blocks.number):
            self._wanted.setdefault(name, []).append((export, number))

    def turn(self, scheduler: _core.Scheduler) -> None:
        """Forget exports that have ended."""
        del scheduler
        ended = [entry for entry in self._exports if entry[0].is_closed]
        if not ended:
            return
        self._exports = [entry for entry in self._exports if not entry[0].is_closed]
        for _, names in ended:
            for name in names:
                wanting = self._wanted.get(name, [])
                left = [entry for entry in wanting if not entry[0].is_closed]
                if left:
                    self._wanted[name] = left
                else:
                    self._wanted.pop(name, None)

    def keep(self, scheduler: _core.Scheduler) -> None:
        """Copy the blocks that were used to the exports that lack them."""
        uses = scheduler.take_block_uses()
        if uses is None or not self._wanted:
            return
        for place, (name, group) in enumerate(zip(uses.names(), uses.groups(), strict=True)):
            wanting = self._wanted.pop(name, None)
            if wanting is not None:
                data = self._contents.of(uses, place, group)
                for export, number in wanting:
                    export.put(ExportedBlock(number, data))

    def wait(self) -> None:
        """Return at once: nothing is waited for."""

    def close(self) -> None:
        """End all exports."""
        for export, _ in self._exports:
            export.close()
        self._wanted.clear()
        self._exports.clear()
