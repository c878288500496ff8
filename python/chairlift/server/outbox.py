"""What one call still has to send: events in order, bounded however slowly its client reads.

gRPC does not slow a server down before megabytes of small messages are buffered, so the bound is
here. Tokens of a request that wait to be sent become one event, and an event of any other kind
comes at most twice per request; commands are read only while there is room. A slow client hence
gets fewer and larger events, and nobody else notices.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Final

from chairlift import types
from chairlift.server.convert import Delivery
from chairlift.v1 import generation_pb2 as pb

CAPACITY: Final = 256
"""Finished events that may wait before commands are no longer read."""


@dataclass(slots=True)
class TokenBuffer:
    """Tokens of one request that were not sent yet."""

    num_tokens: int = 0
    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)

    def add(self, event: types.Tokens) -> None:
        """Appends what a step produced."""
        self.num_tokens += len(event.token_ids)
        self.texts.append(event.text)
        self.token_ids.extend(event.token_ids)
        if event.logprobs is not None:
            self.logprobs.extend(event.logprobs.logprobs)
            self.ranks.extend(event.logprobs.ranks)

    def to_proto(self, delivery: Delivery) -> pb.Tokens:
        """One event's worth, as the client asked for it."""
        return pb.Tokens(
            text="".join(self.texts) if delivery.text else "",
            token_ids=self.token_ids if delivery.token_ids else (),
            num_tokens=self.num_tokens,
            logprobs=(
                pb.Logprobs(logprobs=self.logprobs, ranks=self.ranks) if delivery.logprobs else None
            ),
        )


class Track:
    """Where one request's events stand: the last sequence number and the tokens not sent yet."""

    def __init__(self, request_id: str, delivery: Delivery) -> None:
        self.request_id = request_id
        self.delivery = delivery
        self._sequence = 0
        self._has_sent_tokens = False
        self._buffer = TokenBuffer()

    def accepted(self, accepted: pb.Accepted) -> pb.Event:
        """The request's first event."""
        self._sequence += 1
        return pb.Event(request_id=self.request_id, sequence=self._sequence, accepted=accepted)

    def ended(self, end: pb.Finished | pb.Failed) -> pb.Event:
        """The request's last event."""
        self._sequence += 1
        event = pb.Event(request_id=self.request_id, sequence=self._sequence, last=True)
        (event.finished if isinstance(end, pb.Finished) else event.failed).CopyFrom(end)
        return event

    def hold(self, event: types.Tokens) -> bool:
        """Keeps new tokens; tells whether they make an event now (`Output.interval`)."""
        self._sequence += 1
        self._buffer.add(event)
        interval = self.delivery.interval
        if interval == 0:
            return False
        return not self._has_sent_tokens or self._buffer.num_tokens >= interval

    def release(self) -> pb.Event | None:
        """The kept tokens as one event; it carries the number of the last that it merges."""
        buffer = self._buffer
        if not buffer.num_tokens and not any(buffer.texts):
            return None
        self._buffer = TokenBuffer()
        self._has_sent_tokens = True
        return pb.Event(
            request_id=self.request_id,
            sequence=self._sequence,
            tokens=buffer.to_proto(self.delivery),
        )


class Outbox:
    """The events of one call, from the engine's deliveries to the writer."""

    def __init__(self) -> None:
        self._events: list[pb.Event] = []
        self._with_tokens: dict[Track, None] = {}
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()

    def __bool__(self) -> bool:
        return bool(self._events or self._with_tokens)

    def add(self, event: pb.Event) -> None:
        """Takes an event that stands for itself."""
        self._events.append(event)
        if len(self._events) >= CAPACITY:
            self._room.clear()
        self._wake.set()

    def add_tokens(self, track: Track, event: types.Tokens) -> None:
        """Takes new tokens; they merge with those of the request that still wait."""
        if track.hold(event):
            self._with_tokens[track] = None
            self._wake.set()

    def end(self, track: Track, end: pb.Finished | pb.Failed) -> None:
        """Takes a request's last event, after the tokens that still wait."""
        self._with_tokens.pop(track, None)
        tokens = track.release()
        if tokens is not None:
            self._events.append(tokens)
        self.add(track.ended(end))

    def take(self) -> list[pb.Event]:
        """Gives everything that waits."""
        events = self._events
        for track in self._with_tokens:
            tokens = track.release()
            if tokens is not None:
                events.append(tokens)
        self._events = []
        self._with_tokens = {}
        self._room.set()
        return events

    def wake(self) -> None:
        """Lets the writer look again although there may be no event."""
        self._wake.set()

    async def wait(self) -> None:
        """Until there is something to look at."""
        await self._wake.wait()
        self._wake.clear()

    async def wait_for_room(self) -> None:
        """Until another command may be read."""
        await self._room.wait()
