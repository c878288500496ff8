"""Two servers of the demo model as the Kubernetes manifest runs them: each with Envoy beside it."""

import contextlib
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import grpc
from chairlift.v1 import generation_pb2 as pb
from chairlift.v1 import generation_pb2_grpc

from tests.clients.gateways import proxies
from tests.clients.gateways.smg import free_port

_WAIT_S = 60.0


@dataclass
class Pod:
    """A server and the proxy beside it.

    Attributes:
        endpoint: The proxy's address, which the picker chooses.
        grpc: The server's own address.
        http: The URL of the server's own HTTP port.
    """

    endpoint: str
    grpc: str
    http: str
    server: subprocess.Popen[str]
    proxy: subprocess.Popen[bytes]

    def metric(self, name: str) -> float:
        """Return the sum of a metric over its labels."""
        with urllib.request.urlopen(f"{self.http}/metrics", timeout=30) as response:
            lines = response.read().decode().splitlines()
        return sum(
            float(line.rsplit(" ", 1)[1])
            for line in lines
            if line.startswith((f"{name} ", f"{name}{{"))
        )


@contextlib.contextmanager
def pod(command: Path, folder: Path, name: str) -> Iterator[Pod]:
    """Run a pod until the end of the context; yield it once it answers through its proxy."""
    port, ports = free_port(), {name: free_port() for name in ("grpc", "http", "metrics")}
    own, http, metrics = (f"127.0.0.1:{one}" for one in ports.values())
    endpoint = f"127.0.0.1:{port}"
    containers = proxies.documents("inference-pool.yaml")["Deployment"]["spec"]["template"]["spec"]
    (container,) = containers["containers"]
    variables = {entry["name"]: entry["value"] for entry in container["env"]}
    variables |= {"CHAIRLIFT_LISTEN": own, "CHAIRLIFT_HTTP_LISTEN": http}
    variables |= {"CHAIRLIFT_METRICS_LISTEN": metrics}
    serve = [sys.executable, "-m", "chairlift", "serve", "demo", "--log-level", "error"]
    config = proxies.beside_server(port, ports)
    with (
        subprocess.Popen(
            serve, stdout=subprocess.DEVNULL, text=True, env=os.environ | variables
        ) as server,
        proxies.running(command, config, folder, name) as proxy,
    ):
        try:
            until(lambda: is_answered(f"http://{endpoint}/health"))
            yield Pod(endpoint, own, f"http://{http}", server, proxy)
        finally:
            server.kill()


def is_answered(url: str) -> bool:
    """Return whether a URL is answered with 200."""
    try:
        urllib.request.urlopen(url, timeout=5).close()
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False
    return True


def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition.

    Raises:
        TimeoutError: It does not come true.
    """
    end = time.monotonic() + _WAIT_S
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(condition)
        time.sleep(0.05)


def start(request_id: str, *, max_tokens: int = 4, credit: int | None = None) -> pb.GenerateRequest:
    """Return a request that runs to its length."""
    message = pb.Start(request_id=request_id, text="Once upon a time", credit=credit)
    message.sampling.temperature = 0
    message.stopping.max_tokens = max_tokens
    message.stopping.ignore_eos = True
    return pb.GenerateRequest(start=message)


@contextlib.contextmanager
def occupied(pod: Pod, num_requests: int) -> Iterator[None]:
    """Hold rows of a server: requests that have no more credit, past any gateway."""
    with grpc.insecure_channel(pod.grpc) as channel, contextlib.ExitStack() as stack:
        stub = generation_pb2_grpc.GenerationServiceStub(channel)

        def commands() -> Iterator[pb.GenerateRequest]:
            for number in range(num_requests):
                yield start(str(number), max_tokens=50, credit=1)
            ended.result()

        ended: Future[None] = Future()
        call = stub.Generate(commands())
        stack.callback(call.cancel)
        stack.callback(ended.set_result, None)
        until(lambda: pod.metric("chairlift_requests_running") >= num_requests)
        yield
    until(lambda: pod.metric("chairlift_requests_running") == 0)
