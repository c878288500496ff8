"""A local Ray with two engines, started as a user starts it: `serve run` with a file."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from chairlift.api.errors import RequestError, ServerError
from chairlift.client import connect

START_S = 400.0
"""Ray takes half a minute on an idle machine."""
TIMED_OUT = "The current node timed out during startup"
"""Ray gives itself 30 s: a busy machine takes longer at times."""
SLOW_MACHINE = {
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "240",
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "120",
    "RAY_worker_register_timeout_seconds": "240",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
}

NUM_TOKENS = 200
LONG = {
    "max_tokens": NUM_TOKENS,
    "ignore_eos": True,
    "temperature": 0.0,
    "token_ids": True,
    "queue_timeout_s": 60,
}


@dataclass
class Cluster:
    """What runs."""

    address: str
    http: str
    session: str

    def engines(self):
        """Process numbers of the servers of the engines, by those of their replicas."""
        found = {}
        for pid, (parent, command) in processes(self.session).items():
            if "chairlift serve" in command:
                found[parent] = pid
        return found

    def kill_head(self):
        """Kill the head of the cluster."""
        heads = [
            pid for pid, (_, command) in processes(self.session).items() if "gcs_server" in command
        ]
        assert heads
        for pid in heads:
            os.kill(pid, signal.SIGKILL)

    def post(self, path, body):
        request = urllib.request.Request(
            f"{self.http}{path}",
            data=json.dumps(body).encode(),
            headers={"content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.read()


def processes(mark):
    """Parent and command of each process whose environment has a mark."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"CHECK_RAY={mark}".encode() not in (folder / "environ").read_bytes():
                continue
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        found[int(folder.name)] = parent, command
    return found


def is_serving(address):
    """Whether the ingress has a replica."""
    with connect(address) as client, suppress(ServerError):
        return client.is_serving()
    return False


@contextmanager
def running(folder, grpc_port, http_port, **args):
    """Start Ray, and yield when engines and ingress are ready; kill all of it in the end."""
    mark = f"{os.getpid()}-{time.monotonic_ns()}"
    values = {
        "num_replicas": 2,
        "listen": f"127.0.0.1:{grpc_port}",
        "actor_options": {"num_cpus": 0},
        **args,
    }
    config = {
        "http_options": {"host": "127.0.0.1", "port": http_port},
        "applications": [
            {
                "name": "chairlift",
                "route_prefix": "/",
                "import_path": "chairlift.ray:build",
                "args": values,
            }
        ],
    }
    path = folder / "serve.json"
    path.write_text(json.dumps(config))  # JSON is YAML.
    log = (folder / "serve.log").open("ab")
    environment = {**os.environ, **SLOW_MACHINE, "CHECK_RAY": mark}
    command = [Path(sys.executable).with_name("serve"), "run", str(path)]
    start = partial(
        subprocess.Popen, command, env=environment, stdout=log, stderr=subprocess.STDOUT, cwd=folder
    )
    process = start()
    cluster = Cluster(f"127.0.0.1:{grpc_port}", f"http://127.0.0.1:{http_port}", mark)
    try:
        until = time.monotonic() + START_S
        while not is_serving(cluster.address):
            text = (folder / "serve.log").read_text()
            if process.poll() is not None and TIMED_OUT in text:
                (folder / "serve.log").write_text("")
                process = start()
            assert process.poll() is None, text
            assert time.monotonic() < until, text
            time.sleep(0.5)
        yield cluster
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
        for pid in processes(mark):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        log.close()


def port():
    """Return a port that is free."""
    with closing(socket.create_server(("127.0.0.1", 0))) as probe:
        return probe.getsockname()[1]


async def until_up(client, num):
    """Wait until so many replicas answer."""
    async with asyncio.timeout(120):
        while True:
            generations = [client.generate([3 + n, 5], max_tokens=2) for n in range(8)]
            try:
                await asyncio.gather(*(generation.all() for generation in generations))
            except RequestError as error:
                assert error.reason.code == "UNAVAILABLE"  # noqa: PT017
            tags = {g.handle.partition(".")[0] for g in generations if g.handle}
            if len(tags) == num:
                return tags
            await asyncio.sleep(0.2)


async def outcome(generation):
    """The error that ends a generation, or None."""
    try:
        await generation.all()
    except RequestError as error:
        return error
    return None
