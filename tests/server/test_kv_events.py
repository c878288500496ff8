"""KV events over ZeroMQ: by them alone a consumer predicts what the prefix cache finds."""

import asyncio
import functools
import random
import subprocess
import sys
from concurrent.futures import Future
from contextlib import ExitStack
from types import SimpleNamespace

import pytest
from chairlift.api.config import engine_config
from chairlift.api.errors import ConfigError
from chairlift.api.types import PrefixCache, Request, Stopping
from chairlift.engine.engine import Engine
from chairlift.server.app.server import Server, ServerConfig
from chairlift.server.kv_events.address import published
from chairlift.server.kv_events.kv_events import KvEvents
from chairlift.server.kv_events.publisher import Publisher
from chairlift.server.kv_events.stream import EventStream
from chairlift.v1 import generation_pb2 as pb
from transformers import AutoModelForCausalLM

from tests.engine import adapters
from tests.server.connection import start, until
from tests.server.kv_consumer import BLOCK_SIZE, Consumer, Mirror

ANN, BOB = "ann-0123456789abcdef", "bob-0123456789abcdef"


@pytest.fixture
def sockets(tmp_path):
    """Addresses of the two sockets, the setting, and consumers that connect to them."""
    paths = [tmp_path / "kv.sock", tmp_path / "replay.sock"]
    setting = f"unix:{paths[0]}?replay=unix:{paths[1]}"
    with ExitStack() as stack:

        def consumer(**options):
            return stack.enter_context(Consumer(*[f"ipc://{p}" for p in paths], **options))

        yield SimpleNamespace(setting=setting, consumer=consumer, paths=paths)


async def cached_tokens(server, prompt, *, metadata=(), adapter="", **fields):
    """Answer a prompt; return how many of its tokens came from the prefix cache."""
    command = start("a", prompt=prompt, max_tokens=4, adapter=adapter, **fields)
    call = server.generation.Generate(iter([command]), metadata=metadata)
    async for response in call:
        for event in response.events:
            if event.WhichOneof("event") == "finished":
                usage = event.finished.usage
    return usage.cached_tokens


def prompts(seed, count, *, families=4, longest=120, vocab=100):
    """Prompts that begin like others, each cut at a place and continued."""
    draw = random.Random(seed)
    begin = [[draw.randrange(vocab) for _ in range(longest)] for _ in range(families)]
    for _ in range(count):
        cut = draw.randrange(1, longest)
        rest = [draw.randrange(vocab) for _ in range(draw.randrange(1, 40))]
        yield draw.choice(begin)[:cut] + rest


@pytest.mark.parametrize("form", ["map", "array"])
async def test_a_consumer_predicts_the_cached_tokens_of_each_prompt(
    serve, sockets, kv_blocks, form
):
    settings = {"kv_events": [f"{sockets.setting}&format={form}&topic=kv@tiny"]}
    async with serve(server=settings, kv_cache_memory=kv_blocks(24)) as server:
        consumer = sockets.consumer(topic=b"kv@tiny")
        num_hits = 0
        for prompt in prompts(1, 60):
            await asyncio.to_thread(consumer.sync)
            expected = consumer.num_cached(prompt)
            assert await cached_tokens(server, prompt) == expected
            num_hits += expected > 0
        await asyncio.to_thread(consumer.sync)
        assert num_hits > 10
        assert sum(b"BlockRemoved" in payload for payload in consumer.payloads) > 10
        assert len(consumer.blocks) == (await server.load()).num_cached_blocks


async def test_a_subscriber_that_loses_batches_finds_a_gap_and_has_it_replayed(serve, sockets):
    async with serve(server={"kv_events": [sockets.setting]}) as server:
        subscriber, other = sockets.consumer(), sockets.consumer()
        await asyncio.to_thread(subscriber.sync)
        # A subscription holds from the first batch that arrives: what came before is a gap, too.
        first = asyncio.create_task(asyncio.to_thread(subscriber.received, 0))
        for seed in range(1000):
            await cached_tokens(server, next(prompts(seed, 1)))
            if first.done():
                break
        await asyncio.to_thread(subscriber.follow, await first)
        known = subscriber.number
        for prompt in prompts(3, 12):
            await cached_tokens(server, prompt)
        await asyncio.to_thread(other.sync)
        batches = await asyncio.to_thread(subscriber.received, other.number)
        batches = [batch for batch in batches if batch[0] > known]
        assert [number for number, _ in batches] == list(range(known + 1, other.number + 1))
        lost = [batches[place][0] for place in (3, 4, 7)]
        kept = [batch for batch in batches if batch[0] not in lost]
        replayed = await asyncio.to_thread(subscriber.follow, kept)
        assert set(lost) <= {number for number, _ in replayed}
        assert subscriber.blocks == other.blocks
        assert await asyncio.to_thread(other.replay, other.number + 1) == []


