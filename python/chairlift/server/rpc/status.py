"""From a reason to a gRPC status: an `Error` in an event, or the status of a whole call.

Both carry the same catalogue of reasons, so that a client switches on `reason` in both cases.
"""

from typing import Final

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from chairlift.api.errors import Reason, RequestError
from chairlift.v1 import generation_pb2 as pb

DOMAIN: Final = "chairlift"
"""Domain of every `ErrorInfo`."""

INTERNAL_MESSAGE: Final = "internal error; the server's log says more"
"""The message of a fault of the server: the text of an exception may hold secrets."""

MAX_MESSAGE_BYTES: Final = 1000
"""Bytes of the text of an error, which travels in metadata up to six times as long:
percent-encoded, and twice in base64. Clients of gRPC refuse metadata of more than 8 KiB."""


def code_of(reason: Reason) -> int:
    """Return the number of the gRPC code."""
    return int(grpc.StatusCode[reason.code].value[0])


def duration(seconds: float) -> duration_pb2.Duration:
    """Return a proto duration, rounded to the nanosecond."""
    value = duration_pb2.Duration()
    value.FromNanoseconds(round(seconds * 1e9))
    return value


def to_error(error: RequestError) -> pb.Error:
    """Return the error as part of an event."""
    wait_s = error.retry_after_s
    return pb.Error(
        code=f"STATUS_CODE_{error.reason.code}",
        reason=error.reason.value,
        message=_short(error.message),
        field=error.field,
        retry_after=None if wait_s is None else duration(wait_s),
    )


def from_error(error: pb.Error) -> RequestError:
    """Return the error that `to_error` has made part of an event."""
    wait_s = error.retry_after.ToNanoseconds() * 1e-9 if error.HasField("retry_after") else None
    return RequestError(
        Reason[error.reason], error.message, field=error.field, retry_after_s=wait_s
    )


def to_status(error: RequestError) -> grpc.Status:
    """Return the error as the status of a call, with the details of google.rpc in its trailers."""
    message = _short(error.message)
    info = error_details_pb2.ErrorInfo(reason=error.reason.value, domain=DOMAIN)
    if error.field:
        info.metadata["field"] = error.field
    details = [_packed(info)]
    if error.field and error.reason.code == "INVALID_ARGUMENT":
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
