"""Blocks through shared memory: two servers, and what hostile ones of either role make of it."""

import asyncio
import os
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path

import grpc
import pytest
from chairlift.server.transfer import sender, shared_memory
from chairlift.server.transfer.shared_memory import PeerSegment, Segment
from chairlift.server.transfer.wire import decode, shared_checksum
from chairlift.v1 import transfer_pb2 as pb
from chairlift.v1 import transfer_pb2_grpc

from tests.server.conftest import LONG, NUM_BLOCKS
from tests.server.connection import start, until

pytestmark = pytest.mark.usefixtures("long_is_worth_it")


@pytest.fixture(autouse=True)
async def no_segment_is_left():
    yield
    await until(lambda: num_segments() == 0)


@pytest.fixture
def hostile(tmp_path):
    """Serve prefill calls by a function: yield its address and the requests that came."""

    @asynccontextmanager
    async def run(answer):
        requests = []

        class Hostile(transfer_pb2_grpc.TransferServiceServicer):
            async def Prefill(self, request, context):
                requests.append(request)
                for message in answer(request):
                    yield message

        server = grpc.aio.server()
        transfer_pb2_grpc.add_TransferServiceServicer_to_server(Hostile(), server)
        address = f"unix:{tmp_path}/hostile.sock"
        server.add_insecure_port(address)
        await server.start()
        yield address, requests
        await server.stop(0)

    return run


def num_segments():
    """Return how many segments this process has open, of either side."""
    count = 0
    for path in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            count += shared_memory.NAME in str(path.readlink())
    return count


async def answer(serving, prompt=LONG):
    received = await serving.say(start(prompt=prompt))
    return received.tokens("a"), received.end("a").finished.usage.transferred_tokens


def num_shared(serving):
    sample = serving.server.metrics.registry.get_sample_value
    return sample("chairlift_transfer_shared_blocks_total")


def request_of(source, segment, prompt=LONG):
    fields = {"layout": source.exporting.layout, "token_ids": prompt, "scope": "a"}
    return pb.PrefillRequest(**fields, shared_memory=segment.named)


def segment_of(source, num_blocks=NUM_BLOCKS):
    return closing(Segment(source.exporting.block_bytes, num_blocks))


async def read(call):
    """Read a call to its end; return whether memory is used, and the messages of blocks."""
    messages = [message async for message in call]
    assert messages[-1].HasField("end")
    uses_memory = messages[0].accepted.uses_shared_memory
    return uses_memory, [message.blocks for message in messages[1:-1]]


async def test_few_slots_carry_all_blocks_of_many_prompts(serve, prefill, decode_of, monkeypatch):
    monkeypatch.setattr(shared_memory, "MAX_SLOTS", 3)
    prompts = [[*LONG[:40], *range(1 + number, 130 + number)] for number in range(12)]
    async with serve() as alone:
        expected = [(await answer(alone, prompt))[0] for prompt in prompts]
    async with prefill() as source, decode_of(source.address) as serving:
        answers = await asyncio.gather(*(answer(serving, prompt) for prompt in prompts))
        assert [tokens for tokens, _ in answers] == expected
        assert num_shared(serving) == num_shared(source) == source.exporting.num_sent > 100
        await source.until_idle()
        await serving.until_idle()
        assert source.exporting.num_held_bytes == 0
        await until(lambda: source.exporting.borrowing.num_open == 0)


async def test_without_room_for_a_block_messages_carry_them(serve, prefill, decode_of, monkeypatch):
    async with serve() as alone:
        expected, _ = await answer(alone)
    async with prefill() as source, decode_of(source.address) as serving:
        monkeypatch.setattr(shared_memory, "MAX_SLOT_BYTES", source.exporting.block_bytes - 1)
        assert await answer(serving) == (expected, NUM_BLOCKS * 16)
        assert num_shared(serving) == num_shared(source) == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"nonce": bytes(16)},
        {"host": "another"},
        {"pid": 2**22 + 1},
        {"fd": 0},
        {"fd": 2**32 - 1},
        {"size": 2**64 - 1},
    ],
    ids=lambda fields: next(iter(fields)),
)
async def test_memory_that_is_not_the_callers_is_not_used(prefill, fields):
    async with prefill() as source:
        with segment_of(source) as segment:
            request = request_of(source, segment)
            for name, value in fields.items():
                setattr(request.shared_memory, name, value)
            uses_memory, messages = await read(source.transfer.Prefill(request))
            assert not uses_memory
            size = source.exporting.block_bytes
            blocks = [number for message in messages for number, _ in decode(message, size)]
            assert sorted(blocks) == list(range(NUM_BLOCKS))
            content = os.pread(segment.named.fd, segment.named.size, 0)
            assert content == segment.named.nonce.ljust(segment.named.size, b"\0")


async def test_a_caller_that_frees_no_slot_gets_the_rest_in_messages(prefill, monkeypatch):
    monkeypatch.setattr(sender, "MAX_WAIT_S", 0.01)
    async with prefill() as source:
        with segment_of(source, 4) as segment:
            uses_memory, messages = await read(source.transfer.Prefill(request_of(source, segment)))
            assert uses_memory
            size = source.exporting.block_bytes
            assert 0 < sum(len(m.indices) for m in messages if m.is_shared) <= 4
            blocks = dict(b for message in messages for b in decode(message, size, segment))
            assert sorted(blocks) == list(range(NUM_BLOCKS))


