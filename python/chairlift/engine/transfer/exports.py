"""Blocks that leave an engine: those of prompts that it computes for other servers.

```text
engine thread   request queued      -> the names of its blocks are looked for
                block computed, hit -> copied once, to each export that lacks it
                state saved, loaded -> the same, in pieces of the size of a block
any thread      BlockExport.take    -> in messages; what was taken is no longer held
```

The copies of all exports together are bounded: an export whose call does not take its blocks ends,
and its copies are dropped.
"""

import secrets

from chairlift import _core
from chairlift.engine.prepare.block_export import BlockExport, ExportedBlock, HeldBytes
from chairlift.engine.prepare.prepared import Prepared
from chairlift.engine.transfer.exchange import Used
from chairlift.engine.transfer.layout import BlockContents
from chairlift.engine.transfer.states import StatePieces


class BlockExports:
    """The exports of one engine: a `BlockExchange`.

    Attributes:
        names_key: 32 secret bytes by which the scheduler names blocks.
        held: The bytes of all exports.
        block_bytes: Bytes of a block.
    """

    is_loading = False

    def __init__(self, contents: BlockContents, states: StatePieces | None) -> None:
        """Export blocks.

        Args:
            contents: Copies blocks of the pool.
            states: Copies recurrent states; None for a model without.
        """
        self.names_key = secrets.token_bytes(32)
        self.held = HeldBytes()
        self.block_bytes = contents.block_bytes
        self._contents, self._states = contents, states
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
        if blocks.state is not None:
            names.append(blocks.state)
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

    def keep(self, used: Used) -> None:
        """Copy the blocks and states that were used to the exports that lack them."""
        if used.blocks is not None and self._wanted:
            self._keep_blocks(used.blocks)
        if self._states is not None:
            # They follow their blocks: what comes before its turn may find no room.
            self._keep_states(used, self._states)

    def _keep_blocks(self, uses: _core.BlockUses) -> None:
        for place, (name, group) in enumerate(zip(uses.names(), uses.groups(), strict=True)):
            wanting = self._wanted.pop(name, None)
            if wanting is not None:
                data = self._contents.of(uses, place, group)
                for export, number in wanting:
                    export.put(ExportedBlock(number, data))

    def _keep_states(self, used: Used, states: StatePieces) -> None:
        for name, snapshot, _ in used.states:
            wanting = self._wanted.pop(name, None)
            if wanting is not None:
                pieces = states.read(snapshot)
                for export, first in wanting:
                    for number, piece in enumerate(pieces, start=first):
                        export.put(ExportedBlock(number, piece))

    def wait(self) -> None:
        """Return at once: nothing is waited for."""

    def close(self) -> None:
        """End all exports."""
        for export, _ in self._exports:
            export.close()
        self._wanted.clear()
        self._exports.clear()
