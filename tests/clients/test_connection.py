"""Where a client connects to, and what it says when that fails."""

import asyncio
import re

import grpc
import pytest
from chairlift.api.addresses import host_and_port, is_local
from chairlift.api.errors import ConfigError, NoServerError, ServerError
from chairlift.client import connect, connect_async
from chairlift.client.proxies import proxy_of

from tests.server.certificates import Certificates

WRONG = {
    "http://127.0.0.1:50051": "leave out the scheme",
    "grpc://server": "leave out the scheme",
    "localhost": "the port is missing, which is 50051 by default",
    "[::1]": "the port is missing",
    "::1:50051": "an IPv6 address needs brackets",
    "server:http": "a port is a number from 1 to 65535",
    "server:65536": "a port is a number from 1 to 65535",
    "server:0": "a port is a number from 1 to 65535",
    "": "got ''",
    "unix:": "got 'unix:'",
    ":50051": "got ':50051'",
    "server:50051\n": "got ",
    "server/": "got 'server/'",
    "a" * 5000 + "/": "got 'aaa",
    b"127.0.0.1:50051": "a value of type bytes",
    None: "a value of type NoneType",
}


@pytest.mark.parametrize("address", WRONG, ids=range(len(WRONG)))
def test_what_is_no_address_is_refused_with_the_reason(address):
    with pytest.raises(ConfigError) as refused:
        connect(address)
    assert str(refused.value).startswith("address: expected HOST:PORT or unix:PATH, got ")
    assert WRONG[address] in str(refused.value)
    assert len(str(refused.value)) < 250


ADDRESSES = ["127.0.0.1:1", "server-1.example:65535", "[::1]:50051", "unix:/tmp/a b.sock"]


@pytest.mark.parametrize("address", [*ADDRESSES, "dns:///server:50051"])
def test_an_address_is_taken(address):
    connect(address).close()


async def test_nothing_there_is_an_error_of_its_own(tmp_path):
    async with connect_async(f"unix:{tmp_path}/nothing.sock") as client:
        with pytest.raises(NoServerError, match="UNAVAILABLE: no server listens there"):
            await client.load()
    async with connect_async("127.0.0.1:1") as client:
        with pytest.raises(NoServerError, match="UNAVAILABLE: no server listens there"):
            await client.generate([1]).text()


async def test_a_new_connection_does_not_wait_for_the_retries_of_an_old_one(serve, tmp_path):
    address = f"unix:{tmp_path}/later.sock"
    async with connect_async(address) as early:
        with pytest.raises(NoServerError):
            await early.is_serving()
        async with serve(listen=address), connect_async(address) as late:
            assert await late.is_serving()


async def test_tls_to_a_server_without_it_is_said(serve, tmp_path):
    ca_file = Certificates(tmp_path / "tls").ca_file
    async with (
        serve(listen="127.0.0.1:0") as server,
        connect_async(server.address, tls_ca=ca_file) as client,
    ):
        with pytest.raises(ServerError, match="does not speak TLS, and this client does"):
            await client.load()


async def test_a_call_that_is_reset_by_a_proxy_is_unavailable():
    details = "Received RST_STREAM with error code 2"

    class LosesTheServer(grpc.GenericRpcHandler):
        def service(self, call):
            async def reset(_, context):
                await context.abort(grpc.StatusCode.INTERNAL, details)

            if call.method.endswith("Generate"):
                return grpc.stream_stream_rpc_method_handler(reset)
            return grpc.unary_unary_rpc_method_handler(reset)

    proxy = grpc.aio.server(handlers=[LosesTheServer()])
    port = proxy.add_insecure_port("127.0.0.1:0")
    await proxy.start()
    lost = re.escape(f"UNAVAILABLE: the call was lost ({details})")
    async with connect_async(f"127.0.0.1:{port}") as client:
        with pytest.raises(ServerError, match=lost):
            await client.load()
        with pytest.raises(ServerError, match=lost):
            await client.generate([1]).text()
    await proxy.stop(None)


PROXIES = ("http_proxy", "https_proxy", "grpc_proxy", "all_proxy")


