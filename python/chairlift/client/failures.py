"""From what a server answers to the exceptions of `chairlift.errors`."""

from typing import Any

from google.protobuf import duration_pb2
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from chairlift.errors import ChairliftError, Reason, RequestError, ServerError
from chairlift.v1 import generation_pb2 as pb


def from_event(event: pb.Event) -> RequestError | None:
    """The exception of an event that refuses or ends a request by an error."""
    if event.HasField("rejected"):
        error = event.rejected.error
    elif event.HasField("failed"):
        error = event.failed.error
    else:
        return None
    wait_s = _seconds(error.retry_after) if error.HasField("retry_after") else None
    return _request_error(error.reason, error.message, error.field, wait_s)


def is_end(event: pb.Event) -> bool:
    """Whether nothing follows for the request: its last event, or its start was refused."""
    if event.HasField("rejected"):
        return event.rejected.command == pb.COMMAND_KIND_START
    return event.last


def from_call(call: Any) -> ChairliftError:
    """The exception of a call that failed, from its code and its trailers."""
    status = rpc_status.from_call(call)
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    wait_s = None
    for detail in status.details if status is not None else ():
        if detail.Is(retry.DESCRIPTOR) and detail.Unpack(retry):
            wait_s = _seconds(retry.retry_delay)
        detail.Unpack(info)
    if not info.reason:
        return ServerError(f"{call.code().name}: {call.details()}")
    return _request_error(info.reason, call.details(), info.metadata.get("field", ""), wait_s)


def _request_error(
    reason: str, message: str, field: str, retry_after_s: float | None
) -> RequestError:
    # A newer server may know reasons that this client does not.
    known = Reason(reason) if reason in Reason.__members__ else Reason.INTERNAL
    return RequestError(known, message, field=field, retry_after_s=retry_after_s)


def _seconds(duration: duration_pb2.Duration) -> float:
    return float(duration.seconds + duration.nanos * 1e-9)
