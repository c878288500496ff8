"""One `GenerateOne` call: a request whose refusal or failure is the status of the call."""

from chairlift.errors import Reason, RequestError
from chairlift.server.context import ServerContext
from chairlift.server.outbox import Outbox
from chairlift.server.requests import Requests
from chairlift.server.status_interceptor import ServicerContext
from chairlift.server.writer import Writer
from chairlift.v1 import generation_pb2 as pb


class GenerateOneCall:
    """One request on one call.

    `Accepted` travels with the first tokens: until headers are sent, a call that fails is known to
    client libraries as one that may be retried.
    """

    def __init__(
        self, server: ServerContext, outbox: Outbox, start: pb.Start, context: ServicerContext
    ) -> None:
        self._outbox = outbox
        self._start = start
        self._writer = Writer(context, server.write_timeout_s)
        self._requests = Requests(
            server,
            outbox,
            tenant=server.authenticator.tenant(context),
            connection=context.peer(),
            time_remaining=context.time_remaining,
            only_one=True,
        )

    async def run(self) -> None:
        """Until the request has ended.

        Raises:
            RequestError: It was refused, or it failed.
        """
        if self._start.HasField("credit"):
            message = "credit: this call takes no Credit, so there is no way to give more"
            raise RequestError(Reason.BAD_PARAMETER, message, field="credit")
        try:
            await self._requests.start(self._start)
            while self._requests:
                await self._outbox.wait()
                if self._requests.has_tokens:
                    await self._write()
            if self._requests.has_tokens or self._requests.error is None:
                await self._write()
        finally:
            # Only synchronous work here: this also runs when the call is being cancelled.
            self._requests.abandon()
        if self._requests.error is not None:
            raise self._requests.error

    async def _write(self) -> None:
        for message in self._outbox.take():
            await self._writer.write(message)
