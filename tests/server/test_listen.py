"""Where a server listens, and where it refuses to."""

import socket
from contextlib import closing

import pytest
from chairlift.config import engine_config
from chairlift.errors import ConfigError
from chairlift.server.listen import TcpAddress, parse_address
from chairlift.server.server import Server, ServerConfig

from tests.server.talk import start


@pytest.fixture
def bind():
    """Binds servers that never load a model."""
    servers = []

    async def run(**settings):
        server = Server(engine_config(), ServerConfig(**settings))
        servers.append(server)
        return server, await server.bind()

    return run


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:80", TcpAddress("127.0.0.1", 80)),
        ("localhost:80", TcpAddress("127.0.0.1", 80)),
        ("127.1.2.3:80", TcpAddress("127.1.2.3", 80)),
        ("[::1]:80", TcpAddress("::1", 80)),
        ("0.0.0.0:80", TcpAddress("0.0.0.0", 80)),
        ("[::]:80", TcpAddress("::", 80)),
    ],
)
def test_addresses_are_understood(text, address):
    assert parse_address(text, "listen") == address


@pytest.mark.parametrize(
    "text",
    [
        *("", "50051", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:x"),
        *("127.0.0.1:-1", ":50051", "host.example:1", "unix:", "unix:/" + "x" * 107),
    ],
)
def test_an_address_that_is_none_is_refused_by_name(text):
    with pytest.raises(ConfigError, match=r"^listen: expected"):
        parse_address(text, "listen")


async def test_a_port_has_one_server(bind):
    first, address = await bind(listen="127.0.0.1:0")
    with pytest.raises(ConfigError, match=rf"^listen: cannot listen on {address}: address already"):
        await bind(listen=address)
    await first.stop(0)


async def test_a_unix_socket_is_for_its_owner_alone_and_goes_with_the_server(bind, tmp_path):
    path = tmp_path / "lift.sock"
    server, address = await bind(listen=f"unix:{path}")
    assert address == f"unix:{path}"
    assert oct(path.stat().st_mode & 0o777) == "0o600"
    await server.stop(0)
    assert not path.exists()


async def test_a_unix_socket_has_one_server(bind, tmp_path):
    first, address = await bind(listen=f"unix:{tmp_path}/lift.sock")
    with pytest.raises(ConfigError, match=r"another server does$"):
        await bind(listen=address)
    await first.stop(0)


async def test_the_socket_of_a_server_that_was_killed_is_replaced(serve, tmp_path):
    with closing(socket.socket(socket.AF_UNIX)) as killed:
        killed.bind(f"{tmp_path}/lift.sock")
    async with serve() as server:
        assert (await server.say(start("a"))).end("a").HasField("finished")


async def test_a_file_that_is_no_socket_is_left_alone(bind, tmp_path):
    path = tmp_path / "letter"
    path.write_text("dear reader")
    with pytest.raises(ConfigError, match="no socket"):
        await bind(listen=f"unix:{path}")
    assert path.read_text() == "dear reader"


async def test_a_metrics_port_in_use_is_an_error(bind):
    with closing(socket.create_server(("127.0.0.1", 0))) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"^metrics_listen: cannot listen on .*:{port}"):
            await bind(listen="127.0.0.1:0", metrics_listen=f"127.0.0.1:{port}")
