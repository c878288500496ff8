"""Tokens: nothing but the health check answers without one, and a token's tenant is its own."""

import hashlib

import grpc
import pytest
from chairlift.api.config import engine_config
from chairlift.api.errors import ConfigError, Reason, RequestError
from chairlift.client import connect_async
from chairlift.server.app.server import Server, ServerConfig
from chairlift.server.security import reloading_file
from chairlift.v1 import generation_pb2 as pb
from chairlift.v1 import server_pb2
from google.protobuf import descriptor_pool
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from tests.server.connection import Serving, Status, next_event, receive, start, status_of

ANN, BOB = "ann-0123456789abcdef", "bob-0123456789abcdef"


@pytest.fixture
def token_file(tmp_path):
    """Ann's token is written out, Bob's as a digest."""
    file = tmp_path / "tokens"
    file.touch(0o600)
    digest = hashlib.sha256(BOB.encode()).hexdigest()
    file.write_text(f"# tokens\n\nann:{ANN}\nbob:sha256:{digest}\n")
    return file


@pytest.fixture
def guarded(token_file):
    """Settings of a server that requires tokens."""
    return {"auth_tokens": str(token_file)}


def bearer(token):
    return (("authorization", f"Bearer {token}"),)


async def services_of(channel, metadata):
    """Return the names of the services that a server registered, from its reflection service."""
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    call = stub.ServerReflectionInfo(iter([request]), metadata=metadata)
    response = await call.read()
    return [service.name for service in response.list_services_response.service]


def methods_of(services):
    pool = descriptor_pool.Default()
    for name in services:
        for method in pool.FindServiceByName(name).methods:
            yield f"/{name}/{method.name}"


async def end_of(channel, method, metadata):
    """How a call of a method of any kind ends, with an empty message."""
    call = channel.stream_stream(method)(iter([b""]), metadata=metadata)
    try:
        while await call.read() is not grpc.aio.EOF:
            pass
    except grpc.aio.AioRpcError as error:
        return Status.of(error)
    return Status()


UNAUTHENTICATED = {
    "nothing": (),
    "an unknown token": bearer("eve-0123456789abcdef"),
    "a part of a token": bearer(ANN[:-1]),
    "more than a token": bearer(ANN + "0"),
    "no token": (("authorization", "Bearer "),),
    "another scheme": (("authorization", f"Basic {ANN}"),),
    "the token alone": (("authorization", ANN),),
    "the digest": bearer(hashlib.sha256(BOB.encode()).hexdigest()),
    "the line of the file": bearer(f"ann:{ANN}"),
    "two tokens": bearer(ANN) + bearer(BOB),
    "another key": (("token", ANN),),
}


@pytest.mark.parametrize("metadata", UNAUTHENTICATED.values(), ids=UNAUTHENTICATED)
async def test_no_method_but_the_health_check_answers_without_a_token(serve, guarded, metadata):
    async with serve(server=guarded) as server:
        services = await services_of(server.channel, bearer(ANN))
        methods = list(methods_of(services))
        assert len(services) == 8
        assert len(methods) >= 17
        answered = []
        for method in [*methods, "/chairlift.v1.GenerationService/Nope", "/unknown/Nothing"]:
            ended = await end_of(server.channel, method, metadata)
            if ended.code is not grpc.StatusCode.UNAUTHENTICATED:
                answered.append(method)
            else:
                assert ended.reason == "UNAUTHENTICATED"
        assert answered == ["/grpc.health.v1.Health/Check"]


async def test_a_stream_that_says_nothing_is_refused(serve, guarded):
    async with serve(server=guarded) as server:
        call = server.generation.Generate()
        assert await call.code() is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize("token", [ANN, BOB])
async def test_a_known_token_is_answered(serve, guarded, token):
    async with (
        serve(server=guarded) as server,
        connect_async(server.address, token=token) as client,
    ):
        assert await client.generate([1, 2, 3], max_tokens=9, seed=1, ignore_eos=True).text()
        assert (await client.server_info()).version


async def test_a_client_learns_why_it_is_refused(serve, guarded):
    async with (
        serve(server=guarded) as server,
        connect_async(server.address) as client,
    ):
        assert await client.is_serving()
        with pytest.raises(RequestError) as error:
            await client.generate([1, 2, 3]).text()
        assert error.value.reason is Reason.UNAUTHENTICATED


async def test_tokens_change_with_their_file(serve, guarded, token_file):
    async with serve(server=guarded) as server:
        token_file.write_text("eve:eve-0123456789abcdef\n")
        request = server_pb2.GetServerInfoRequest()
        old = server.info.GetServerInfo(request, metadata=bearer(ANN))
        assert (await status_of(old)).code is grpc.StatusCode.UNAUTHENTICATED
        new = server.info.GetServerInfo(request, metadata=bearer("eve-0123456789abcdef"))
        assert (await status_of(new)).code is grpc.StatusCode.OK


@pytest.mark.parametrize("text", [None, "", "# empty\n"])
async def test_a_token_file_that_is_deleted_or_emptied_withdraws_its_tokens(
    serve, guarded, token_file, monkeypatch, text
):
    async def code():
        request = server_pb2.GetServerInfoRequest()
        return (await status_of(server.info.GetServerInfo(request, metadata=bearer(ANN)))).code

    async with serve(server=guarded) as server:
        before = token_file.read_text()
        # A program that replaces the file may need so long.
        monkeypatch.setattr(reloading_file, "GRACE_S", 3600.0)
        token_file.unlink()
        if text is not None:
            token_file.touch(0o600)
            token_file.write_text(text)
        assert await code() is grpc.StatusCode.OK
        monkeypatch.setattr(reloading_file, "GRACE_S", 0.0)
        assert await code() is grpc.StatusCode.UNAUTHENTICATED
        assert await server.health() == "SERVING"
        token_file.touch(0o600)
        token_file.write_text(before)
        assert await code() is grpc.StatusCode.OK


