"""What both clients keep of one request."""

from dataclasses import dataclass, field

from chairlift.client.failures import from_event, is_end
from chairlift.errors import ChairliftError, RequestError
from chairlift.v1 import generation_pb2 as pb

_MOST = 1024
"""Answers that memory is set aside for; a server refuses as many."""


@dataclass(slots=True)
class Answer:
    """One answer of a request, as far as it has come."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    """Where they were asked for."""
    num_tokens: int = 0
    finished: pb.Finished | None = None
    """Set at its end: reason, usage and, where asked for, the timeline."""


class Progress:
    """How far a request is.

    Attributes:
        request_id: Label of the request on its stream.
        accepted: Set once the request is queued.
        answers: As many as were asked for.
        finished: Of the answer that ended last.
        rejected: Why the last `update` or `credit` that was refused changed nothing.
    """

    def __init__(self, start: pb.Start) -> None:
        self.request_id = start.request_id
        # A server refuses a number that it does not know how to answer.
        self.answers = [Answer(index) for index in range(min(max(1, start.sampling.n), _MOST))]
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
        elif item.HasField("tokens"):
            answer = self.answers[item.index]
            answer.text += item.tokens.text
            answer.token_ids += item.tokens.token_ids
            answer.num_tokens += item.tokens.num_tokens
        elif item.HasField("finished"):
            self.answers[item.index].finished = self.finished = item.finished
        return item
