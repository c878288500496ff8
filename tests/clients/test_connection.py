"""Where a client connects to, and what it says when that fails."""

import pytest
from chairlift.client import connect, connect_async
from chairlift.errors import ConfigError, NoServerError, ServerError

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