async def test_a_wrong_line_leaves_the_old_tokens_until_it_is_mended(
    serve, guarded, token_file, monkeypatch, caplog
):
    monkeypatch.setattr(reloading_file, "GRACE_S", 0.0)
    async with serve(server=guarded) as server:
        request = server_pb2.GetServerInfoRequest()
        token_file.write_text(f"eve:eve-0123456789abcdef\nann:{ANN}\nwrong\n")
        old = server.info.GetServerInfo(request, metadata=bearer(BOB))
        assert (await status_of(old)).code is grpc.StatusCode.OK
        assert "line 3: expected TENANT:TOKEN" in caplog.text
        assert ANN not in caplog.text


class Caller:
    """Speaks with fixed metadata."""

    def __init__(self, server: Serving, metadata):
        self.server, self.metadata = server, metadata

    async def cached_tokens(self, prompt):
        """How much of a prompt the prefix cache knew."""
        request = start("a", prompt=prompt, max_tokens=1)
        call = self.server.generation.Generate(iter([request]), metadata=self.metadata)
        return (await receive(call)).end("a").finished.usage.cached_tokens

    async def abort(self, **target):
        request = pb.AbortRequest(**target)
        return (await self.server.generation.Abort(request, metadata=self.metadata)).num_aborted


async def test_tenants_share_no_prefixes(serve, guarded):
    async with serve(server=guarded) as server:
        ann, bob = (Caller(server, bearer(token)) for token in (ANN, BOB))
        prompt = range(1, 60)
        assert await ann.cached_tokens(prompt) == 0
        assert await ann.cached_tokens(prompt) == 48
        assert await bob.cached_tokens(prompt) == 0


async def test_tenants_do_not_abort_each_other(serve, guarded):
    # Half a batch waits, so that the request lives until it is aborted.
    half_a_batch = {"batching": "static", "batch_size": 2, "batch_timeout_s": 60}
    async with serve(server=guarded, **half_a_batch) as server:
        ann, bob = (Caller(server, bearer(token)) for token in (ANN, BOB))
        call = server.generation.Generate(metadata=ann.metadata)
        await call.write(start("a", max_tokens=250))
        accepted = (await next_event(call, "accepted"))[0].accepted
        assert await bob.abort(handle=accepted.handle) == 0
        assert await bob.abort(all=pb.AllRequests()) == 0
        assert await ann.abort(handle=accepted.handle) == 1
        await call.done_writing()
        assert (await receive(call)).end("a").finished.reason == pb.FINISH_REASON_CANCELLED


def named(tenant):
    return (("chairlift-tenant", tenant),)


async def test_the_word_of_a_caller_counts_only_where_it_is_trusted(serve, guarded):
    prompt = range(1, 60)
    async with serve(server=guarded) as server:
        first, second = (Caller(server, bearer(ANN) + named(name)) for name in ("x", "y"))
        assert await first.cached_tokens(prompt) == 0
        assert await second.cached_tokens(prompt) == 48
    async with serve(server={**guarded, "trust_tenant_metadata": True}) as server:
        first, second = (Caller(server, bearer(ANN) + named(name)) for name in ("x", "y"))
        assert await first.cached_tokens(prompt) == 0
        assert await second.cached_tokens(prompt) == 0
        assert await Caller(server, bearer(BOB) + named("x")).cached_tokens(prompt) == 48


@pytest.mark.parametrize("metadata", [named(""), named("x" * 129), named("a b"), named("x") * 2])
async def test_a_tenant_that_is_no_name_is_refused(serve, metadata):
    async with serve(server={"trust_tenant_metadata": True}) as server:
        call = server.generation.Generate(iter([start("a")]), metadata=metadata)
        status = (await receive(call)).status
        assert status.code is grpc.StatusCode.INVALID_ARGUMENT
        assert status.fields == ["chairlift-tenant"]


@pytest.mark.parametrize(
    "line",
    [
        *("ann", "ann:", "ann:short-secret", ":secret-0123456789", "a b:secret-0123456789"),
        *("ann:secret 0123456789ab", "ann:sha256:secret", "ann:secret-ééééééééé", "\x00\xff"),
    ],
)
def test_a_line_that_is_none_is_refused_without_telling_it(token_file, line):
    token_file.write_text(f"ann:{ANN}\n{line}\n")
    with pytest.raises(ConfigError, match=r"^auth_tokens: .*, line 2: expected TENANT") as error:
        Server(engine_config(), ServerConfig(auth_tokens=str(token_file)))
    assert "secret" not in str(error.value)


def test_a_file_that_is_world_readable_or_empty_is_refused(token_file):
    config = ServerConfig(auth_tokens=str(token_file))
    token_file.chmod(0o604)
    with pytest.raises(ConfigError, match="is open to every user"):
        Server(engine_config(), config)
    token_file.chmod(0o600)
    token_file.write_text("# empty\n")
    with pytest.raises(ConfigError, match="holds no token"):
        Server(engine_config(), config)
    token_file.write_text(f"ann:{ANN}\nbob:{ANN}\n")
    with pytest.raises(ConfigError, match="line 2: another tenant has the same token"):
        Server(engine_config(), config)
    token_file.unlink()
    with pytest.raises(ConfigError, match="cannot read"):
        Server(engine_config(), config)
