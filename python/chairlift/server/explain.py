"""`Explain`: why live requests wait, for those who own them."""

from typing import Final

from chairlift.errors import Reason, RequestError
from chairlift.server.context import ServerContext
from chairlift.server.convert import wait_cause
from chairlift.server.live import LiveRequest
from chairlift.server.status import duration
from chairlift.types import RequestState, Waiting
from chairlift.v1 import generation_pb2 as pb

_STATES: Final = {
    RequestState.WAITING: pb.REQUEST_STATE_WAITING,
    RequestState.RUNNING: pb.REQUEST_STATE_RUNNING,
    RequestState.SUSPENDED: pb.REQUEST_STATE_SUSPENDED,
}


async def explain(
    server: ServerContext, tenant: str, request: pb.ExplainRequest
) -> pb.ExplainResponse:
    """Tells how requests of a tenant stand.

    Raises:
        RequestError: None that is found is live, or the engine does not answer in time.
    """
    engine = server.gate.engine()
    found = server.live.find(tenant, request)
    waits = await engine.explain([live.handle for live in found]) if found else []
    explanations = [
        _explanation(server, live, waiting)
        for live, waiting in zip(found, waits, strict=True)
        if waiting is not None
    ]
    if not explanations:
        target = request.WhichOneof("target")
        message = f"{target}: no live request of this tenant has it"
        raise RequestError(Reason.UNKNOWN_REQUEST, message, field=target or "target")
    return pb.ExplainResponse(explanations=explanations)


def _explanation(server: ServerContext, live: LiveRequest, waiting: Waiting) -> pb.Explanation:
    is_queued = waiting.state is RequestState.WAITING
    wait_s = server.backlog.starts_in_s(waiting.num_before) if is_queued else None
    return pb.Explanation(
        handle=live.handle.name,
        request_id=live.request_id,
        state=_STATES[waiting.state],
        cause=wait_cause(waiting.cause),
        num_before=waiting.num_before,
        num_computed_tokens=waiting.num_computed_tokens,
        num_tokens=waiting.num_tokens,
        estimated_wait=None if wait_s is None else duration(wait_s),
    )
