"""Live requests without a stream, which wait to be resumed."""

from contextlib import ExitStack

from chairlift.server.calls.context import ServerContext
from chairlift.server.calls.registry import LiveRequest
from chairlift.server.calls.requests import Requests


class Detached(Requests):
    """A request whose stream is lost: it goes on until too many tokens are unsent."""

    def __init__(self, server: ServerContext, live: LiveRequest) -> None:
        """Take a request with a window from its call, which is over.

        Args:
            server: The state that all calls share.
            live: Queued or started.
        """
        assert live.resumable is not None, live
        resources = ExitStack()
        super().__init__(
            server,
            resources.enter_context(server.outboxes.open()),
            tenant=live.tenant,
            connection="",
            time_remaining=lambda: None,
        )
        self.half_closed = True
        self.attach(live, live.label, None)
        live.resumable.detach(resources, self.close)

    def detach(self, live: LiveRequest) -> None:
        """Let another stream have the request; no client of this one is to be told."""

    def may_be_resumed(self, _live: LiveRequest) -> bool:
        """Return False: the window is over when this call is."""
        return False
