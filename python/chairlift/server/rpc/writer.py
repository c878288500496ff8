"""Writes the responses of one call, each within a time limit."""

import asyncio
from typing import Final

from chairlift.api.errors import Reason, RequestError
from chairlift.server.rpc.status_interceptor import ServicerContext


class Writer:
    """The sending half of a stream.

    Attributes:
        has_begun: Whether headers are sent, so that client libraries no longer retry the call.
    """

    def __init__(self, context: ServicerContext, timeout_s: float) -> None:
        """Start without headers.

        Args:
            context: Context of the call.
            timeout_s: A client that takes no message for this long loses its call.
        """
        self.has_begun = False
        self._context: Final = context
        self._timeout_s: Final = timeout_s

    async def begin(self) -> None:
        """Send headers, unless they are sent.

        They are sent alone and without a time limit: gRPC would send them with the first message
        and, if that write is abandoned, again with the status, which then fails and leaves the
        client waiting forever. No flow control delays headers, and pings end a connection that does
        not take them.
        """
        if not self.has_begun:
            await self._context.send_initial_metadata(())
            self.has_begun = True

    async def write(self, response: object) -> None:
        """Send one message.

        Raises:
            RequestError: The client has not read for too long.
        """
        await self.begin()
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._context.write(response)
        except TimeoutError:
            message = f"nothing was read from this stream for {self._timeout_s:g} s"
            raise RequestError(Reason.SLOW_READER, message) from None
