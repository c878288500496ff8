"""From a reason to a gRPC status: an `Error` in an event, or the status of a whole call.

Both carry the same catalogue of reasons, so that a client switches on `reason` in both cases.
"""

from typing import Final

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from chairlift.errors import Reason, RequestError
from chairlift.v1 import generation_pb2 as pb

DOMAIN: Final = "chairlift"
"""Domain of every `ErrorInfo`."""

INTERNAL_MESSAGE: Final = "internal error; the server's log says more"
"""The message of a fault of the server: the text of an exception may hold secrets."""

MAX_MESSAGE_BYTES: Final = 1000
"""Of the text of an error, which travels in metadata up to six times as long: percent-encoded, and
twice in base64. Clients of gRPC refuse metadata of more than 8 KiB."""

CODES: Final = {
    Reason.BAD_PARAMETER: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.PROMPT_TOO_LONG: grpc.StatusCode.INVALID_ARGUMENT,
    # Not RESOURCE_EXHAUSTED: clients would retry forever what can never fit.
    Reason.KV_CAPACITY: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.UNKNOWN_MODEL: grpc.StatusCode.NOT_FOUND,
    Reason.UNKNOWN_ADAPTER: grpc.StatusCode.NOT_FOUND,
    Reason.DUPLICATE_REQUEST_ID: grpc.StatusCode.ALREADY_EXISTS,
    Reason.UNKNOWN_REQUEST: grpc.StatusCode.NOT_FOUND,
    Reason.EVENTS_DROPPED: grpc.StatusCode.OUT_OF_RANGE,
    Reason.RESUMED_ELSEWHERE: grpc.StatusCode.ABORTED,
    Reason.ABORTED: grpc.StatusCode.ABORTED,
    Reason.UNAUTHENTICATED: grpc.StatusCode.UNAUTHENTICATED,
    Reason.QUEUE_FULL: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Reason.QUOTA_EXCEEDED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Reason.QUEUE_TIMEOUT: grpc.StatusCode.DEADLINE_EXCEEDED,
    Reason.DEADLINE_UNREACHABLE: grpc.StatusCode.DEADLINE_EXCEEDED,
    Reason.SLOW_READER: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Reason.UNSUPPORTED: grpc.StatusCode.UNIMPLEMENTED,
    Reason.STARTING: grpc.StatusCode.UNAVAILABLE,
    Reason.DRAINING: grpc.StatusCode.UNAVAILABLE,
    Reason.ENGINE_DOWN: grpc.StatusCode.UNAVAILABLE,
    Reason.ENGINE_BUSY: grpc.StatusCode.UNAVAILABLE,
    Reason.NUMERIC_FAULT: grpc.StatusCode.INTERNAL,
    # What the request asks for together allows nothing, or too much work.
    Reason.NO_TOKEN_LEFT: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.CONSTRAINT_TOO_COMPLEX: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.STEP_FAILED: grpc.StatusCode.INTERNAL,
    Reason.INTERNAL: grpc.StatusCode.INTERNAL,
}


def code_of(reason: Reason) -> int:
    """Return the number of the gRPC code."""
    return int(CODES[reason].value[0])


def duration(seconds: float) -> duration_pb2.Duration:
    """Return a proto duration, rounded to the nanosecond."""
    value = duration_pb2.Duration()
    value.FromNanoseconds(round(seconds * 1e9))
    return value


def to_error(error: RequestError) -> pb.Error:
    """Return the error as part of an event."""
    wait_s = error.retry_after_s
    return pb.Error(
        code=f"STATUS_CODE_{CODES[error.reason].name}",
        reason=error.reason.value,
        message=_short(error.message),
        field=error.field,
        retry_after=None if wait_s is None else duration(wait_s),
    )


def from_error(error: pb.Error) -> RequestError:
    """Return the error that `to_error` has made part of an event."""
    wait_s = error.retry_after.ToNanoseconds() * 1e-9 if error.HasField("retry_after") else None
    return RequestError(
        Reason(error.reason), error.message, field=error.field, retry_after_s=wait_s
    )


def to_status(error: RequestError) -> grpc.Status:
    """Return the error as the status of a call, with the details of google.rpc in its trailers."""
    message = _short(error.message)
    info = error_details_pb2.ErrorInfo(reason=error.reason.value, domain=DOMAIN)
    if error.field:
        info.metadata["field"] = error.field
    details = [_packed(info)]
    if error.field and CODES[error.reason] is grpc.StatusCode.INVALID_ARGUMENT:
        violation = error_details_pb2.BadRequest.FieldViolation(
            field=error.field, description=message
        )
        details.append(_packed(error_details_pb2.BadRequest(field_violations=[violation])))
    wait_s = error.retry_after_s
    if wait_s is not None:
        details.append(_packed(error_details_pb2.RetryInfo(retry_delay=duration(wait_s))))
    return rpc_status.to_status(
        status_pb2.Status(code=code_of(error.reason), message=message, details=details)
    )


def _short(message: str) -> str:
    """Cut a text to what metadata can hold; its parts from a request were cut before (`echo`)."""
    data = message.encode(errors="replace")
    if len(data) <= MAX_MESSAGE_BYTES:
        return data.decode()
    return f"{data[:MAX_MESSAGE_BYTES].decode(errors='ignore')}..."


def _packed(
    message: error_details_pb2.ErrorInfo
    | error_details_pb2.BadRequest
    | error_details_pb2.RetryInfo,
) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(message)
    return packed
