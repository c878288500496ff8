"""What is counted and logged of a request: its trace, its refusal, its end."""

import dataclasses
import logging
import time
from typing import Final

from chairlift.api import types
from chairlift.api.errors import Reason, RequestError
from chairlift.api.logs import fields
from chairlift.server.calls.context import ServerContext
from chairlift.server.calls.registry import LiveRequest
from chairlift.server.calls.telemetry import TRACEPARENT, RequestEnd

# The name in the documentation of the log.
_log = logging.getLogger("chairlift.server.requests")

_USAGE: Final = tuple(field.name for field in dataclasses.fields(types.Usage))
_TIMES: Final = tuple(
    field.name for field in dataclasses.fields(types.Timeline) if field.name != "queued_by_cause_s"
)


def log_trace(live: LiveRequest) -> None:
    """Log the trace context of a request, if it has one."""
    if TRACEPARENT.fullmatch(live.traceparent):
        trace = fields(handle=live.handle, traceparent=live.traceparent)
        _log.info("request has a trace", extra=trace)


def log_refusal(server: ServerContext, tenant: str, error: RequestError) -> None:
    """Count and log a request that is refused."""
    server.metrics.refused(tenant, error.reason)
    # The label and the message may be as wrong as the request: neither is logged.
    why = fields(tenant=tenant or None, reason=error.reason.value, field=error.field or None)
    _log.info("request refused", extra=why)


def log_end(
    server: ServerContext,
    live: LiveRequest,
    reason: types.FinishReason | Reason,
    status: str,
    end: types.Finished | types.Failed | None = None,
) -> None:
    """Count and log the end of a request that was queued; an abandoned one has no event."""
    seconds = time.monotonic() - live.arrived_at
    timeline = None if end is None else end.timeline
    server.metrics.ended(live.tenant, reason, seconds, timeline)
    server.telemetry.ended(live, RequestEnd(reason, seconds, timeline))
    usage = {} if live.usage is None else _usage_fields(live.usage)
    times = {} if timeline is None else _timeline_fields(timeline)
    details = fields(
        handle=live.handle,
        request_id=live.label,
        tenant=live.tenant or None,
        status=status,
        reason=reason.value,
        seconds=seconds,
        **usage,
        **times,
    )
    _log.info("request ended", extra=details)


# `dataclasses.asdict` takes ten times as long, on the event loop.
def _usage_fields(usage: types.Usage) -> dict[str, int]:
    return {name: getattr(usage, name) for name in _USAGE}


def _timeline_fields(timeline: types.Timeline) -> dict[str, float | int | None]:
    times = {name: getattr(timeline, name) for name in _TIMES}
    by_cause = timeline.queued_by_cause_s
    return times | {f"queued_{cause}_s": time_s for cause, time_s in by_cause.items()}