async def test_a_subscriber_that_never_reads_delays_neither_answers_nor_others(serve, sockets):
    async with serve(server={"kv_events": [sockets.setting]}) as server:
        sockets.consumer(unread=1)
        consumer = sockets.consumer()
        for prompt in prompts(5, 30):
            await asyncio.to_thread(consumer.sync)
            assert await cached_tokens(server, prompt) == consumer.num_cached(prompt)


async def test_only_the_shared_tenant_and_no_salt_is_ever_told(serve, sockets, tmp_path):
    tokens = tmp_path / "tokens"
    tokens.touch(0o600)
    tokens.write_text(f"ann:{ANN}\nbob:{BOB}\n")
    settings = {"auth_tokens": str(tokens), "kv_events": [f"ann={sockets.setting}"]}
    async with serve(server=settings) as server:
        consumer = sockets.consumer()
        ann, bob = ((("authorization", f"Bearer {token}"),) for token in (ANN, BOB))
        # Of tokens that no other prompt has.
        salted = {"prefix_cache": pb.PrefixCache(salt="s")}
        await cached_tokens(server, [1] * 40, metadata=ann)
        await cached_tokens(server, [2] * 40, metadata=bob)
        await cached_tokens(server, [3] * 40, metadata=ann, **salted)
        assert await cached_tokens(server, [3] * 40, metadata=ann, **salted) == 2 * BLOCK_SIZE
        await asyncio.to_thread(consumer.sync)
        assert 1 in consumer.tokens
        assert not consumer.tokens & {2, 3}
        assert consumer.num_cached([1] * 40) == 2 * BLOCK_SIZE


async def test_blocks_of_an_adapter_have_its_name_until_it_is_unloaded(
    serve, sockets, tiny_folder, tmp_path
):
    folder = adapters.write(tmp_path / "up", AutoModelForCausalLM.from_pretrained(tiny_folder))
    settings = {"adapters": [f"up={folder}"], "max_adapters": 1}
    async with serve(server={"kv_events": [sockets.setting]}, **settings) as server:
        consumer, prompt = sockets.consumer(), list(range(50))
        await cached_tokens(server, prompt)
        await cached_tokens(server, prompt, adapter="up")
        await asyncio.to_thread(consumer.sync)
        assert consumer.num_cached(prompt) == consumer.num_cached(prompt, "up") == 3 * BLOCK_SIZE
        assert {adapter for _, _, adapter in consumer.blocks.values()} == {None, "up"}
        engine = server.server.gate.engine()
        await engine.adapters.unload(engine.engine, "up", 1.0)

        async def is_gone():
            await asyncio.to_thread(consumer.sync)
            return consumer.num_cached(prompt, "up") == 0

        await until(is_gone)
        assert consumer.num_cached(prompt) == 3 * BLOCK_SIZE


async def test_a_restart_of_the_engine_clears_and_the_numbers_go_on(serve, sockets):
    async with serve(server={"kv_events": [sockets.setting]}) as server:
        consumer, prompt = sockets.consumer(), list(range(50))
        await cached_tokens(server, prompt)
        await asyncio.to_thread(consumer.sync)
        assert consumer.num_cached(prompt) == 3 * BLOCK_SIZE
        num_cleared, number = consumer.num_cleared, consumer.number
        engine = server.server.gate.engine()
        engine.fail_all()

        async def answered():
            events = (await server.say(start("probe"))).of("probe")
            return bool(events) and events[-1].HasField("finished")

        await until(answered)
        await asyncio.to_thread(consumer.sync)
        assert (consumer.blocks, consumer.num_cleared) == ({}, num_cleared + 1)
        assert consumer.number > number
        assert await cached_tokens(server, prompt) == 0
        await asyncio.to_thread(consumer.sync)
        assert consumer.num_cached(prompt) == 3 * BLOCK_SIZE


async def test_a_server_that_starts_again_has_higher_numbers(serve, sockets):
    numbers = []
    for _ in range(2):
        async with serve(server={"kv_events": [sockets.setting]}) as server:
            await cached_tokens(server, list(range(50)))
            consumer = sockets.consumer()
            await asyncio.to_thread(consumer.sync)
            numbers.append(consumer.number)
    assert numbers[1] > numbers[0]