@pytest.mark.parametrize("name", [*PROXIES, *(name.upper() for name in PROXIES)])
async def test_no_proxy_is_between_a_client_and_a_server_of_its_machine(serve, monkeypatch, name):
    monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with serve(listen="127.0.0.1:0") as server:
        port = server.address.rpartition(":")[2]
        for address in (server.address, f"localhost:{port}", f"dns:///localhost:{port}"):
            async with connect_async(address) as client:
                assert await client.is_serving()


REMOTE = "host.invalid:1"


@pytest.mark.parametrize(
    ("variables", "target"),
    [
        ({}, REMOTE),
        ({"http_proxy": "PROXY"}, REMOTE),
        ({"https_proxy": "PROXY", "http_proxy": "http://127.0.0.1:9"}, REMOTE),
        ({"grpc_proxy": "PROXY", "https_proxy": "http://127.0.0.1:9"}, REMOTE),
        ({"grpc_proxy": "", "https_proxy": "PROXY"}, REMOTE),
        ({"all_proxy": "PROXY"}, REMOTE),
        ({"HTTPS_PROXY": "PROXY"}, REMOTE),
        ({"https_proxy": "PROXY", "no_proxy": "a.b, Invalid"}, REMOTE),
        ({"https_proxy": "PROXY", "no_proxy": "other", "no_grpc_proxy": "invalid"}, REMOTE),
        ({"https_proxy": "PROXY", "no_proxy": "invalid", "no_grpc_proxy": ""}, REMOTE),
        ({"https_proxy": "PROXY"}, "dns:///host.invalid:1"),
    ],
)
async def test_an_error_names_the_proxy_that_grpc_took(monkeypatch, variables, target):
    for name in (*PROXIES, "no_proxy", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    asked = []

    async def refuse(reader, writer):
        asked.append(await reader.readline())
        writer.write(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n")
        writer.close()

    proxy = await asyncio.start_server(refuse, "127.0.0.1", 0)
    place = "{}:{}".format(*proxy.sockets[0].getsockname())
    for name, value in variables.items():
        monkeypatch.setenv(name, value.replace("PROXY", f"http://user:secret@{place}"))
    async with proxy, connect_async(target) as client:
        with pytest.raises(ServerError) as error:
            await client.is_serving()
    names = [name for name in variables if f"(by the proxy {place} of {name})" in str(error.value)]
    assert bool(names) is bool(asked)
    assert "secret" not in str(error.value)


def test_ranges_of_addresses_go_around_a_proxy(monkeypatch):
    for name in ("grpc_proxy", "https_proxy", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", "http://p:1")
    monkeypatch.setenv("no_proxy", "10.0.0.0/8,fd00::/8")
    assert proxy_of("10.1.2.3:1") == proxy_of("[fd00::1]:1") == proxy_of("127.0.0.1:1") == ""
    assert proxy_of("11.1.2.3:1") == proxy_of("[fe00::1]:1") == "by the proxy p:1 of http_proxy"
    monkeypatch.setenv("https_proxy", "socks5://p:1")
    assert proxy_of("11.1.2.3:1") == ""


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("unix:/tmp/a", True),
        ("unix-abstract:a", True),
        ("LOCALHOST:1", True),
        ("[::1]:1", True),
        ("127.8.8.8:1", True),
        ("ipv4:127.0.0.1:1", True),
        ("0.0.0.0:1", False),
        ("[::ffff:127.0.0.1]:1", True),
        ("dns:///localhost", True),
        ("ipv6:[::1]:1", True),
        ("dns:///localhost:1", True),
        ("dns://8.8.8.8/localhost:1", False),
        ("ipv4:8.8.8.8:1,127.0.0.1:1", False),
        ("localhost.example.org:1", False),
        ("10.0.0.1:1", False),
    ],
)
def test_a_local_address_is_known(address, expected):
    assert is_local(address) is expected


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("Localhost:5", ("localhost", 5)),
        ("[::1]:5", ("::1", 5)),
        ("dns:///h.example:5", ("h.example", 5)),
        ("ipv4:10.0.0.1:5", ("10.0.0.1", 5)),
        ("unix:/a:5", None),
        ("h.example", None),
        ("h.example:", None),
    ],
)
def test_an_address_has_a_host_and_a_port(address, expected):
    assert host_and_port(address) == expected
