"""Prefill apart from decode: two servers, and what hostile callers make of them."""

import asyncio
import time
from contextlib import suppress

import grpc
import pytest
from chairlift.api.config import engine_config
from chairlift.api.errors import ConfigError
from chairlift.engine.transfer import imports
from chairlift.server.app.server import Server, ServerConfig
from chairlift.server.transfer import peers, shared_memory, wire
from chairlift.server.transfer.wire import decode
from chairlift.v1 import generation_pb2, transfer_pb2_grpc
from chairlift.v1 import transfer_pb2 as pb

from tests.server.certificates import Certificates
from tests.server.conftest import LONG, NUM_BLOCKS
from tests.server.connection import Status, start, until

pytestmark = pytest.mark.usefixtures("long_is_worth_it")
ANN, BOB = "ann-0123456789abcdef", "bob-0123456789abcdef"


def request_of(source, prompt=LONG, **fields):
    layout = source.exporting.layout
    return pb.PrefillRequest(**{"layout": layout, "token_ids": prompt, "scope": "a", **fields})


async def end_of(call):
    """Read all of a call; return its status."""
    try:
        async for _ in call:
            pass
    except grpc.aio.AioRpcError as error:
        return Status.of(error)
    return Status()


async def read_all(call):
    """Read the rest of a call that was read from; return its code."""
    with suppress(grpc.aio.AioRpcError):
        while await call.read() is not grpc.aio.EOF:
            pass
    return await call.code()


async def answer(serving, prompt=LONG, **fields):
    received = await serving.say(start(prompt=prompt, **fields))
    return received.tokens("a"), received.end("a")


async def test_a_long_prompt_is_computed_by_the_prefill_server(serve, prefill, decode_of):
    async with serve() as alone:
        expected, end = await answer(alone)
        assert end.finished.usage.transferred_tokens == 0
    async with prefill() as source, decode_of(source.address) as serving:
        tokens, end = await answer(serving)
        assert tokens == expected
        assert end.finished.usage.transferred_tokens == NUM_BLOCKS * 16
        assert end.finished.usage.cached_tokens == NUM_BLOCKS * 16
        for server in (serving.server, source.server):
            sample = server.metrics.registry.get_sample_value
            assert sample("chairlift_transfer_shared_blocks_total") == NUM_BLOCKS
        sample = serving.server.metrics.registry.get_sample_value
        assert sample("chairlift_transfer_received_blocks_total") == NUM_BLOCKS
        assert sample("chairlift_transfer_whole_prompts_total") == 1
        sample = source.server.metrics.registry.get_sample_value
        assert sample("chairlift_transfer_sent_blocks_total") == NUM_BLOCKS
        assert sample("chairlift_transfer_held_bytes") == 0
        await serving.until_idle()
        await source.until_idle()


async def test_many_prompts_at_once_give_the_same_tokens(serve, prefill, decode_of):
    prompts = [[*LONG[:40], *range(1 + number, 130 + number)] for number in range(12)]
    async with serve() as alone:
        expected = [(await answer(alone, prompt))[0] for prompt in prompts]
    async with prefill() as source, decode_of(source.address, strict_roles=True) as serving:
        answers = await asyncio.gather(*(answer(serving, prompt) for prompt in prompts))
        assert [tokens for tokens, _ in answers] == expected
        usages = [end.finished.usage for _, end in answers]
        assert all(usage.transferred_tokens > 100 for usage in usages), usages
        await source.until_idle()


async def test_a_server_that_went_is_asked_no_more_and_prompts_are_computed(
    serve, prefill, decode_of
):
    async with serve() as alone:
        expected, _ = await answer(alone)
    async with prefill() as source:
        address = source.address
    async with decode_of(address) as serving:
        for _ in range(2):
            tokens, end = await answer(serving)
            assert tokens == expected
            assert end.finished.usage.transferred_tokens == 0
        await serving.until_idle()


async def test_a_server_that_hangs_is_left_alone_for_a_while(
    serve, decode_of, tmp_path, monkeypatch
):
    async with serve() as alone:
        expected, _ = await answer(alone)
    hour_ns = 3600 * 10**9
    monkeypatch.setattr(imports, "_limit_ns", lambda *_: hour_ns)
    monkeypatch.setattr(peers, "_BACK_OFF_S", 3600.0)
    calls = []

    class Hanging(transfer_pb2_grpc.TransferServiceServicer):
        async def Prefill(self, request, context):
            calls.append(request)
            # The time of a transfer is over when its call has arrived, however late that is.
            imported._clock = lambda: time.monotonic_ns() + hour_ns
            await asyncio.Event().wait()
            yield

    hanging = grpc.aio.server()
    transfer_pb2_grpc.add_TransferServiceServicer_to_server(Hanging(), hanging)
    address = f"unix:{tmp_path}/hanging.sock"
    hanging.add_insecure_port(address)
    await hanging.start()
    async with decode_of(address) as serving:
        imported = serving.server._transfers.imports
        (peer,) = imported._fetcher._peers
        for prompt in (LONG, [5, *LONG], [6, *LONG]):
            tokens, end = await answer(serving, prompt)
            assert end.finished.usage.transferred_tokens == 0
            assert prompt is not LONG or tokens == expected
            await until(lambda: peer.open_from > time.monotonic())
        await serving.until_idle()
    await hanging.stop(0)
    assert len(calls) == 1, "the others were computed at once"


