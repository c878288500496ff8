"""Writes the responses of one call, each within a time."""

import asyncio
from typing import Final

from chairlift.errors import Reason, RequestError
from chairlift.server.status_interceptor import ServicerContext


class Writer:
    """The sending half of a stream.

    Attributes:
        has_begun: Whether headers are sent, so that the call is no longer one that a client
            library may try again.
    """

    def __init__(self, context: ServicerContext, timeout_s: float) -> None:
        """Takes the call.

        Args:
            context: Of the call.
            timeout_s: A client that takes no message for so long loses its call.
        """
        self.has_begun = False
        self._context: Final = context
        self._timeout_s: Final = timeout_s

    async def begin(self) -> None:
        """Sends headers, unless they are sent.

        By themselves, and with no time limit: gRPC would send them along with the first message
        and, where that write is given up, once more with the status, which fails then and leaves
        the client waiting for ever. No window holds headers up, and pings end a connection that
        does not take them.
        """
        if not self.has_begun:
            await self._context.send_initial_metadata(())
            self.has_begun = True

    async def write(self, response: object) -> None:
        """Sends one message.

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
