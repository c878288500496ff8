"""Sends the blocks of one call: through the caller's shared memory, or in messages."""

import asyncio
import time
from collections.abc import Sequence
from typing import Final

from chairlift.api.errors import Reason, refusal
from chairlift.engine.prepare.block_export import BlockExport, ExportedBlock
from chairlift.server.rpc.writer import Writer
from chairlift.server.transfer.attached import Exporting
from chairlift.server.transfer.shared_memory import PeerSegment
from chairlift.server.transfer.wire import MAX_MESSAGE_BYTES, encode, encode_shared

MAX_WAIT_S: Final = 1.0
"""A caller that frees no slot for this long gets the rest of its blocks in messages."""
_POLL_S: Final = 0.001
"""A slot is freed in tenths of that; to be told of each would take a message."""


class BlockSender:
    """The blocks of one call, from its export to its stream; belongs to the event loop."""

    def __init__(
        self,
        export: BlockExport,
        writer: Writer,
        exporting: Exporting,
        segment: PeerSegment | None,
    ) -> None:
        """Send nothing yet.

        Args:
            export: Has the blocks.
            writer: Writes the messages.
            exporting: Counts what is sent, and closes the segment.
            segment: The memory of the caller; None if it has none that can be used.
        """
        self._export, self._writer = export, writer
        self._exporting, self._segment = exporting, segment
        self._max_bytes = MAX_MESSAGE_BYTES
        if segment is not None:
            # Half of the slots at most: the caller copies while others are written.
            max_count = max(1, segment.num_slots // 2)
            self._max_bytes = min(MAX_MESSAGE_BYTES, max_count * exporting.block_bytes)

    @property
    def uses_shared_memory(self) -> bool:
        """Return whether blocks go through the caller's memory."""
        return self._segment is not None

    async def send(self) -> None:
        """Write the blocks that have come.

        Raises:
            RequestError: They were not read as fast as they came, or not at all.
        """
        while blocks := self._export.take(self._max_bytes):
            message = await self._shared(blocks)
            if message is None:
                # A megabyte is hashed and copied: that would hold up the tokens of other calls.
                message = await asyncio.to_thread(encode, blocks)
            await self._writer.write(message)
            self._exporting.num_sent += len(blocks)
        if self._export.has_overflowed:
            raise refusal(Reason.TRANSFER_MEMORY)

    async def _shared(self, blocks: Sequence[ExportedBlock]) -> bytes | None:
        """Return the message of blocks that are in shared memory now; None if they are not."""
        segment = self._segment
        if segment is None:
            return None
        until = time.monotonic() + MAX_WAIT_S
        while segment.num_free < len(blocks):
            if time.monotonic() >= until:
                self.close()
                return None
            await asyncio.sleep(_POLL_S)
        try:
            message = await asyncio.to_thread(encode_shared, blocks, segment)
        except OSError as error:
            self._exporting.borrowing.note(error)
            self.close()
            return None
        self._exporting.borrowing.count(len(blocks))
        return message

    def close(self) -> None:
        """Write no more to the caller's memory; a second call has no effect."""
        segment, self._segment = self._segment, None
        self._exporting.borrowing.close(segment)
