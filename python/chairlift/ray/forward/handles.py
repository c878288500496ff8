"""Handles of requests behind an ingress: they name the replica, so that any ingress finds it."""

from chairlift.api.errors import Reason, RequestError
from chairlift.ray.forward.replicas import Replica, Replicas


def to_client(replica: Replica, handle: str) -> str:
    """Return a handle of a replica as clients get it."""
    return f"{replica.tag}.{handle}"


def from_client(replicas: Replicas, handle: str) -> tuple[Replica, str]:
    """Return the replica of a handle, and the handle as the replica knows it.

    Raises:
        RequestError: `UNKNOWN_REQUEST`: there is no such replica, or no more.
    """
    tag, _, name = handle.partition(".")
    replica = replicas.find(tag)
    if replica is None:
        message = "handle: no replica has a request of this handle"
        raise RequestError(Reason.UNKNOWN_REQUEST, message, field="handle")
    return replica, name
