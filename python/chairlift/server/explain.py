"""`Explain`: why live requests wait, for those who own them."""

from typing import Final

from chairlift.errors import Reason, RequestError
from chairlift.server.convert import wait_cause
from chairlift.server.live import LiveRequest
from chairlift.server.requests import Desk
from chairlift.server.status import duration
from chairlift.types import RequestState, Waiting
from chairlift.v1 import generation_pb2 as pb

_STATES: Final = {
    RequestState.WAITING: pb.REQUEST_STATE_WAITING,
    RequestState.RUNNING: pb.REQUEST_STATE_RUNNING,
    RequestState.SUSPENDED: pb.REQUEST_STATE_SUSPENDED,
}


async def explain(desk: Desk, tenant: str, request: pb.ExplainRequest) -> pb.ExplainResponse:
    """Tells how requests of a tenant stand.

    Raises:
        RequestError: None that is meant is live, or the engine does not answer in time.
    """
    engine = desk.gate.engine()
    meant = desk.live.meant(tenant, request)
    standings = await engine.explain([live.handle for live in meant]) if meant else []
    explanations = [
        _explanation(desk, live, stands)
        for live, stands in zip(meant, standings, strict=True)
        if stands is not None
    ]
    if not explanations:
        target = request.WhichOneof("target")
        message = f"{target}: no live request of this tenant has it"
        raise RequestError(Reason.UNKNOWN_REQUEST, message, field=target or "target")
    return pb.ExplainResponse(explanations=explanations)


def _explanation(desk: Desk, live: LiveRequest, waiting: Waiting) -> pb.Explanation:
    is_queued = waiting.state is RequestState.WAITING
    wait_s = desk.backlog.starts_in_s(waiting.num_before) if is_queued else None
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
