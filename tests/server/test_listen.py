"""Where a server listens, and where it refuses to."""

import fcntl
import os
import socket
import subprocess
import tempfile
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import grpc
import pytest
from chairlift.api.config import engine_config
from chairlift.api.errors import ConfigError
from chairlift.server.app.server import Server, ServerConfig
from chairlift.server.rpc.listen import TcpAddress, parse_address
from chairlift.v1 import server_pb2, server_pb2_grpc

from tests.forked import Python, run_python
from tests.server.connection import start


@pytest.fixture
def bind():
    """Bind servers that never load a model."""
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


async def test_a_server_removes_no_socket_but_its_own(serve, bind, tmp_path):
    path = tmp_path / "lift.sock"
    first, address = await bind(listen=f"unix:{path}")
    path.unlink()
    async with serve(listen=address) as second:
        await first.stop(0)
        # A connection of its own: the one that is open would not notice.
        async with grpc.aio.insecure_channel(address) as channel:
            stub = server_pb2_grpc.ServerServiceStub(channel)
            assert (await stub.GetServerInfo(server_pb2.GetServerInfoRequest())).version
        assert (await second.say(start("a"))).end("a").HasField("finished")
    assert list(tmp_path.iterdir()) == []


async def test_of_servers_that_each_replaced_the_last_only_the_newest_keeps_the_path(
    bind, tmp_path
):
    path, servers = tmp_path / "lift.sock", []
    for _ in range(3):
        path.unlink(missing_ok=True)
        servers.append((await bind(listen=f"unix:{path}"))[0])
    for server in servers[:2]:
        await server.stop(0)
        assert path.is_socket()
    await servers[2].stop(0)
    assert list(tmp_path.iterdir()) == []


async def test_a_folder_that_another_process_keeps_locked_is_refused(bind, tmp_path, monkeypatch):
    monkeypatch.setattr("chairlift.server.rpc.listen._LOCK_S", 0.05)
    folder = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    with pytest.raises(ConfigError, match="another process locks its folder"):
        await bind(listen=f"unix:{tmp_path}/lift.sock")
    os.close(folder)
    server, _ = await bind(listen=f"unix:{tmp_path}/lift.sock")
    await server.stop(0)


async def test_what_took_the_place_of_a_socket_is_left_alone(bind, tmp_path):
    path = tmp_path / "lift.sock"
    server, _ = await bind(listen=f"unix:{path}")
    path.unlink()
    path.write_text("dear reader")
    await server.stop(0)
    assert path.read_text() == "dear reader"


async def test_a_server_ends_though_another_process_holds_the_lock_of_the_folder(bind, tmp_path):
    server, address = await bind(listen=f"unix:{tmp_path}/lift.sock")
    folder = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    await server.stop(0)
    os.close(folder)
    # The file is left, as of a server that was killed, and the next server takes its place.
    next_server, _ = await bind(listen=address)
    await next_server.stop(0)
    assert list(tmp_path.iterdir()) == []


async def test_a_server_whose_metrics_find_no_port_leaves_no_socket(bind, tmp_path):
    with closing(socket.create_server(("127.0.0.1", 0))) as other:
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(ConfigError, match=r"^metrics_listen"):
            await bind(listen=f"unix:{tmp_path}/lift.sock", metrics_listen=taken)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_leaves_no_room_for_the_private_name_is_refused():
    folder = "/" + "x" * 96
    assert str(parse_address(f"unix:{folder}/s", "listen")) == f"unix:{folder}/s"
    with pytest.raises(ConfigError, match=r"^listen: expected unix:PATH in a folder"):
        parse_address(f"unix:{folder}x/s", "listen")


async def test_the_socket_of_a_server_that_was_killed_is_replaced(serve, tmp_path):
    with closing(socket.socket(socket.AF_UNIX)) as killed:
        killed.bind(f"{tmp_path}/lift.sock")
    async with serve() as server:
        assert (await server.say(start("a"))).end("a").HasField("finished")


def connects_as(uid, path):
    """Whether a process of this user can open the socket."""
    program = (
        "import os, socket, sys\n"
        f"os.setgroups([]); os.setgid({uid}); os.setuid({uid})\n"
        "socket.socket(socket.AF_UNIX).connect(sys.argv[1])\n"
    )
    run = run_python("-c", program, path)
    assert run.returncode == 0 or "PermissionError" in run.stderr, run.stderr
    return run.returncode == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
async def test_another_user_cannot_open_the_socket(bind):
    # Not pytest's folder, which others cannot even look into.
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        server, _ = await bind(listen=f"unix:{folder}/lift.sock")
        assert connects_as(0, f"{folder}/lift.sock")
        assert not connects_as(65_534, f"{folder}/lift.sock")
        # The file's mode is what keeps them out.
        Path(folder, "lift.sock").chmod(0o666)
        assert connects_as(65_534, f"{folder}/lift.sock")
        await server.stop(0)


@pytest.mark.parametrize(("mode", "is_safe"), [(0o777, False), (0o775, False), (0o1777, True)])
async def test_a_folder_where_others_may_replace_the_socket_is_refused(
    bind, tmp_path, mode, is_safe
):
    tmp_path.chmod(mode)
    if is_safe:
        server, _ = await bind(listen=f"unix:{tmp_path}/lift.sock")
        await server.stop(0)
    else:
        with pytest.raises(ConfigError, match=r"^listen: other users could replace unix:"):
            await bind(listen=f"unix:{tmp_path}/lift.sock")


async def test_a_server_that_does_not_accept_keeps_its_socket(bind, tmp_path):
    path = f"{tmp_path}/lift.sock"
    with closing(socket.socket(socket.AF_UNIX)) as stopped, ExitStack() as stack:
        stopped.bind(path)
        stopped.listen(0)
        # Until the queue of those that wait to be accepted is full.
        with suppress(BlockingIOError):
            while True:
                waiting = stack.enter_context(socket.socket(socket.AF_UNIX))
                waiting.setblocking(False)
                waiting.connect(path)
        with pytest.raises(ConfigError, match=r"another server does$"):
            await bind(listen=f"unix:{path}")


async def test_of_many_servers_that_find_a_dead_socket_one_gets_it(tmp_path):
    path = f"{tmp_path}/lift.sock"
    with closing(socket.socket(socket.AF_UNIX)) as killed:
        killed.bind(path)
    program = (
        "import asyncio, sys\n"
        "from chairlift.api.config import engine_config\n"
        "from chairlift.api.errors import ConfigError\n"
        "from chairlift.server.app.server import Server, ServerConfig\n"
        "async def main():\n"
        "    server = Server(engine_config(), ServerConfig(listen='unix:' + sys.argv[1]))\n"
        "    sys.stdin.readline()\n"
        "    try:\n"
        "        await server.bind()\n"
        "    except ConfigError as error:\n"
        "        assert 'another server' in str(error)\n"
        "        print('refused', flush=True)\n"
        "        return\n"
        "    print('bound', flush=True)\n"
        "    await asyncio.to_thread(sys.stdin.readline)\n"
        "    await server.stop(0)\n"
        "asyncio.run(main())\n"
    )
    servers = [
        Python(
            *("-c", program, path),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    for server in servers:
        server.stdin.write("go\n")
        server.stdin.flush()
    words = sorted(server.stdout.readline().strip() for server in servers)
    assert words == ["bound", "refused", "refused", "refused"]
    with closing(socket.socket(socket.AF_UNIX)) as client:
        client.connect(path)
    for server in servers:
        server.communicate("end\n")


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