async def test_with_strict_roles_a_prompt_without_a_server_is_unavailable(prefill, decode_of):
    async with prefill() as source:
        address = source.address
    async with decode_of(address, strict_roles=True) as serving:
        _, end = await answer(serving)
        assert end.failed.error.reason == "PREFILL_UNAVAILABLE"
        tokens, _ = await answer(serving, LONG[:20])
        assert len(tokens) == 8, "short prompts are computed here"
        await serving.until_idle()


async def test_a_server_of_other_weights_refuses_and_the_prompt_is_computed(
    serve, prefill, decode_of, monkeypatch
):
    async with serve() as alone:
        expected, _ = await answer(alone)
    async with prefill() as source, decode_of(source.address) as serving:
        source.exporting._layout = bytes(32)
        tokens, end = await answer(serving)
        assert tokens == expected
        assert end.finished.usage.transferred_tokens == 0


@pytest.mark.parametrize(("kind", "max_bytes"), [("shared_checksum", 2**20), ("checksum", 0)])
async def test_damaged_blocks_are_not_used(serve, prefill, decode_of, monkeypatch, kind, max_bytes):
    async with serve() as alone:
        expected, _ = await answer(alone)
    monkeypatch.setattr(shared_memory, "MAX_SLOT_BYTES", max_bytes)
    async with prefill() as source, decode_of(source.address) as serving:
        monkeypatch.setattr(wire, kind, lambda data: len(data) + id(data) % 7919)
        tokens, end = await answer(serving)
        assert tokens == expected
        assert end.finished.usage.transferred_tokens == 0


async def test_a_tenant_gets_no_block_of_another_through_a_shared_decode_server(
    prefill, decode_of, tmp_path
):
    tokens = tmp_path / "tokens"
    tokens.write_text(f"ann:{ANN}\nbob:{BOB}\n")
    tokens.chmod(0o600)
    async with (
        prefill() as source,
        decode_of(source.address, auth_tokens=str(tokens)) as serving,
    ):
        for token in (ANN, BOB):
            metadata = (("authorization", f"Bearer {token}"),)
            call = serving.generation.Generate(iter([start(prompt=LONG)]), metadata=metadata)
            async for response in call:
                for event in response.events:
                    if event.HasField("finished"):
                        assert event.finished.usage.transferred_tokens == NUM_BLOCKS * 16
        load = await source.load()
        assert load.num_prefix_hits == 0


async def test_a_decode_server_shows_its_token(prefill, decode_of, tmp_path):
    tokens, token = tmp_path / "tokens", tmp_path / "token"
    tokens.write_text(f"decode:{ANN}\n")
    token.write_text(f"{ANN}\n")
    for path in (tokens, token):
        path.chmod(0o600)
    async with prefill(auth_tokens=str(tokens)) as source:
        async with decode_of(source.address, prefill_token=str(token)) as serving:
            _, end = await answer(serving)
            assert end.finished.usage.transferred_tokens == NUM_BLOCKS * 16
        status = await end_of(source.transfer.Prefill(request_of(source)))
        assert status.code is grpc.StatusCode.UNAUTHENTICATED


async def test_a_prefill_server_is_reached_by_tls(serve, decode_of, tmp_path):
    certificates = Certificates(tmp_path / "certificates")
    other = Certificates(tmp_path / "others")
    source = serve(server={"role": "prefill", **certificates.tls}, listen="127.0.0.1:0")
    async with source as serving_tls:
        address = serving_tls.address.replace("127.0.0.1", "localhost")
        for ca, num_tokens in ((certificates, NUM_BLOCKS * 16), (other, 0)):
            async with decode_of(address, prefill_ca=str(ca.ca_file)) as serving:
                _, end = await answer(serving)
                assert end.finished.usage.transferred_tokens == num_tokens


async def test_a_server_without_the_role_has_no_such_service(serve):
    async with serve() as serving:
        stub = transfer_pb2_grpc.TransferServiceStub(serving.channel)
        status = await end_of(stub.Prefill(pb.PrefillRequest(token_ids=LONG)))
        assert status.code is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize(
    ("fields", "reason", "message"),
    [
        ({"layout": b""}, "FOREIGN_LAYOUT", "layout: expected"),
        ({"layout": bytes(10**5)}, "FOREIGN_LAYOUT", "layout: expected"),
        ({"prompt": []}, "BAD_PARAMETER", "token_ids: expected at least 17 tokens"),
        ({"prompt": LONG[:16]}, "BAD_PARAMETER", "token_ids: expected at least 17 tokens"),
        ({"prompt": [2**32 - 1] * 20}, "BAD_PARAMETER", "token_ids"),
        ({"prompt": [1] * 5000}, "PROMPT_TOO_LONG", "token_ids"),
        ({"first_block": 10}, "BAD_PARAMETER", "first_block: expected a block below 10, got 10"),
        ({"first_block": 2**32 - 1}, "BAD_PARAMETER", "first_block"),
        ({"scope": "x" * 257}, "BAD_PARAMETER", "scope: expected at most 256 characters, got 257"),
    ],
    ids=lambda value: str(value)[:30],
)
async def test_a_wrong_field_is_named(prefill, fields, reason, message):
    async with prefill() as source:
        status = await end_of(source.transfer.Prefill(request_of(source, **fields)))
        assert (status.reason, message in status.message) == (reason, True), status
        assert source.exporting.num_held_bytes == 0
        await source.until_idle()


