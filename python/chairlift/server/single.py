"""One `GenerateOne` call: a request whose refusal or failure is the status of the call."""

from chairlift.errors import Reason, RequestError
from chairlift.server.guard import Context
from chairlift.server.outbox import Outbox
from chairlift.server.requests import Desk, Requests
from chairlift.server.stream import send
from chairlift.v1 import generation_pb2 as pb


class GenerateOneCall:
    """One request on one call.

    `Accepted` travels with the first tokens: until headers are sent, a call that fails is known to
    client libraries as one that may be retried.
    """

    def __init__(self, desk: Desk, start: pb.Start, context: Context) -> None:
        self._desk = desk
        self._start = start
        self._context = context
        self._outbox = Outbox()
        self._requests = Requests(
            desk, self._outbox, tenant=desk.callers.tenant(context), half_closed=True
        )

    async def run(self) -> None:
        """Until the request has ended.

        Raises:
            RequestError: It was refused, or it failed.
        """
        self._desk.gate.admit()
        if self._start.HasField("credit"):
            message = "credit: this call takes no Credit, so there is no way to give more"
            raise RequestError(Reason.BAD_PARAMETER, message, field="credit")
        with self._desk.calls.open(self._outbox):
            try:
                await self._requests.start(self._start)
                await self._write_all()
            finally:
                self._requests.abandon()

    async def _write_all(self) -> None:
        held: list[pb.Event] = []
        is_over = False
        while not is_over:
            await self._outbox.wait()
            held += self._outbox.take()
            error = _error(held[-1]) if held else None
            if error is not None:
                held.pop()
            is_over = bool(held) and held[-1].last
            if any(not event.HasField("accepted") for event in held):
                response = pb.GenerateOneResponse(events=held)
                await send(self._context, response, self._desk.write_timeout_s)
                held = []
            if error is not None:
                raise error


def _error(event: pb.Event) -> RequestError | None:
    """The exception that becomes the call's status, if this event is a refusal or failure."""
    if event.HasField("rejected"):
        error = event.rejected.error
    elif event.HasField("failed"):
        error = event.failed.error
    else:
        return None
    wait = error.retry_after
    return RequestError(
        Reason(error.reason),
        error.message,
        field=error.field,
        retry_after_s=wait.seconds + wait.nanos * 1e-9 if error.HasField("retry_after") else None,
    )
