"""The endpoint picker's protocol: Envoy asks a small picker by ext_proc which server gets a call.

client -> Envoy (the gateway) -> Envoy (beside a server) -> server
             |  headers, body, trailers
             v
           picker --> /metrics of both servers
"""

import contextlib
import http.client
import json
import queue
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import yaml
from chairlift.api.errors import ServerError
from chairlift.client import connect
from chairlift.server.protocols.stubs import vllm_engine_pb2, vllm_engine_pb2_grpc
from chairlift.v1 import generation_pb2 as pb
from chairlift.v1 import generation_pb2_grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from tests.clients.gateways import proxies
from tests.clients.gateways.pods import Pod, occupied, pod, start, until
from tests.clients.gateways.smg import free_port

PACKAGES = ("xds-protos==1.85.0", "grpcio")
PROGRAM = Path(__file__).parent / "picker_program.py"
HOST = proxies.documents("inference-pool.yaml")["HTTPRoute"]["spec"]["hostnames"][0]
ENDED = "chairlift_requests_ended_total"
RUNNING = "chairlift_requests_running"


def check(command: Path, python: Path) -> None:
    """Run all of it.

    Args:
        command: Envoy.
        python: The interpreter of the environment with `PACKAGES`.
    """
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        pods = [stack.enter_context(pod(command, folder, f"pod-{k}")) for k in range(2)]
        with gateway(command, python, folder, pods, mode="WHOLE") as (port, _):
            check_routes(port, pods)
            check_waiting_picker(port, pods)
        with gateway(command, python, folder, pods, mode="EARLY") as (port, picker):
            check_least_loaded(port, pods)
            check_streams(port, pods)
            check_hostile(port, pods)
            check_deaths(port, pods, picker)
    print("picker: passed")


@contextlib.contextmanager
def gateway(
    command: Path, python: Path, folder: Path, pods: Sequence[Pod], *, mode: str
) -> Iterator[tuple[int, "subprocess.Popen[str]"]]:
    """Run picker and gateway; yield the gateway's port and the picker."""
    port, picker_port = free_port(), free_port()
    endpoints = [pod.endpoint for pod in pods]
    program = [python, "-P", PROGRAM, str(picker_port), mode, ",".join(metric_names()), *endpoints]
    config = proxies.gateway(port, picker_port, endpoints, all_by_picker=mode == "EARLY")
    with (
        subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as picker,
        proxies.running(command, config, folder, f"gateway-{mode}"),
    ):
        try:
            assert picker.stdout is not None
            assert picker.stdout.readline() == "picks\n"
            until(lambda: http_status(port, "GET", "/v1/models") == 200)
            yield port, picker
        finally:
            picker.kill()


def metric_names() -> list[str]:
    """Return the names by which the manifest's picker knows the load."""
    text = proxies.documents("endpoint-picker.yaml")["ConfigMap"]["data"]["picker.yaml"]
    plugins = {one["type"]: one for one in yaml.safe_load(text)["plugins"]}
    (engine,) = plugins["core-metrics-extractor"]["parameters"]["engineConfigs"]
    return [engine[f"{name}Spec"] for name in ("queuedRequests", "runningRequests", "kvUsage")]


def http_status(
    port: int, method: str, path: str, body: Any = None, *, host: str = HOST, **headers: str
) -> int:
    """Send a request; return the status of its answer."""
    return http_answer(port, method, path, body, host=host, **headers)[0]