async def test_a_caller_that_counts_wrong_spoils_its_own_blocks_alone(prefill, monkeypatch):
    monkeypatch.setattr(sender, "MAX_WAIT_S", 0.1)
    async with prefill() as source:
        with segment_of(source, 2) as segment, segment_of(source) as other:
            calls = [
                source.transfer.Prefill(request_of(source, memory)) for memory in (segment, other)
            ]
            for freed in range(256):
                os.pwrite(segment.named.fd, bytes([freed]), 16)
                await asyncio.sleep(0)
            (_, spoilt), (_, messages) = await asyncio.gather(*map(read, calls))
            assert sum(len(message.indices) for message in spoilt) == NUM_BLOCKS
            size = source.exporting.block_bytes
            blocks = dict(b for message in messages for b in decode(message, size, other))
            assert sorted(blocks) == list(range(NUM_BLOCKS))


async def test_cancelled_calls_leave_no_segment(prefill):
    async with prefill() as source:
        for num_read in range(5):
            with segment_of(source) as segment:
                prompt = [3 + num_read, *LONG]
                calls = [
                    source.transfer.Prefill(request_of(source, segment, [place + 1, *prompt]))
                    for place in range(4)
                ]
                for call in calls:
                    for _ in range(num_read):
                        await call.read()
                for call in calls:
                    call.cancel()
        await source.until_idle()
        await until(lambda: source.exporting.borrowing.num_open == 0)
        await until(lambda: source.exporting.num_held_bytes == 0)


async def test_a_cancelled_request_leaves_no_segment(prefill, decode_of, monkeypatch):
    async with prefill() as source, decode_of(source.address) as serving:
        monkeypatch.setattr("tests.server.conftest.STEP_S", 0.05)
        call = serving.generation.Generate(iter([start(prompt=LONG)]))
        await call.read()
        await until(lambda: source.exporting.borrowing.num_open == 1)
        call.cancel()
        await until(lambda: num_segments() == 0)
        await serving.until_idle()
        await source.until_idle()


def accepted(**fields):
    return pb.PrefillResponse(accepted=pb.PrefillAccepted(uses_shared_memory=True, **fields))


def blocks_of(indices, checksums, **fields):
    blocks = pb.PrefillBlocks(indices=indices, checksums=checksums, is_shared=True, **fields)
    return pb.PrefillResponse(blocks=blocks)


def block_bytes(request):
    return (request.shared_memory.size - shared_memory.SLOTS_START) // NUM_BLOCKS


def not_written(request):
    yield accepted()
    yield blocks_of([0, 1], [1, 2])


def also_in_the_message(request):
    """The checksum is right, since a slot has zeros at first, and there are bytes beside it."""
    size = block_bytes(request)
    yield accepted()
    yield blocks_of([0], [shared_checksum(bytes(size))], data=bytes(size))


def more_than_slots(request):
    size = block_bytes(request)
    yield accepted()
    yield blocks_of([10**6] * 10**5, [shared_checksum(bytes(size))] * 10**5)


def changed_afterwards(request):
    size = block_bytes(request)
    with closing(PeerSegment.open(request.shared_memory, size)) as peer:
        peer.write([bytes([1]) * size])
        message = blocks_of([0], [shared_checksum(bytes([1]) * size)])
        peer.write([bytes([2]) * size] * NUM_BLOCKS)
    yield accepted()
    yield message


def never_accepted(request):
    yield pb.PrefillResponse(accepted=pb.PrefillAccepted())
    yield blocks_of([0], [1])


def without_checksums(request):
    yield accepted()
    yield blocks_of([0, 1, 2], [])


@pytest.mark.parametrize(
    "deceit",
    [
        not_written,
        also_in_the_message,
        more_than_slots,
        changed_afterwards,
        never_accepted,
        without_checksums,
    ],
)
async def test_what_a_hostile_prefill_server_says_of_memory_is_not_used(
    serve, decode_of, hostile, deceit
):
    async with serve() as alone:
        expected, _ = await answer(alone)
    async with hostile(deceit) as (address, requests), decode_of(address) as serving:
        assert await answer(serving) == (expected, 0)
        assert len(requests) == 1
        await until(lambda: num_segments() == 0)
        await serving.until_idle()


async def test_a_server_that_does_not_use_memory_is_lent_none_again(serve, decode_of, hostile):
    async with serve() as alone:
        expected, _ = await answer(alone)

    def messages_only(request):
        yield pb.PrefillResponse(accepted=pb.PrefillAccepted())
        yield pb.PrefillResponse(end=pb.PrefillEnd())

    async with hostile(messages_only) as (address, requests), decode_of(address) as serving:
        assert await answer(serving) == (expected, 0)
        await answer(serving, [5, *LONG])
        named = [request.HasField("shared_memory") for request in requests]
        assert named == [True, False]
