"""Open files: the limit fits the connections, or the connections fit the limit."""

import resource
import socket
from contextlib import ExitStack
from urllib.request import ProxyHandler, build_opener

import pytest
from chairlift.api.errors import ConfigError
from chairlift.server.config import ServerConfig
from chairlift.server.ops.files import MAX_SCRAPES, RESERVE, with_files
from chairlift.server.ops.metrics_endpoint import serve_metrics
from chairlift.server.rpc.listen import TcpAddress
from prometheus_client import CollectorRegistry

from tests.forked import run_python

SCRIPT = """
import resource, sys
from chairlift.server.config import ServerConfig
from chairlift.server.ops.files import with_files
soft, hard, num = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
config = with_files(ServerConfig(max_connections=num, http_listen="127.0.0.1:0"))
print(config.max_connections, *resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def settings_under(*limits):
    """Run in a process of its own, whose hard limit cannot come back."""
    return run_python("-c", SCRIPT, *limits)


def test_the_soft_limit_is_raised_to_what_the_connections_need():
    assert settings_under(256, 4096, 1024).stdout.split() == ["1024", "2304", "4096"]


def test_a_hard_limit_lowers_the_connections_and_one_line_says_so():
    ran = settings_under(256, 1024, 1024)
    assert ran.stdout.split() == [str((1024 - RESERVE) // 2), "1024", "1024"]
    assert ran.stderr.count("\n") == 1
    assert "fewer connections than max_connections" in ran.stderr


def test_without_files_for_a_few_connections_the_server_does_not_start():
    ran = settings_under(200, 260, 1024)
    error = ran.stderr.splitlines()[-1]
    expected = "1024 on each of 2 ports need 2304 open files, and the limit is 260 (ulimit -n)"
    assert expected in error


def test_a_limit_that_is_enough_stays():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    config = ServerConfig(max_connections=1)
    try:
        assert with_files(config) is config
    except ConfigError:
        pytest.skip("this machine has too few files")
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == max(before[0], RESERVE + 1)


def test_silent_connections_do_not_take_the_metrics_port_more_than_their_places():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    end = serve_metrics(TcpAddress("127.0.0.1", port), CollectorRegistry())
    try:
        with ExitStack() as stack:
            silent = [
                stack.enter_context(socket.create_connection(("127.0.0.1", port)))
                for _ in range(2 * MAX_SCRAPES)
            ]
            # Those beyond the places are closed at once.
            for client in silent[MAX_SCRAPES:]:
                client.settimeout(30)
                assert client.recv(1) == b""
        # The places come back as their threads see the end of the clients.
        opener = build_opener(ProxyHandler({}))
        for _ in range(1000):
            try:
                with opener.open(f"http://127.0.0.1:{port}/metrics", timeout=30) as response:
                    assert response.status == 200
                break
            except OSError:
                continue
        else:
            pytest.fail("the metrics port does not answer")
    finally:
        end()
