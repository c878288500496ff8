"""`kv_transfer_params`: requests that a gateway sends to two servers, as vLLM's server has them.

The field is taken from the body before the rest is converted: only the endpoints of this server
know it, and the functions that convert bodies refuse it everywhere else, as in jobs.
"""

from dataclasses import replace
from typing import Any, Final

from chairlift.engine.prepare.prepared import Prepared
from chairlift.server.calls.context import ServerContext
from chairlift.server.handoff.handoffs import Handoff, unsupported
from chairlift.server.http.json_pieces import to_json
from chairlift.server.protocols.openai.job import Job

FIELD: Final = "kv_transfer_params"


def take_handoff(server: ServerContext, value: Any) -> tuple[Any, Handoff | None]:
    """Return a body without `kv_transfer_params`, and what they ask for.

    Args:
        server: The state that all calls share.
        value: The body, which is not checked yet.

    Raises:
        RequestError: With the path of the field that is wrong or not supported.
    """
    if not isinstance(value, dict) or value.get(FIELD) is None:
        return value, None
    rest = {name: given for name, given in value.items() if name != FIELD}
    return rest, server.handoffs.take(value[FIELD], FIELD)


def with_handoff(job: Job, handoff: Handoff | None) -> Job:
    """Return a job whose request is sent to two servers.

    Raises:
        RequestError: It has many requests, or a form in which the answer cannot have the field.
    """
    if handoff is None:
        return job
    if len(job.requests) > 1:
        raise unsupported(FIELD, "only with one prompt")
    if handoff.wants_ticket and job.is_stream:
        raise unsupported(f"{FIELD}.do_remote_decode", "only without stream")
    return replace(job, handoff=handoff)


def with_params(server: ServerContext, pieces: list[bytes], prepared: Prepared) -> list[bytes]:
    """Return the pieces of a response's body with `kv_transfer_params` at its end.

    Args:
        server: The state that all calls share.
        pieces: An object, whose last piece ends with its brace.
        prepared: The request.
    """
    params = to_json(server.handoffs.params(prepared))
    return [*pieces[:-1], pieces[-1][:-1], b',"' + FIELD.encode() + b'":' + params + b"}"]
