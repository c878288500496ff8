"""From the errors of a server to the exceptions of `chairlift.api.errors`."""

from typing import Any

from google.rpc import error_details_pb2
from grpc_status import rpc_status

from chairlift.api.errors import ChairliftError, NoServerError, Reason, RequestError, ServerError
from chairlift.v1 import generation_pb2 as pb

_NS = 1e-9

_ABSENT = ("Connection refused", "No such file or directory")

_CLOSED = (
    "the server closed the connection before any answer, as one with TLS does (tls_ca), or one"
    " that asks for a client's certificate (tls_cert, tls_key)"
)

_CAUSES = {
    "WRONG_VERSION_NUMBER": "the server does not speak TLS, and this client does: leave out tls_ca",
    "CERTIFICATE_VERIFY_FAILED": "the server's certificate is not of an authority in tls_ca",
    "Hostname Verification Check failed": "the server's certificate is for another host name",
    "Expected SETTINGS frame": "a server that does not speak gRPC listens there",
    "address lookup failed": "the host name is unknown",
    "Socket closed": _CLOSED,
    "Connection reset": _CLOSED,
    "timed out": "the server did not answer in time",
}
"""Parts of gRPC's message about a failed connection, and what they mean."""


def from_event(event: pb.Event) -> RequestError | None:
    """Return the exception of an event that refuses a command or ends a request by an error."""
    if event.HasField("rejected"):
        error = event.rejected.error
    elif event.HasField("failed"):
        error = event.failed.error
    else:
        return None
    wait_s = error.retry_after.ToNanoseconds() * _NS if error.HasField("retry_after") else None
    return _request_error(error.reason, error.message, error.field, wait_s)


def from_call(call: Any, proxy: str = "") -> ChairliftError:
    """Return the exception of a call that failed, from its code and its trailers.

    Args:
        call: The call of gRPC.
        proxy: From `proxy_of` its address.
    """
    status = rpc_status.from_call(call)
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    wait_s = None
    for detail in status.details if status is not None else ():
        if detail.Is(retry.DESCRIPTOR) and detail.Unpack(retry):
            wait_s = retry.retry_delay.ToNanoseconds() * _NS
        detail.Unpack(info)
    if not info.reason:
        return _server_error(call.code().name, call.details() or "", proxy)
    return _request_error(info.reason, call.details(), info.metadata.get("field", ""), wait_s)


def _server_error(code: str, details: str, proxy: str) -> ServerError:
    if code == "INTERNAL":
        # A server gives a reason with it. Without one it is gRPC's own word: for a stream that a
        # proxy resets, since it has lost the server amid an answer, and for a write that fails.
        return ServerError(f"UNAVAILABLE: the call was lost ({details})")
    if not details.startswith(("failed to connect", "errors resolving")):
        return ServerError(f"{code}: {details}")
    way = f" ({proxy})" if proxy else ""
    if any(text in details for text in _ABSENT):
        return NoServerError(f"{code}: no server listens there{way}")
    cause = next((cause for text, cause in _CAUSES.items() if text in details), details)
    return ServerError(f"{code}: {cause}{way}")


def _request_error(
    reason: str, message: str, field: str, retry_after_s: float | None
) -> RequestError:
    # A newer server may know reasons that this client does not.
    known = Reason[reason] if reason in Reason.__members__ else Reason.INTERNAL
    return RequestError(known, message, field=field, retry_after_s=retry_after_s)
