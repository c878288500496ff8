"""What clients saw, written down while it happens and judged afterwards, request by request.

One JSON line is one request. `check` needs the file and the answers that the prompts have alone;
it may run later, elsewhere, or again after the judge has learned something.
"""

import itertools
import json
from dataclasses import asdict, dataclass, field

from chairlift.v1 import generation_pb2 as pb

LIBRARY = {
    # Made by gRPC itself, on either side.
    *(("CANCELLED", ""), ("DEADLINE_EXCEEDED", ""), ("UNAVAILABLE", ""), ("client race", "")),
    # A message over the limit.
    ("RESOURCE_EXHAUSTED", ""),
}
CATALOGUE = {
    ("INVALID_ARGUMENT", "BAD_PARAMETER"),
    ("UNAVAILABLE", "STARTING"),
    ("UNAVAILABLE", "DRAINING"),
    ("UNAVAILABLE", "ENGINE_DOWN"),
    ("RESOURCE_EXHAUSTED", "QUEUE_FULL"),
    ("RESOURCE_EXHAUSTED", "QUOTA_EXCEEDED"),
    ("RESOURCE_EXHAUSTED", "SLOW_READER"),
    ("DEADLINE_EXCEEDED", "QUEUE_TIMEOUT"),
    ("DEADLINE_EXCEEDED", "DEADLINE_UNREACHABLE"),
    ("INTERNAL", "STEP_FAILED"),
    ("INTERNAL", "NUMERIC_FAULT"),
    ("INTERNAL", "INTERNAL"),
}
STATUSES = {("OK", ""), ("broken", "")} | LIBRARY | CATALOGUE
"""How a call may end; UNKNOWN is not among them."""


@dataclass
class Record:
    """One request and all that its client received."""

    label: str
    prompt: int
    max_tokens: int
    was_cancelled: bool = False
    numbers: list[int] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    lasts: list[int] = field(default_factory=list)
    """Places of the events that say they are the last."""
    end: str = ""
    """Finish reason, or the reason of the error."""
    output_tokens: int | None = None
    status: str = ""
    """Of the call; `broken` where the client broke it."""
    reason: str = ""
    first_s: float | None = None
    """From the call to the first message, of `GenerateOne`."""

    def add(self, event):
        """Note an event."""
        kind = event.WhichOneof("event")
        if event.last:
            self.lasts.append(len(self.kinds))
        self.kinds.append(kind)
        self.numbers.append(event.number)
        self.tokens.extend(event.tokens.token_ids)
        if kind == "finished":
            self.end = pb.FinishReason.Name(event.finished.reason).removeprefix("FINISH_REASON_")
            self.output_tokens = event.finished.usage.output_tokens
        elif kind == "failed":
            self.end = event.failed.error.reason
        elif kind == "rejected":
            self.end = event.rejected.error.reason


class History:
    """The file of a run."""

    def __init__(self, path):
        self.path = path
        self._file = path.open("w")
        self.num_requests = 0

    def note(self, *records):
        """Write requests whose call has ended."""
        for record in records:
            self.num_requests += 1
            self._file.write(json.dumps(asdict(record)) + "\n")

    def check(self, answers, **rules):
        """Judges all of it; return the records.

        Raises:
            AssertionError: With the first requests that no correct server could have answered so.
        """
        self._file.close()
        with self.path.open() as lines:
            records = [Record(**json.loads(line)) for line in lines]
        assert len(records) == self.num_requests
        wrong = [
            f"{trouble}: {record}"
            for record in records
            for trouble in troubles(record, answers, **rules)
        ]
        assert not wrong, f"{len(wrong)} of {len(records)}:\n" + "\n".join(wrong[:5])
        return records


def troubles(record, answers, *, may_fail=frozenset(), may_end=frozenset()):
    """What is wrong with a request.

    Args:
        record: Of the request.
        answers: Tokens of each prompt alone.
        may_fail: Reasons with which requests may fail or be refused.
        may_end: Statuses of calls besides OK, as (code, reason).
    """
    received = record.numbers
    if any(after <= before for before, after in itertools.pairwise(received)):
        yield "the numbers of its events do not rise"
    if record.tokens != answers[record.prompt][: len(record.tokens)]:
        yield "the tokens are not those of the prompt alone"
    if len(record.tokens) > record.max_tokens:
        yield "there are too many tokens"
    if record.kinds and record.kinds[0] not in ("accepted", "rejected"):
        yield "the first event is neither accepted nor rejected"
    yield from _end_troubles(record, may_fail)
    status = (record.status, record.reason)
    if status not in STATUSES:
        yield f"{status} is not in the table"
    elif record.status not in ("OK", "broken") and status not in may_end:
        yield f"the call ended with {status}"


def _end_troubles(record, may_fail):
    num_ends = len(record.lasts)
    if num_ends > 1:
        yield "there is more than one end"
    if record.lasts and record.lasts[0] != len(record.kinds) - 1:
        yield "something follows the end"
    if record.status == "OK" and num_ends != 1:
        yield "the call is over and the request has no end"
    if num_ends:
        is_whole = len(record.tokens) == record.max_tokens
        is_paid = len(record.tokens) == record.output_tokens
        fits = {"LENGTH": is_whole and is_paid, "CANCELLED": record.was_cancelled and is_paid}
        if not fits.get(record.end, record.end in may_fail):
            yield "that is no end for this request"