async def test_blocks_come_with_checksums_and_an_end(prefill):
    async with prefill() as source:
        kinds, blocks = [], {}
        async for response in source.transfer.Prefill(request_of(source, first_block=3)):
            kinds.append(response.WhichOneof("event"))
            if kinds[-1] == "blocks":
                size = len(response.blocks.data) // len(response.blocks.indices)
                blocks |= dict(decode(response.blocks, size))
        assert kinds[0] == "accepted"
        assert kinds[-1] == "end"
        assert set(kinds[1:-1]) == {"blocks"}
        assert sorted(blocks) == list(range(3, NUM_BLOCKS))
        assert response.end.computed_tokens == NUM_BLOCKS * 16 + 1


async def test_a_cancelled_call_leaves_nothing(prefill):
    async with prefill() as source:
        calls = [
            source.transfer.Prefill(request_of(source, [number + 1, *LONG])) for number in range(20)
        ]
        await asyncio.gather(*(call.read() for call in calls[:5]))
        for call in calls:
            call.cancel()
        await source.until_idle()
        await until(lambda: source.exporting.num_held_bytes == 0)
        response = await source.transfer.Prefill(request_of(source)).read()
        assert response.accepted.instance == source.exporting.instance


async def test_a_prompt_that_another_call_aborts_has_no_end(prefill, monkeypatch):
    async with prefill() as source:
        monkeypatch.setattr("tests.server.conftest.STEP_S", 0.2)
        call = source.transfer.Prefill(request_of(source))
        assert (await call.read()).HasField("accepted")
        await source.generation.Abort(generation_pb2.AbortRequest(all={}))
        assert await read_all(call) is grpc.StatusCode.ABORTED
        await source.until_idle()
        assert source.exporting.num_held_bytes == 0


async def test_blocks_that_have_no_room_end_the_call_also_where_none_was_sent(prefill, monkeypatch):
    async with prefill() as source:
        monkeypatch.setattr(source.exporting._exports.held, "_max_bytes", 1)
        status = await end_of(source.transfer.Prefill(request_of(source)))
        assert status.reason == "TRANSFER_MEMORY"


async def test_callers_that_read_nothing_lose_their_calls_and_others_are_served(
    prefill, monkeypatch
):
    async with prefill(write_timeout_s=0.5) as source:
        monkeypatch.setattr(source.exporting._exports.held, "_max_bytes", 2**14)
        prompts = [[number + 1, *LONG[:150]] for number in range(8)]
        deaf = [source.transfer.Prefill(request_of(source, prompt)) for prompt in prompts]
        await asyncio.gather(*(call.read() for call in deaf))
        tokens, _ = await answer(source)
        assert len(tokens) == 8
        await source.until_idle()
        await until(lambda: source.exporting.num_held_bytes == 0)
        codes = [await read_all(call) for call in deaf]
        exhausted = grpc.StatusCode.RESOURCE_EXHAUSTED
        assert set(codes) <= {grpc.StatusCode.OK, exhausted}
        assert exhausted in codes


@pytest.mark.parametrize(
    ("server", "message"),
    [
        ({"prefill_peers": "127.0.0.1:1"}, "prefill_peers: expected none without role decode"),
        ({"strict_roles": True}, "strict_roles: expected none without role decode"),
        (
            {"role": "prefill", "prefill_token": "x"},
            "prefill_token: expected none without role decode",
        ),
        ({"role": "decode"}, "prefill_peers: expected addresses"),
        ({"role": "decode", "prefill_peers": "x"}, "prefill_peers: expected HOST:PORT"),
        ({"role": "decode", "prefill_peers": "h:99999"}, "prefill_peers: expected HOST:PORT"),
        ({"role": "decode", "prefill_peers": "10.0.0.1:5"}, "needs prefill_ca"),
        (
            {"role": "decode", "prefill_peers": "localhost:5", "prefill_token": "/nowhere"},
            "prefill_token: ",
        ),
    ],
    ids=str,
)
def test_a_setting_that_does_not_fit_the_role_is_named(server, message):
    with pytest.raises(ConfigError, match=message):
        Server(engine_config(), ServerConfig(**server))


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_role_needs_the_prefix_cache_and_one_process(role):
    config = ServerConfig(role=role, prefill_peers="localhost:5" if role == "decode" else None)
    with pytest.raises(ConfigError, match=f"prefix_cache.*role {role}"):
        Server(engine_config(prefix_cache=False), config)
    with pytest.raises(ConfigError, match=f"tensor_parallel.*role {role}"):
        Server(engine_config(tensor_parallel=2), config)
