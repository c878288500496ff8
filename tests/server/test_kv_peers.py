"""Peers of the ZeroMQ sockets that send what no consumer sends, written without ZeroMQ."""

import asyncio
import socket
from contextlib import ExitStack, closing, suppress
from types import SimpleNamespace

import pytest
import zmq
from chairlift.server.kv_events.peer_filter import MAX_PEERS, MAX_SUBSCRIPTIONS

from tests.server.connection import accepted, start, until
from tests.server.kv_consumer import Consumer

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
MORE, LONG, COMMAND = 1, 2, 4
FLOOD = 2**22
"""Bytes of a peer that never ends: far more than buffers between two processes hold."""


def ready(kind):
    body = b"\x05READY\x0bSocket-Type" + len(kind).to_bytes(4, "big") + kind
    return bytes([COMMAND, len(body)]) + body


def connected(path):
    peer = socket.socket(socket.AF_UNIX)
    peer.settimeout(30)
    peer.connect(str(path))
    return peer


def greeted(path, kind):
    """A connection after its handshake, as a DEALER's or SUB's."""
    peer = connected(path)
    peer.sendall(GREETING + ready(kind))
    data = b""
    while b"READY" not in data:
        data += peer.recv(4096)
    return peer


def is_cut_off(peer, data, times):
    """Send data until the other side ends the connection; False where it takes all of it."""
    with closing(peer):
        with suppress(OSError):
            for _ in range(times):
                peer.sendall(data)
            peer.shutdown(socket.SHUT_WR)
            return False
        return True


def is_ended(peer):
    """Whether the other side ends the connection, whatever it sends before."""
    with closing(peer), suppress(ConnectionResetError):
        while True:
            try:
                if not peer.recv(4096):
                    break
            except TimeoutError:
                return False
    return True


@pytest.fixture
def published(serve, tmp_path):
    """A server with both sockets, their paths, and consumers."""
    paths = [tmp_path / "kv.sock", tmp_path / "replay.sock"]
    setting = "unix:{}?replay=unix:{}".format(*paths)

    def begin(extra=""):
        return serve(server={"kv_events": [setting + extra]})

    with ExitStack() as stack:

        def consumer(**options):
            return stack.enter_context(Consumer(*[f"ipc://{p}" for p in paths], **options))

        yield SimpleNamespace(serve=begin, kv=paths[0], replay=paths[1], consumer=consumer)


async def answered(server, published):
    """Whether a consumer hears of a prompt."""
    await server.say(start("a", prompt=list(range(40)), max_tokens=2))
    consumer = published.consumer()
    await asyncio.to_thread(consumer.sync)
    return len(consumer.blocks)


@pytest.mark.parametrize("size", [0, 1, 200])
async def test_a_message_without_an_end_is_cut_off_and_others_are_answered(published, size):
    part = bytes([MORE, size]) + b"x" * size
    async with published.serve() as server:
        peer = await asyncio.to_thread(greeted, published.replay, b"DEALER")
        many = part * (2**16 // len(part))
        assert await asyncio.to_thread(is_cut_off, peer, many, FLOOD // len(many))
        assert await answered(server, published) == 2


async def test_topics_without_an_end_are_cut_off_and_others_are_answered(published):
    async with published.serve() as server:
        peer = await asyncio.to_thread(greeted, published.kv, b"SUB")
        topics = [b"\0\7\1" + number.to_bytes(6, "big") for number in range(MAX_SUBSCRIPTIONS)]
        peer.sendall(b"".join(topics))
        assert await asyncio.to_thread(is_cut_off, peer, b"\0\5\1more" * 1000, FLOOD // 7000)
        peer = await asyncio.to_thread(greeted, published.kv, b"SUB")
        assert await asyncio.to_thread(is_cut_off, peer, b"\1\5\1more" * 1000, FLOOD // 7000)
        assert await answered(server, published) == 2


@pytest.mark.parametrize(
    "data",
    [
        GREETING + bytes([MORE | LONG]) + (2**40).to_bytes(8, "big"),
        GREETING + bytes([COMMAND | LONG]) + (2**63).to_bytes(8, "big"),
        GREETING + bytes([0, 255]) * 2**10,
        b"GET / HTTP/1.1\r\n\r\n",
        bytes(64),
        b"\xff" + bytes(8) + b"\x7f\x01\x05" + bytes(64),
        b"\x01\x00",
    ],
)
async def test_what_is_no_frame_of_a_consumer_ends_the_connection(published, data):
    async with published.serve() as server:
        for path in (published.kv, published.replay):
            peer = connected(path)
            peer.sendall(data)
            assert await asyncio.to_thread(is_ended, peer)
        assert await answered(server, published) == 2


async def test_one_connection_too_many_is_closed_until_another_ends(published):
    async with published.serve() as server:
        with ExitStack() as stack:
            for _ in range(MAX_PEERS):
                peer = await asyncio.to_thread(greeted, published.replay, b"DEALER")
                stack.enter_context(closing(peer))
            extra = connected(published.replay)
            assert await asyncio.to_thread(is_ended, extra)

        async def is_free():
            with closing(connected(published.replay)) as peer, suppress(OSError):
                peer.sendall(GREETING)
                return bool(await asyncio.to_thread(peer.recv, 1))

        await until(is_free)
        assert await answered(server, published) == 2


async def test_a_topic_and_a_name_may_be_long(published):
    topic = "kv@10.0.0.7:8000@" + "m" * 200
    async with published.serve(f"&topic={topic}") as server:
        consumer = published.consumer(topic=topic.encode())
        received = asyncio.create_task(asyncio.to_thread(consumer.received, 0))
        for number in range(1000):
            await server.say(start(str(number), prompt=[number % 200] * 40, max_tokens=2))
            if received.done():
                break
        assert await received
        with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
            dealer.setsockopt(zmq.LINGER, 0)
            dealer.setsockopt(zmq.IDENTITY, b"n" * 255)
            dealer.setsockopt(zmq.HEARTBEAT_IVL, 50)
            dealer.connect(f"ipc://{published.replay}")
            dealer.send((2**62).to_bytes(8, "big"))
            assert await asyncio.to_thread(dealer.poll, 30_000)


async def test_a_request_of_another_size_has_no_answer_and_harms_no_later_one(published):
    async with published.serve() as server:
        consumer = published.consumer()
        await server.say(start("a", prompt=list(range(40)), max_tokens=2))
        await asyncio.to_thread(consumer.sync)
        for parts in ([b"1"], [b"", b"123456789"], [b"a", b"b", b"c", b"d"], [b""]):
            consumer._dealer.send_multipart(parts)
        assert await asyncio.to_thread(consumer.replay, consumer.number + 1) == []


async def test_a_batch_over_tcp_does_not_wait_for_the_peer_to_acknowledge_another(serve, free_port):
    async with serve(server={"kv_events": [f"127.0.0.1:{free_port}"]}):
        with socket.create_connection(("127.0.0.1", free_port)) as peer:
            await asyncio.to_thread(peer.recv, 1)
            with accepted(peer) as side:
                assert side.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