def http_answer(
    port: int, method: str, path: str, body: Any = None, *, host: str = HOST, **headers: str
) -> tuple[int, bytes]:
    """Send a request; return status and body of its answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    fields = {"Host": host, "Content-Type": "application/json"}
    fields |= {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        data = body if isinstance(body, bytes | None) else json.dumps(body)
        connection.request(method, path, body=data, headers=fields)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@contextlib.contextmanager
def channel(port: int, host: str = HOST) -> Iterator[grpc.Channel]:
    """Connect with the gateway."""
    options = [("grpc.default_authority", host), ("grpc.enable_retries", 0)]
    with grpc.insecure_channel(f"127.0.0.1:{port}", options=options) as made:
        yield made


def code_of(call: Any) -> grpc.StatusCode:
    """Read a call to its end; return its status."""
    with contextlib.suppress(grpc.RpcError):
        for _ in call:
            pass
    return call.code()


def error_of(texts: Iterator[str]) -> str:
    """Read an answer to its end; return the error that it ends with."""
    try:
        num_texts = sum(1 for _ in texts)
    except ServerError as error:
        return str(error)
    return f"no error after {num_texts} texts"


class Stream:
    """A bidirectional stream that stays open for commands."""

    def __init__(self, made: grpc.Channel, **metadata: str) -> None:
        self._commands: queue.SimpleQueue[pb.GenerateRequest | None] = queue.SimpleQueue()
        stub = generation_pb2_grpc.GenerationServiceStub(made)
        pairs = tuple((name.replace("_", "-"), value) for name, value in metadata.items())
        self.call = stub.Generate(iter(self._commands.get, None), metadata=pairs, timeout=60)

    def send(self, command: pb.GenerateRequest) -> None:
        """Send a command."""
        self._commands.put(command)

    def until(self, kind: str) -> pb.Event:
        """Return the next event of a kind."""
        for response in self.call:
            for event in response.events:
                if event.WhichOneof("event") == kind:
                    return event
        raise EOFError(kind)

    def end(self) -> grpc.StatusCode:
        """Send no more; return the status."""
        self._commands.put(None)
        return code_of(self.call)


def check_routes(port: int, pods: Sequence[Pod]) -> None:
    """Only what the manifest's route names is reached, and only under its host."""
    given = {"model": "demo", "prompt": "Once upon a time", "max_tokens": 4}
    status, body = http_answer(port, "POST", "/v1/completions", given)
    assert (status, json.loads(body)["usage"]["completion_tokens"]) == (200, 4), body
    closed = ("/metrics", "/health", "/", "/v1x", "/chairlift.v1.AdminService/LoadAdapter")
    for path in closed:
        assert http_status(port, "GET", path) == 404, path
    # No way of writing a path leads to another one.
    for path in ("/v1/../metrics", "/v1/%2e%2e/metrics", "//metrics"):
        assert http_status(port, "GET", path) in (400, 404), path
    for host in ("other.example.com", "localhost", "127.0.0.1", f"{HOST}.evil.example"):
        assert http_status(port, "GET", "/v1/models", host=host) == 404, host
        with channel(port, host) as made:
            stub = generation_pb2_grpc.GenerationServiceStub(made)
            one = stub.GenerateOne(pb.GenerateOneRequest(start=start("a").start))
            assert code_of(one) is grpc.StatusCode.UNIMPLEMENTED, host
    del pods
    print("picker: routes and hosts are those of the manifest, and no others")


def check_waiting_picker(port: int, pods: Sequence[Pod]) -> None:
    """A picker that wants the whole request serves calls of one request, and streams go past it."""
    with channel(port) as made:
        generation = generation_pb2_grpc.GenerationServiceStub(made)
        vllm = vllm_engine_pb2_grpc.VllmEngineStub(made)
        for busy, idle in (pods, pods[::-1]):
            with occupied(busy, 5):
                before = idle.metric(ENDED)
                one = generation.GenerateOne(pb.GenerateOneRequest(start=start("a").start))
                assert code_of(one) is grpc.StatusCode.OK
                request = vllm_engine_pb2.GenerateRequest(request_id="b")
                request.tokenized.input_ids.extend([5, 6, 7])
                request.sampling_params.max_tokens = 4
                assert code_of(vllm.Generate(request)) is grpc.StatusCode.OK
                chat = {"model": "demo", "messages": [{"role": "user", "content": "Hello"}]}
                chat |= {"max_tokens": 4, "stream": True}
                assert http_status(port, "POST", "/v1/chat/completions", chat) == 200
                assert idle.metric(ENDED) == before + 3
        stream = Stream(made)
        stream.send(start("a"))
        stream.until("finished")
        assert stream.end() is grpc.StatusCode.OK
    print("picker: one that waits for the whole request sends each to the idle server")


def check_least_loaded(port: int, pods: Sequence[Pod]) -> None:
    """Every stream goes to the server with less to do."""
    with channel(port) as made:
        for busy, idle in (pods, pods[::-1]):
            with occupied(busy, 5):
                before = [one.metric(ENDED) for one in (busy, idle)]
                for number in range(8):
                    stream = Stream(made)
                    stream.send(start(str(number)))
                    stream.until("finished")
                    assert stream.end() is grpc.StatusCode.OK
                after = [one.metric(ENDED) for one in (busy, idle)]
                assert [after[0] - before[0], after[1] - before[1]] == [0, 8], (before, after)
    print("picker: the least loaded server is chosen, by the manifest's names of metrics")