def test_a_reader_that_is_too_far_behind_is_told_all_there_is(tiny_folder, sockets):
    events = KvEvents([""], new_stream=functools.partial(EventStream, max_batches=4))
    stream = events.streams[""]
    config = ServerConfig(kv_events=[sockets.setting])
    ((_, endpoint),) = [(p.tenant, p.endpoint) for p in published(config, prefix_cache=True)]
    with Engine(tiny_folder, max_num_seqs=4) as engine:
        engine.report_blocks([""], events)

        def ask(place):
            answer = Future()
            snapshot = engine.block_snapshot()
            answer.set_result((stream.number, snapshot))
            return answer

        events.begin(ask)
        reader, old = Mirror(), stream.number
        for prompt in prompts(7, 20):
            engine.add(Request(prompt, stopping=Stopping(max_tokens=2, ignore_eos=True)))
            while engine.has_work:
                engine.step()
        assert stream.since(old) is None, "the batches behind it are gone"
        publisher = Publisher(events, stream, endpoint, BLOCK_SIZE)
        try:
            late, fresh = sockets.consumer(), sockets.consumer()
            late.number = old
            late.sync()
            fresh.sync()
        finally:
            publisher.close()
        assert late.num_cleared == 1
        assert late.blocks == fresh.blocks
        assert len(late.blocks) == engine.load().num_cached_blocks
        assert reader.blocks == {}


def test_a_stream_keeps_no_more_memory_than_it_may(tiny_folder):
    events = KvEvents([""], new_stream=functools.partial(EventStream, max_bytes=4000))
    stream = events.streams[""]
    with Engine(tiny_folder, max_num_seqs=4) as engine:
        engine.report_blocks([""], events)
        first = stream.number
        for prompt in prompts(9, 40):
            engine.add(Request(prompt, stopping=Stopping(max_tokens=2, ignore_eos=True)))
            while engine.has_work:
                engine.step()
        number = next(n for n in range(first, stream.number) if stream.since(n) is not None)
        kept = stream.since(number)
        assert first < number
        assert sum(batch.num_bytes for batch in kept) <= 4000
        # Requests that must not be cached tell of nothing.
        before = stream.number
        cache = PrefixCache(write=False)
        engine.add(Request([5] * 40, prefix_cache=cache, stopping=Stopping(max_tokens=2)))
        while engine.has_work:
            engine.step()
        late = [event for batch in stream.since(before) for event in batch.events()]
        assert not [event for event in late if hasattr(event, "tokens")]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kv_events": "0.0.0.0:5557"}, "can be reached from other machines"),
        ({"kv_events": "127.0.0.1:5557?replay=0.0.0.0:5558"}, "reached from other machines"),
        ({"kv_events": "127.0.0.1"}, "expected HOST:PORT or unix:PATH"),
        ({"kv_events": "127.0.0.1:5557?format=xml"}, "format=map or format=array"),
        ({"kv_events": "127.0.0.1:5557?speed=9"}, "replay, format and topic once each"),
        ({"kv_events": "127.0.0.1:5557?topic=a&topic=b"}, "replay, format and topic once each"),
        ({"kv_events": "grpc"}, "needs --protocol vllm"),
        ({"kv_events": "ann=127.0.0.1:5557"}, "no caller has a name here"),
        ({"kv_events": "127.0.0.1:5557,127.0.0.1:5558"}, "each tenant once"),
        (
            {"kv_events": "127.0.0.1:5557", "trust_tenant_metadata": True, "protocol": "vllm"},
            None,
        ),
        ({"kv_events": "0.0.0.0:5557", "kv_events_allow_remote": True}, None),
        ({"kv_events": "127.0.0.1:5557", "auth_tokens": "tokens"}, "expected TENANT=ADDRESS"),
    ],
)
def test_an_address_that_is_wrong_or_not_safe_is_refused(settings, message):
    config = ServerConfig(**settings)
    if message is None:
        assert len(published(config, prefix_cache=True)) == 1
    else:
        with pytest.raises(ConfigError, match=f"^kv_events: .*{message}"):
            published(config, prefix_cache=True)


def test_events_of_a_prefix_cache_that_is_off_are_refused(tmp_path):
    config = ServerConfig(listen=f"unix:{tmp_path}/a", kv_events="127.0.0.1:0")
    with pytest.raises(ConfigError, match=r"kv_events: .*it is off"):
        Server(engine_config(prefix_cache=False), config)


@pytest.mark.parametrize("package", ["zmq", "msgpack"])
def test_without_its_packages_the_setting_is_refused_with_what_to_install(
    tmp_path, monkeypatch, package
):
    monkeypatch.setitem(sys.modules, package, None)
    config = ServerConfig(listen=f"unix:{tmp_path}/a", kv_events="127.0.0.1:0")
    with pytest.raises(ConfigError, match=rf"{package} is missing: pip install 'chairlift\[kv-"):
        Server(engine_config(), config)


def test_a_server_without_the_setting_loads_neither_package():
    program = (
        "import sys, chairlift.server.app.run, chairlift.engine.async_engine; "
        "print({'zmq', 'msgpack'} & set(sys.modules))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == "set()"


async def test_the_sockets_are_their_owners_alone(serve, sockets):
    async with serve(server={"kv_events": [sockets.setting]}):
        assert [path.stat().st_mode & 0o777 for path in sockets.paths] == [0o600, 0o600]
