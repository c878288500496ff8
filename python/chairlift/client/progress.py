"""What both clients keep of one request."""

from chairlift.client.failures import from_event, is_end
from chairlift.errors import ChairliftError, RequestError
from chairlift.v1 import generation_pb2 as pb


class Progress:
    """How far a request is.

    Attributes:
        request_id: Label of the request on its stream.
        accepted: Set once the request is queued.
        finished: Set at the end: reason, usage and, where asked for, the timeline.
        rejected: Why the last `update` or `credit` that was refused changed nothing.
    """

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self.accepted: pb.Accepted | None = None
        self.finished: pb.Finished | None = None
        self.rejected: RequestError | None = None
        self._is_over = False

    def _take(self, item: pb.Event | ChairliftError) -> pb.Event:
        """Notes an event; raises the error that it is."""
        if isinstance(item, ChairliftError):
            self._is_over = True
            raise item
        error = from_event(item)
        if error is not None and not is_end(item):
            self.rejected = error
            return item
        if error is not None:
            self._is_over = True
            raise error
        self._is_over = item.last
        if item.HasField("accepted"):
            self.accepted = item.accepted
        elif item.HasField("finished"):
            self.finished = item.finished
        return item
