"""OpenTelemetry: a span for each request when it ends, and the metrics of the GenAI conventions.

Spans are made on the event loop, from what the engine's timeline says, and wait in a queue of
bounded length for a thread that exports them: a collector that is slow, absent or wrong costs the
requests nothing, and spans that find the queue full are dropped. No attribute holds text of a
prompt or an answer, nor a stop string.
"""

import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import urlsplit

from chairlift import _core
from chairlift.api import types
from chairlift.api.addresses import is_local
from chairlift.api.errors import ConfigError, Reason
from chairlift.server.calls.registry import LiveRequest

if TYPE_CHECKING:
    from opentelemetry.context import Context

_ENDPOINT: Final = re.compile(r"https?://[^\s/]+:\d+/?")
TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
"""The trace context of W3C."""

_EXPORT_S: Final = 5.0
"""Time for one export."""
_SHUTDOWN_S: Final = 2.0
"""Time at the end for the spans that wait."""
_QUEUE: Final = 2048
_DURATION_S: Final = (
    0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92
)  # fmt: skip
_FIRST_TOKEN_S: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0
)  # fmt: skip
_TOKEN_S: Final = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5
)  # fmt: skip
"""The buckets of the conventions."""


@dataclass(frozen=True, slots=True)
class RequestEnd:
    """How a request that was queued has ended."""

    reason: types.FinishReason | Reason
    seconds: float
    """Since its arrival."""
    timeline: types.Timeline | None
    """None if its client disconnected."""


class Telemetry(Protocol):
    """Takes the ends of requests."""

    def ended(self, live: LiveRequest, end: RequestEnd) -> None:
        """Note the end of a request that was queued."""

    def close(self) -> None:
        """Export what waits, within a short time."""


class NoTelemetry:
    """Nothing is exported."""

    def ended(self, live: LiveRequest, end: RequestEnd) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


def new_telemetry(endpoint: str | None, model: str) -> Telemetry:
    """Return what exports to a collector; nothing without an address.

    Args:
        endpoint: URL of a collector that speaks OTLP over gRPC.
        model: The first name of the served model.

    Raises:
        ConfigError: The URL is malformed, or the packages of the extra are missing.
    """
    if endpoint is None:
        return NoTelemetry()
    if not _ENDPOINT.fullmatch(endpoint):
        raise ConfigError("otlp_endpoint: expected http://HOST:PORT or https://HOST:PORT")
    try:
        return _Exported(endpoint, model)
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("opentelemetry"):
            raise
        message = f"otlp_endpoint: {error.name} is missing: pip install 'chairlift[otel]'"
        raise ConfigError(message) from None


class _Exported:
    """Spans and histograms, exported by threads of the SDK."""

    def __init__(self, endpoint: str, model: str) -> None:
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        resource = Resource.create(
            {"service.name": "chairlift", "service.version": _core.__version__}
        )
        target: dict[str, Any] = {"endpoint": endpoint, "timeout": _EXPORT_S}
        if is_local(urlsplit(endpoint).netloc):
            # A proxy of the variables cannot reach a collector of this machine.
            target["channel_options"] = (("grpc.enable_http_proxy", 0),)
        self._spans = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._spans.add_span_processor(
            BatchSpanProcessor(OTLPSpanExporter(**target), max_queue_size=_QUEUE)
        )
        reader = PeriodicExportingMetricReader(OTLPMetricExporter(**target))
        self._figures = MeterProvider((reader,), resource=resource, shutdown_on_exit=False)
        self._tracer = self._spans.get_tracer("chairlift", _core.__version__)
        self._model = model
        meter = self._figures.get_meter("chairlift", _core.__version__)
        histograms = {
            "request.duration": _DURATION_S,
            "time_to_first_token": _FIRST_TOKEN_S,
            "time_per_output_token": _TOKEN_S,
        }
        self._histograms = {
            name: meter.create_histogram(
                f"gen_ai.server.{name}", unit="s", explicit_bucket_boundaries_advisory=bounds
            )
            for name, bounds in histograms.items()
        }

    def ended(self, live: LiveRequest, end: RequestEnd) -> None:
        """Make the span, and observe the times."""
        from opentelemetry.trace import SpanKind, Status, StatusCode

        common = {
            "gen_ai.operation.name": live.operation,
            "gen_ai.provider.name": "chairlift",
            "gen_ai.request.model": self._model,
        }
        is_error = isinstance(end.reason, Reason)
        if is_error:
            common["error.type"] = end.reason.value
        ended_ns = time.time_ns()
        span = self._tracer.start_span(
            f"{live.operation} {self._model}",
            context=_parent(live.traceparent),
            kind=SpanKind.SERVER,
            start_time=ended_ns - round(end.seconds * 1e9),
            attributes={**common, **_attributes(live, end, self._model)},
        )
        for name, at_ns in _events(end.timeline, ended_ns):
            span.add_event(name, timestamp=at_ns)
        if is_error:
            span.set_status(Status(StatusCode.ERROR))
        span.end(ended_ns)
        for name, seconds in _times(live, end).items():
            self._histograms[name].record(seconds, common)

    def close(self) -> None:
        """Export what waits, within a short time; a thread that hangs ends with the process."""
        for provider in (self._spans, self._figures):
            thread = threading.Thread(target=provider.shutdown, daemon=True)
            thread.start()
            thread.join(_SHUTDOWN_S)


