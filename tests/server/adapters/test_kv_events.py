"""`SubscribeKvEvents`: a gateway follows the prefix cache of its own tenant."""

import asyncio
import functools

import grpc
import pytest
from chairlift.server.protocols.stubs import smg_common_pb2 as common
from chairlift.server.protocols.stubs import vllm_engine_pb2_grpc
from chairlift.server.protocols.vllm import kv_events
from chairlift.server.protocols.vllm.kv_events import MAX_SUBSCRIBERS

from tests.server.connection import Status, until
from tests.server.kv_consumer import BLOCK_SIZE, Mirror
from tests.server.test_kv_events import ANN, BOB, cached_tokens, prompts

Code = grpc.StatusCode
GRPC = {"kv_events": ["grpc"]}


class Subscription(Mirror):
    """A call, and what it told."""

    def __init__(self, serving, start=0, metadata=()):
        super().__init__()
        stub = vllm_engine_pb2_grpc.VllmEngineStub(serving.channel)
        request = common.SubscribeKvEventsRequest(start_sequence_number=start)
        self.call = stub.SubscribeKvEvents(request, metadata=metadata)
        self.number = start - 1
        self.num_chunks = 0

    async def read(self):
        """Take one message."""
        message = await self.call.read()
        assert message is not grpc.aio.EOF
        if message.HasField("snapshot"):
            self.num_chunks += 1
            first = message.snapshot.index == 0
            assert first == (message.events[0].WhichOneof("data") == "cleared")
        else:
            assert message.sequence_number == self.number + 1
        self.number = message.sequence_number
        for event in message.events:
            self.take(event)
        return message

    def take(self, event):
        """Take an event."""
        kind = event.WhichOneof("data")
        if kind == "cleared":
            self.blocks.clear()
            self.num_cleared += 1
        elif kind == "removed":
            assert event.removed.tier == common.KV_CACHE_TIER_DEVICE
            for handle in event.removed.block_hashes:
                del self.blocks[handle]
        else:
            stored = event.stored
            parent = stored.parent_block_hash if stored.HasField("parent_block_hash") else None
            tokens = [token for block in stored.blocks for token in block.token_ids]
            assert {block.block_size for block in stored.blocks} == {BLOCK_SIZE}
            handles = [block.block_hash for block in stored.blocks]
            self.store(handles, parent, tokens, stored.lora_name or None)

    async def failure(self):
        """The status with which it ends."""
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await self.call.read()
        return Status.of(failed.value)


async def test_a_subscriber_begins_with_all_that_is_cached_and_follows_it(
    others, kv_blocks, monkeypatch
):
    monkeypatch.setattr(kv_events, "_CHUNK", 3)
    async with others(server=GRPC, kv_cache_memory=kv_blocks(24)) as server:
        for prompt in prompts(1, 30):
            await cached_tokens(server, prompt)
        num_cached = (await server.load()).num_cached_blocks
        late = Subscription(server)
        # The chunks of a snapshot have the numbers up to the last batch.
        message = await late.read()
        while message.snapshot.index + 1 < message.snapshot.count:
            message = await late.read()
        assert late.num_chunks == message.snapshot.count > 1
        assert len(late.blocks) == message.snapshot.blocks == num_cached
        for prompt in prompts(2, 5):
            await cached_tokens(server, prompt)
        load = await server.load()
        while len(late.blocks) != load.num_cached_blocks:
            await late.read()
        # The same snapshot serves others as long as all that followed is there.
        later = Subscription(server)
        while later.number < late.number or later.num_chunks < late.num_chunks:
            await later.read()
        assert later.blocks == late.blocks


async def test_a_subscriber_that_comes_back_has_what_it_missed(others):
    async with others(server=GRPC) as server:
        first = Subscription(server)
        await first.read()
        await cached_tokens(server, [1] * 40)
        while not first.blocks:
            await first.read()
        first.call.cancel()
        await cached_tokens(server, [2] * 40)
        second = Subscription(server, start=first.number + 1)
        message = await second.read()
        assert not message.HasField("snapshot")
        assert second.tokens == {2}
        # A number that this server never gave is that of another.
        third = Subscription(server, start=7)
        assert (await third.read()).HasField("snapshot")
        while third.tokens != {1, 2}:
            await third.read()


async def test_a_tenant_sees_its_own_events_or_none(others, tmp_path):
    tokens = tmp_path / "tokens"
    tokens.touch(0o600)
    tokens.write_text(f"ann:{ANN}\nbob:{BOB}\n")
    settings = {"auth_tokens": str(tokens), "kv_events": ["ann=grpc"]}
    async with others(server=settings) as server:
        ann, bob = ((("authorization", f"Bearer {token}"),) for token in (ANN, BOB))
        await cached_tokens(server, [1] * 40, metadata=ann)
        await cached_tokens(server, [2] * 40, metadata=bob)
        subscription = Subscription(server, metadata=ann)
        await subscription.read()
        assert subscription.tokens == {1}
        refused = await Subscription(server, metadata=bob).failure()
        assert (refused.code, refused.reason) == (Code.UNIMPLEMENTED, "UNSUPPORTED")
        assert (await Subscription(server).failure()).code is Code.UNAUTHENTICATED


async def test_without_the_setting_there_are_no_events(others):
    async with others() as server:
        refused = await Subscription(server).failure()
        assert (refused.code, refused.reason) == (Code.UNIMPLEMENTED, "UNSUPPORTED")


async def test_a_tenant_has_only_so_many_calls_at_once(others):
    async with others(server=GRPC) as server:
        calls = [Subscription(server) for _ in range(MAX_SUBSCRIBERS)]
        await asyncio.gather(*[call.read() for call in calls])
        refused = await Subscription(server).failure()
        assert (refused.code, refused.reason) == (Code.RESOURCE_EXHAUSTED, "QUOTA_EXCEEDED")
        calls[0].call.cancel()

        async def is_taken():
            call = Subscription(server)
            try:
                return await call.call.read()
            except grpc.aio.AioRpcError:
                return None
            finally:
                call.call.cancel()

        await until(is_taken)


async def test_a_drain_ends_the_calls_in_order(others):
    async with others(server=GRPC) as server:
        subscription = Subscription(server)
        await subscription.read()
        stopping = asyncio.create_task(server.server.stop(grace_s=0))
        end = functools.partial(subscription.call.read)
        while await end() is not grpc.aio.EOF:
            pass
        assert await subscription.call.code() is Code.OK
        await stopping
