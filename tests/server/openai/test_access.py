"""Who may come in over HTTP: tokens, certificates, hosts, pages of other sites."""

import ssl

import pytest
from chairlift.api.config import engine_config
from chairlift.api.errors import ConfigError
from chairlift.server.app.server import Server, ServerConfig

from tests.server.certificates import Certificates
from tests.server.openai.conftest import HELLO
from tests.server.test_auth import ANN, BOB, guarded, token_file

__all__ = ["guarded", "token_file"]

CHAT = "/v1/chat/completions"
BODY = {"messages": HELLO, "max_tokens": 4, "ignore_eos": True}


def refused(**settings):
    with pytest.raises(ConfigError) as error:
        Server(engine_config(), ServerConfig(**settings))
    return str(error.value)


def test_beyond_loopback_it_needs_tls_and_authentication(token_file, tmp_path):
    tls = Certificates(tmp_path / "tls").tls
    open_to_all = {"http_listen": "0.0.0.0:0"}
    for settings in ({}, tls, {"auth_tokens": str(token_file)}):
        assert "http_listen: 0.0.0.0:0 can be reached" in refused(**open_to_all, **settings)
    Server(engine_config(), ServerConfig(**open_to_all, **tls, auth_tokens=str(token_file)))
    assert "expected HOST:PORT" in refused(http_listen="unix:/tmp/x")


async def test_every_path_but_health_needs_a_token(api, guarded):
    async with api(server=guarded, token=ANN) as served:
        for path in ("/v1/models", "/metrics", "/nothing", "/v1/models/tiny"):
            response = await served.get(path)
            assert (response.status, response.error["code"]) == (401, "invalid_api_key")
            assert response.headers["www-authenticate"] == "Bearer"
        response = await served.post(CHAT, BODY, authorization="Bearer wrong-0123456789abcdef")
        assert response.status == 401
        assert (await served.get("/health")).status == 200
        assert [model.id async for model in served.client.models.list()] == ["tiny"]


async def test_a_token_has_its_tenant_and_its_quotas(api, guarded):
    quota = {"tenant_max_requests": 1}
    async with api(server={**guarded, **quota}, token=ANN) as served, served.raw() as raw:
        ann, bob = ({"authorization": f"Bearer {token}"} for token in (ANN, BOB))
        await raw.post(CHAT, {**BODY, "max_tokens": 200, "stream": True}, **ann)
        await raw.head()
        response = await served.post(CHAT, BODY, **ann)
        assert (response.status, response.error["code"]) == (429, "rate_limit_exceeded")
        assert int(response.headers["retry-after"]) >= 1
        assert (await served.post(CHAT, BODY, **bob)).status == 200
        names = {live.tenant for live in served.server.server._context.live._by_handle.values()}
        assert names == {"ann"}


async def test_a_prefix_of_another_tenant_is_not_cached(api, guarded):
    body = {"prompt": list(range(1, 100)), "max_tokens": 1}
    cached = []
    async with api(server=guarded) as served:
        for token in (ANN, ANN, BOB):
            headers = {"authorization": f"Bearer {token}"}
            usage = (await served.post("/v1/completions", body, **headers)).json()["usage"]
            cached.append(usage["prompt_tokens_details"]["cached_tokens"])
    assert cached == [0, 96, 0]


async def test_metrics_are_shown_where_no_tenant_sees_the_names_of_others(api, guarded):
    async with api() as served:
        await served.chat()
        response = await served.get("/metrics")
        assert b"chairlift_requests_ended_total" in response.body
    async with api(server=guarded) as served:
        response = await served.get("/metrics", authorization=f"Bearer {ANN}")
        assert (response.status, response.error["type"]) == (403, "permission_error")


async def test_a_name_that_is_not_this_hosts_is_refused(api):
    async with api() as served:
        for host in ("localhost", "127.0.0.1:80", "[::1]:5", "LOCALHOST"):
            assert (await served.get("/health", host=host)).status == 200
        for host in ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "", "a b"):
            response = await served.get("/v1/models", host=host)
            assert (response.status, response.error["code"]) == (403, "unknown_host")
    async with api(server={"http_allowed_host": "api.example"}) as served:
        assert (await served.get("/health", host="api.example:443")).status == 200
        assert (await served.get("/health", host="evil.example")).status == 403


async def test_pages_of_other_sites_get_no_permission(api):
    async with api() as served:
        origin = {"origin": "https://evil.example"}
        async with served.raw() as raw:
            await raw.request("OPTIONS", CHAT, **origin)
            assert (await raw.response()).status == 405
        response = await served.post(CHAT, BODY, **origin)
        assert not [name for name in response.headers if name.startswith("access-control")]
        # What a page may send without asking is not taken.
        for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
            response = await served.post(CHAT, BODY, content_type=kind, **origin)
            assert (response.status, response.error["param"]) == (415, "content-type")
        response = await served.post(CHAT, BODY, content_encoding="gzip")
        assert response.status == 415


async def https(port, certificates, path, *, shown=None, token=None):
    """The status of a GET by another TLS library than gRPC's, or None without a connection."""
    import asyncio

    context = ssl.create_default_context(cafile=str(certificates.ca_file))
    if shown is not None:
        context.load_cert_chain(shown["tls_cert"], shown["tls_key"])
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=context, server_hostname="localhost"
    )
    try:
        authorization = f"authorization: Bearer {token}\r\n" if token else ""
        writer.write(f"GET {path} HTTP/1.1\r\nhost: any.example\r\n{authorization}\r\n".encode())
        return int((await reader.readline()).split()[1])
    finally:
        writer.close()


async def test_tls_answers_those_who_trust_its_authority(api, tmp_path, guarded):
    certificates = Certificates(tmp_path / "tls")
    server = {**certificates.tls, **guarded, "http_listen": "127.0.0.1:0"}
    async with api(server=server, listen="127.0.0.1:0") as served:
        assert served.url.startswith("https://127.0.0.1:")
        # On loopback the name counts with TLS, too.
        assert await https(served.port, certificates, "/v1/models", token=ANN) == 403
        certificates.renew()
        assert await https(served.port, certificates, "/v1/models", token=ANN) == 403


async def test_a_certificate_is_a_tenant(api, tmp_path):
    certificates = Certificates(tmp_path / "tls")
    server = {**certificates.mutual_tls, "http_allowed_host": "any.example"}
    async with api(server=server, listen="127.0.0.1:0") as served:
        seen = []
        authenticator = served.server.server._context.authenticator
        tenant_of = authenticator.tenant_of
        authenticator.tenant_of = lambda *given: seen.append(tenant_of(*given)) or seen[-1]
        ann = certificates.pair("ann", "ann@example.org", common_name="x")
        assert await https(served.port, certificates, "/v1/models", shown=ann) == 200
        assert seen == ["email:ann@example.org"]
        with pytest.raises((ssl.SSLError, ConnectionError, IndexError)):
            await https(served.port, certificates, "/v1/models")
