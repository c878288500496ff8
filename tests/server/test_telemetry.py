"""Traces of requests, as a real collector of OTLP receives them."""

import threading
from concurrent import futures
from contextlib import contextmanager

import grpc
import pytest
from chairlift.api.errors import ConfigError
from chairlift.v1 import generation_pb2 as pb
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from tests.server.connection import start, until

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"
SECRET = "three two one"


class Collector(
    trace_service_pb2_grpc.TraceServiceServicer, metrics_service_pb2_grpc.MetricsServiceServicer
):
    """Keeps what it receives; a blocked one answers nothing until it is released."""

    def __init__(self):
        self.spans = []
        self.metrics = []
        self.called = threading.Event()
        self.released = threading.Event()
        self.released.set()

    def Export(self, request, context):
        self.called.set()
        self.released.wait()
        if isinstance(request, trace_service_pb2.ExportTraceServiceRequest):
            for resource in request.resource_spans:
                for scope in resource.scope_spans:
                    self.spans.extend(scope.spans)
            return trace_service_pb2.ExportTraceServiceResponse()
        for resource in request.resource_metrics:
            for scope in resource.scope_metrics:
                self.metrics.extend(scope.metrics)
        return metrics_service_pb2.ExportMetricsServiceResponse()


@contextmanager
def collecting():
    collector = Collector()
    server = grpc.server(futures.ThreadPoolExecutor(4))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)
    metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(collector, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield collector, f"http://127.0.0.1:{port}"
    finally:
        collector.released.set()
        server.stop(None).wait()


def values(span):
    return {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in span.attributes}


async def test_a_request_is_a_span_with_the_conventions_and_its_timeline(serve):
    with collecting() as (collector, url):
        async with serve(server={"otlp_endpoint": url, "served_model_name": "tiny"}) as server:
            command = start("a", prompt=SECRET, traceparent=TRACEPARENT)
            assert (await server.say(command)).end("a").HasField("finished")
        (span,) = collector.spans
        assert (span.name, span.trace_id.hex()) == ("text_completion tiny", TRACE)
        assert span.parent_span_id.hex() == PARENT
        found = values(span)
        assert found["gen_ai.operation.name"] == "text_completion"
        assert found["gen_ai.usage.output_tokens"] == 8
        assert found["gen_ai.usage.input_tokens"] > 0
        names = [event.name for event in span.events]
        assert names == ["chairlift.queued", "chairlift.started", "chairlift.first_token"]
        times = [span.start_time_unix_nano, *(e.time_unix_nano for e in span.events)]
        assert times == sorted(times)
        assert span.events[-1].time_unix_nano <= span.end_time_unix_nano
        assert SECRET not in str(collector.spans)
        metrics = {metric.name for metric in collector.metrics}
        assert metrics == {
            "gen_ai.server.request.duration",
            "gen_ai.server.time_to_first_token",
            "gen_ai.server.time_per_output_token",
        }


async def test_the_trace_of_a_call_is_that_of_its_requests(serve):
    with collecting() as (collector, url):
        async with serve(server={"otlp_endpoint": url}) as server:
            request = pb.GenerateOneRequest(start=start("a").start)
            metadata = (("traceparent", TRACEPARENT),)
            async for _ in server.generation.GenerateOne(request, metadata=metadata):
                pass
            await server.say(start("b", traceparent="00-wrong"))
        traces = [span.trace_id.hex() for span in collector.spans]
        assert traces.count(TRACE) == 1
        assert len(set(traces)) == 2


async def test_a_request_that_fails_or_is_cancelled_says_so(serve):
    with collecting() as (collector, url):
        async with serve(server={"otlp_endpoint": url}) as server:
            call = server.generation.GenerateOne(
                pb.GenerateOneRequest(start=start("a", max_tokens=250).start)
            )
            await call.read()
            call.cancel()
            await until(lambda: server.num_ended("cancelled") == 1)
        (span,) = collector.spans
        assert "cancelled" in str(values(span)["gen_ai.response.finish_reasons"])


async def test_a_collector_that_does_not_answer_delays_no_request(serve):
    with collecting() as (collector, url):
        collector.released.clear()
        async with serve(server={"otlp_endpoint": url}) as server:
            # More than a batch of the exporter.
            for _ in range(6):
                names = [str(number) for number in range(100)]
                received = await server.say(*(start(name, max_tokens=1) for name in names))
                assert all(received.end(name).HasField("finished") for name in names)
            await until(collector.called.is_set)
            collector.released.set()


async def test_no_proxy_is_between_a_server_and_a_collector_of_its_machine(serve, monkeypatch):
    monkeypatch.setenv("grpc_proxy", "http://127.0.0.1:9")
    with collecting() as (collector, url):
        async with serve(server={"otlp_endpoint": url}) as server:
            assert (await server.say(start("a"))).end("a").HasField("finished")
            await until(collector.called.is_set)


async def test_without_a_collector_requests_are_served(serve, free_port):
    settings = {"otlp_endpoint": f"http://127.0.0.1:{free_port}"}
    async with serve(server=settings) as server:
        assert (await server.say(start("a"))).end("a").HasField("finished")


@pytest.mark.parametrize("url", ["localhost:4317", "http://x", "ftp://x:1", ""])
async def test_an_address_that_is_none_is_refused(serve, url):
    with pytest.raises(ConfigError, match="otlp_endpoint"):
        async with serve(server={"otlp_endpoint": url}):
            pass
