"""KV blocks in messages, or in shared memory that messages tell of; each with a checksum."""

import hashlib
import zlib
from collections.abc import Iterator, Sequence
from typing import Final

from chairlift.engine.prepare.block_export import ExportedBlock
from chairlift.server.transfer.shared_memory import PeerSegment, Segment
from chairlift.v1 import transfer_pb2 as pb

MAX_MESSAGE_BYTES: Final = 2**20
"""Bytes of blocks in a message; a block that is larger goes alone."""
_CHECKSUM_BYTES: Final = 8
_FRAMING_BYTES: Final = 2**16


def max_receive_bytes(block_bytes: int) -> int:
    """Return the longest message that can hold blocks of a size."""
    return max(MAX_MESSAGE_BYTES, block_bytes) + _FRAMING_BYTES


def checksum(data: bytes | memoryview) -> int:
    """Return the checksum of a block."""
    digest = hashlib.blake2b(data, digest_size=_CHECKSUM_BYTES).digest()
    return int.from_bytes(digest, "little")


def shared_checksum(data: bytes) -> int:
    """Return the checksum of a block in shared memory: no network can damage it.

    It finds a slot that was written too early. BLAKE2b would take most of the time of a transfer.
    """
    return zlib.crc32(data)


def encode(blocks: Sequence[ExportedBlock]) -> bytes:
    """Return the encoded message that holds blocks."""
    message = pb.PrefillBlocks(
        indices=[block.number for block in blocks],
        data=b"".join(block.data for block in blocks),
        checksums=[checksum(block.data) for block in blocks],
    )
    encoded: bytes = pb.PrefillResponse(blocks=message).SerializeToString()
    return encoded


def encode_shared(blocks: Sequence[ExportedBlock], segment: PeerSegment) -> bytes:
    """Return the encoded message that tells of blocks, after they were written to a segment.

    Raises:
        OSError: They could not be written.
    """
    segment.write([block.data for block in blocks])
    message = pb.PrefillBlocks(
        indices=[block.number for block in blocks],
        checksums=[shared_checksum(block.data) for block in blocks],
        is_shared=True,
    )
    encoded: bytes = pb.PrefillResponse(blocks=message).SerializeToString()
    return encoded


def decode(
    blocks: pb.PrefillBlocks, block_bytes: int, segment: Segment | None = None
) -> Iterator[tuple[int, bytes]]:
    """Yield the number and the bytes of each block of a message.

    Args:
        blocks: The message.
        block_bytes: The size of a block here.
        segment: Where shared blocks are; None if none was lent.

    Raises:
        ValueError: Its lengths do not fit, a checksum is wrong, or nothing is shared.
    """
    count = len(blocks.indices)
    if blocks.is_shared and segment is None:
        message = "blocks in shared memory were not expected"
        raise ValueError(message)
    num_bytes = 0 if blocks.is_shared else count * block_bytes
    if len(blocks.data) != num_bytes or len(blocks.checksums) != count:
        message = (
            f"{num_bytes} bytes of {count} blocks with as many checksums were expected, got "
            f"{len(blocks.data)} bytes and {len(blocks.checksums)} checksums"
        )
        raise ValueError(message)
    if blocks.is_shared and segment is not None and count > segment.num_slots:
        message = f"at most {segment.num_slots} blocks in shared memory were expected, got {count}"
        raise ValueError(message)
    data = memoryview(blocks.data)
    for place, number in enumerate(blocks.indices):
        if blocks.is_shared and segment is not None:
            # What is hashed is a copy: the other server can still write to the slot.
            block = segment.take()
            found = shared_checksum(block)
        else:
            block = bytes(data[place * block_bytes : (place + 1) * block_bytes])
            found = checksum(block)
        if found != blocks.checksums[place]:
            message = f"the checksum of block {number} is wrong"
            raise ValueError(message)
        yield number, block
