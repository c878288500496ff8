"""vLLM's form of a batch of events in msgpack: `[time, [event, ...], rank]`.

Consumers take maps (vLLM since June 2026, and what follows it) or arrays (before).
"""

from typing import Final

import msgpack

from chairlift.server.kv_events.address import Form
from chairlift.server.kv_events.events import Batch, Event, Removed, Stored

MEDIUM: Final = "GPU"
"""Consumers take it for the memory that the model computes in, whatever it is made of."""
_RANK: Final = 0


def payload(batch: Batch, form: Form, block_size: int) -> bytes:
    """Return the third frame of a batch."""
    write = _as_map if form is Form.MAP else _as_array
    events = [write(event, block_size) for event in batch.events()]
    packed: bytes = msgpack.packb([batch.time_s, events, _RANK])
    return packed


def frames(batch: Batch, form: Form, block_size: int) -> tuple[bytes, bytes]:
    """Return number and payload, the second and third frame."""
    return batch.number.to_bytes(8, "big"), payload(batch, form, block_size)


def _as_map(event: Event, block_size: int) -> dict[str, object]:
    if isinstance(event, Stored):
        return {
            "type": "BlockStored",
            "block_hashes": event.handles,
            "parent_block_hash": event.parent,
            "token_ids": event.tokens,
            "block_size": block_size,
            "lora_id": event.adapter_load,
            "medium": MEDIUM,
            "lora_name": event.adapter,
        }
    if isinstance(event, Removed):
        return {"type": "BlockRemoved", "block_hashes": event.handles, "medium": MEDIUM}
    return {"type": "AllBlocksCleared"}


def _as_array(event: Event, block_size: int) -> list[object]:
    # The fields of an array are the values of a map, in its order.
    return list(_as_map(event, block_size).values())
