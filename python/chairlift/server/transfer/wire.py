"""KV blocks in messages: as many as fit, each with a checksum."""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Final

from chairlift.engine.prepare.block_export import ExportedBlock
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


def encode(blocks: Sequence[ExportedBlock]) -> bytes:
    """Return the encoded message that holds blocks."""
    message = pb.PrefillBlocks(
        indices=[block.number for block in blocks],
        data=b"".join(block.data for block in blocks),
        checksums=[checksum(block.data) for block in blocks],
    )
    encoded: bytes = pb.PrefillResponse(blocks=message).SerializeToString()
    return encoded


def decode(blocks: pb.PrefillBlocks, block_bytes: int) -> Iterator[tuple[int, bytes]]:
    """Yield the number and the bytes of each block of a message.

    Args:
        blocks: The message.
        block_bytes: The size of a block here.

    Raises:
        ValueError: Its lengths do not fit, or a checksum is wrong.
    """
    count = len(blocks.indices)
    if len(blocks.data) != count * block_bytes or len(blocks.checksums) != count:
        message = (
            f"{count} blocks of {block_bytes} bytes with as many checksums were expected, got "
            f"{len(blocks.data)} bytes and {len(blocks.checksums)} checksums"
        )
        raise ValueError(message)
    data = memoryview(blocks.data)
    for place, number in enumerate(blocks.indices):
        block = data[place * block_bytes : (place + 1) * block_bytes]
        if checksum(block) != blocks.checksums[place]:
            message = f"the checksum of block {number} is wrong"
            raise ValueError(message)
        yield number, bytes(block)
