"""`SubscribeKvEvents`: the events of the caller's own tenant, in the form of smg's gateway."""

import asyncio
import math
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from chairlift.api.errors import Reason, RequestError, refusal
from chairlift.server.calls.context import ServerContext
from chairlift.server.kv_events.events import Batch, Event, Removed, Stored
from chairlift.server.kv_events.stream import EventStream
from chairlift.server.protocols.stubs import smg_common_pb2 as common
from chairlift.server.rpc.status_interceptor import ServicerContext
from chairlift.server.rpc.writer import Writer

MAX_SUBSCRIBERS: Final = 16
"""Calls of one tenant at once."""
_CHUNK: Final = 256
"""Events of one message of a snapshot."""
_METHOD: Final = "SubscribeKvEvents"


class KvSubscriptions:
    """The calls of all subscribers; for one event loop."""

    def __init__(self, server: ServerContext, block_size: int) -> None:
        """Start without subscribers.

        Args:
            server: The state that all calls share.
            block_size: Tokens of a block.
        """
        self._server = server
        self._block_size = block_size
        self._num_subscribers: dict[int, int] = {}

    async def run(self, start: int, context: ServicerContext) -> None:
        """Write events until the server drains or the client goes.

        Args:
            start: The first number that the client lacks; 0: it knows nothing.
            context: Context of the call.

        Raises:
            RequestError: The caller's tenant shares no events, has too many calls, or reads none.
        """
        server = self._server
        tenant = server.authenticator.tenant(context)
        stream = server.kv_events.streams.get(tenant)
        if stream is None:
            message = f"{_METHOD}: this server publishes no events of this tenant (kv_events)"
            raise RequestError(Reason.UNSUPPORTED, message, field=_METHOD)
        server.gate.engine()
        num_subscribers = self._num_subscribers.get(stream.place, 0)
        if num_subscribers >= MAX_SUBSCRIBERS:
            message = f"{_METHOD}: expected at most {MAX_SUBSCRIBERS} calls of a tenant at once"
            raise RequestError(Reason.QUOTA_EXCEEDED, message)
        self._num_subscribers[stream.place] = num_subscribers + 1
        try:
            await self._write(stream, start, Writer(context, server.write_timeout_s))
        finally:
            self._num_subscribers[stream.place] -= 1

    async def _write(self, stream: EventStream, start: int, writer: Writer) -> None:
        await writer.begin()
        draining, loop = self._server.gate.draining, asyncio.get_running_loop()
        added, number = asyncio.Event(), start - 1

        def wake() -> None:
            # The loop may be closed while the engine ends.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(added.set)

        drained = asyncio.create_task(draining.wait())
        drained.add_done_callback(lambda _: added.set())
        try:
            with stream.waking(wake):
                while not draining.is_set():
                    added.clear()
                    for message in await asyncio.to_thread(self._behind, stream, number):
                        await writer.write(message)
                        number = message.sequence_number
                    if stream.number <= number:
                        await added.wait()
        finally:
            drained.cancel()

    def _behind(self, stream: EventStream, number: int) -> "list[common.KvEventBatch]":
        """Return what a client lacks that knows a number: some batches, or a snapshot."""
        batches = stream.since(number)
        if batches is not None:
            return [self._message(batch) for batch in batches]
        try:
            return list(self._chunks(self._server.kv_events.snapshot(stream)))
        except TimeoutError:
            raise refusal(Reason.ENGINE_BUSY) from None

    def _message(self, batch: Batch) -> common.KvEventBatch:
        return common.KvEventBatch(
            sequence_number=batch.number,
            timestamp=batch.time_s,
            dp_rank=0,
            events=[self._event(event) for event in batch.events()],
        )

    def _chunks(self, snapshot: Batch) -> Iterator[common.KvEventBatch]:
        """Yield a snapshot in messages, the last of which has its number."""
        events = list(snapshot.events())
        count = max(1, math.ceil(len(events) / _CHUNK))
        num_blocks = sum(len(event.handles) for event in events if isinstance(event, Stored))
        for index in range(count):
            part = events[index * _CHUNK : (index + 1) * _CHUNK]
            yield common.KvEventBatch(
                sequence_number=snapshot.number - (count - 1) + index,
                timestamp=snapshot.time_s,
                dp_rank=0,
                events=[self._event(event) for event in part],
                snapshot=common.KvSnapshotChunk(index=index, count=count, blocks=num_blocks),
            )

    def _event(self, event: Event) -> common.KvCacheEvent:
        if isinstance(event, Stored):
            return common.KvCacheEvent(stored=self._stored(event))
        tier = common.KV_CACHE_TIER_DEVICE
        if isinstance(event, Removed):
            removed = common.KvBlocksRemoved(block_hashes=event.handles, cache_level=0, tier=tier)
            return common.KvCacheEvent(removed=removed)
        return common.KvCacheEvent(cleared=common.KvCacheCleared())

    def _stored(self, event: Stored) -> common.KvBlocksStored:
        size = self._block_size
        return common.KvBlocksStored(
            blocks=[
                common.KvBlock(
                    block_hash=handle,
                    token_ids=event.tokens[place * size : (place + 1) * size],
                    block_size=size,
                    lora_id=event.adapter_load,
                    cache_level=0,
                )
                for place, handle in enumerate(event.handles)
            ],
            parent_block_hash=event.parent,
            tier=common.KV_CACHE_TIER_DEVICE,
            locality=common.KV_CACHE_LOCALITY_LOCAL,
            lora_name=event.adapter,
        )