def check_streams(port: int, pods: Sequence[Pod]) -> None:
    """A stream stays open in both directions; statuses with their details and cancels arrive."""
    with channel(port) as made:
        stream = Stream(made)
        for number in range(20):
            stream.send(start(str(number)))
            assert stream.until("finished").finished.usage.output_tokens == 4
        stream.send(start("cancelled", max_tokens=500, credit=1))
        stream.until("tokens")
        stream.send(pb.GenerateRequest(cancel=pb.Cancel(request_id="cancelled")))
        reason = stream.until("finished").finished.reason
        assert reason == pb.FINISH_REASON_CANCELLED
        assert stream.end() is grpc.StatusCode.OK

        bad = start("bad").start
        bad.sampling.temperature = -1
        call = generation_pb2_grpc.GenerationServiceStub(made).GenerateOne(
            pb.GenerateOneRequest(start=bad)
        )
        assert code_of(call) is grpc.StatusCode.INVALID_ARGUMENT
        status = rpc_status.from_call(call)
        info = error_details_pb2.ErrorInfo()
        assert any(detail.Unpack(info) for detail in status.details), status

        broken = Stream(made)
        broken.send(start("broken", max_tokens=500, credit=1))
        broken.until("tokens")
        assert sum(one.metric(RUNNING) for one in pods) == 1
        broken.call.cancel()
        until(lambda: sum(one.metric(RUNNING) for one in pods) == 0)
        broken.end()
    print("picker: streams pass in both directions, with trailers and cancels")


def check_hostile(port: int, pods: Sequence[Pod]) -> None:
    """What a hostile client sends ends its own call, chooses no server, and harms no other call."""
    with channel(port) as made:
        with occupied(pods[0], 5):
            before = pods[1].metric(ENDED)
            for destination in (pods[0].endpoint, "127.0.0.1:1", "169.254.169.254:80"):
                stream = Stream(made, x_gateway_destination_endpoint=destination)
                stream.send(start("a"))
                stream.until("finished")
                assert stream.end() is grpc.StatusCode.OK
            assert pods[1].metric(ENDED) == before + 3
        path = "/chairlift.v1.GenerationService/Generate"
        for data in (b"\xff" * 20, b"\x0a\x04\x0a\x02\xc3\x28", b"\x0b" * 500):
            raw = made.stream_stream(path)
            assert code_of(raw(iter([data]))) is grpc.StatusCode.INVALID_ARGUMENT
        huge = made.stream_stream(path)(iter([bytes(2**21)]))
        assert code_of(huge) is grpc.StatusCode.RESOURCE_EXHAUSTED
        lost = made.stream_stream("/chairlift.v1.GenerationService/\xff")
        with contextlib.suppress(UnicodeError, grpc.RpcError):
            assert code_of(lost(iter([b""]))) is grpc.StatusCode.UNIMPLEMENTED
    big = b'{"model": "demo", "prompt": "' + b"x" * 2**21 + b'"}'
    assert http_status(port, "POST", "/v1/completions", big) == 413
    nested = b'{"model": "demo", "prompt": ' + b"[" * 10_000 + b"]" * 10_000 + b"}"
    assert http_status(port, "POST", "/v1/completions", nested) == 400
    assert http_status(port, "POST", "/v1/completions", b"\xff\xfe\x00") == 400
    # Two lengths for one body: a second request could hide in it.
    given = {"Transfer_Encoding": "chunked", "Content_Length": "5"}
    with contextlib.suppress(ConnectionResetError):
        assert http_status(port, "POST", "/v1/completions", b"0\r\n\r\n", **given) == 400
    assert http_status(port, "GET", "/v1/models") == 200
    print("picker: hostile bodies and headers end their own calls alone")


def check_deaths(port: int, pods: Sequence[Pod], picker: "subprocess.Popen[str]") -> None:
    """A dead server, a dead pod and a dead picker are UNAVAILABLE.

    Envoy has no status for an answer that has begun: it resets the stream, which gRPC calls
    INTERNAL, and Chairlift's client UNAVAILABLE.
    """
    with channel(port) as made, contextlib.ExitStack() as stack:
        stack.enter_context(occupied(pods[1], 5))
        silent, speaking = Stream(made), Stream(made)
        silent.send(start("a", max_tokens=50, credit=0))
        silent.until("accepted")
        speaking.send(start("b", max_tokens=50, credit=1))
        speaking.until("tokens")
        client = stack.enter_context(connect(f"127.0.0.1:{port}"))
        answer = client.generate("Once upon a time", max_tokens=500, ignore_eos=True)
        texts = iter(answer)
        next(texts)
        pods[0].server.kill()
        for stream in (silent, speaking):
            assert stream.end() is grpc.StatusCode.INTERNAL
            assert "RST_STREAM" in stream.call.details()
        assert error_of(texts).startswith("UNAVAILABLE: ")
        for also in (None, pods[0].proxy, picker):
            if also is not None:
                also.kill()
                also.wait()
            stream = Stream(made)
            stream.send(start("c"))
            assert stream.end() is grpc.StatusCode.UNAVAILABLE
            status = http_status(port, "POST", "/v1/completions", {"model": "demo", "prompt": "a"})
            assert status == 503
    print("picker: a dead server, a dead pod and a dead picker are UNAVAILABLE")