def _parent(traceparent: str) -> "Context | None":
    """Return the context of the caller's span; None begins a trace."""
    if not TRACEPARENT.fullmatch(traceparent):
        return None
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator().extract({"traceparent": traceparent})


def _attributes(live: LiveRequest, end: RequestEnd, model: str) -> Mapping[str, Any]:
    prepared, usage = live.prepared, live.usage
    sampling = prepared.sampling
    attributes: dict[str, Any] = {
        "gen_ai.response.id": live.handle,
        "gen_ai.response.model": model,
        "gen_ai.request.max_tokens": prepared.max_tokens,
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
        "gen_ai.request.top_k": sampling.top_k,
        "gen_ai.request.choice.count": prepared.num_answers,
        "chairlift.tenant": live.tenant,
    }
    if not isinstance(end.reason, Reason):
        attributes["gen_ai.response.finish_reasons"] = [end.reason.value]
    if usage is not None:
        attributes["gen_ai.usage.input_tokens"] = usage.prompt_tokens
        attributes["gen_ai.usage.output_tokens"] = usage.output_tokens
        attributes["gen_ai.usage.cache_read.input_tokens"] = usage.cached_tokens
    if end.timeline is not None:
        attributes["chairlift.queue_seconds"] = end.timeline.queued_s
        attributes["chairlift.preemptions"] = end.timeline.num_preemptions
        attributes["chairlift.recomputed_tokens"] = end.timeline.num_recomputed_tokens
    return attributes


def _events(timeline: types.Timeline | None, ended_ns: int) -> list[tuple[str, int]]:
    """Return what happened when, from the end backwards: the engine's clock is another."""
    if timeline is None or timeline.prefill_s is None:
        return []
    first_ns = ended_ns - round((timeline.decode_s or 0.0) * 1e9)
    started_ns = first_ns - round(timeline.prefill_s * 1e9)
    queued_ns = started_ns - round(timeline.queued_s * 1e9)
    events = [("chairlift.queued", queued_ns), ("chairlift.started", started_ns)]
    if timeline.decode_s is not None:
        events.append(("chairlift.first_token", first_ns))
    return events


def _times(live: LiveRequest, end: RequestEnd) -> dict[str, float]:
    """Return the values of the histograms that the request has."""
    times = {"request.duration": end.seconds}
    decode_s = None if end.timeline is None else end.timeline.decode_s
    if decode_s is not None:
        times["time_to_first_token"] = max(end.seconds - decode_s, 0.0)
        num_later = 0 if live.usage is None else live.usage.output_tokens - 1
        if num_later > 0:
            times["time_per_output_token"] = decode_s / num_later
    return times


def operation_of(request: types.Request) -> str:
    """Return what traces call a request."""
    if request.pooling is not None:
        return "embeddings"
    return "chat" if isinstance(request.prompt, types.Chat) else "text_completion"
