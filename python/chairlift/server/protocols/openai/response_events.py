"""Responses of `/v1/responses`, whole or as events.

    created, in_progress,
    of each item: output_item.added, content_part.added, output_text.delta ..., output_text.done,
        content_part.done, output_item.done; reasoning has reasoning_text.delta and .done, and a
        function call function_call_arguments.delta and .done without a part around them,
    completed | incomplete | failed

Every event has its `type` and a `sequence_number`; the last one has the whole response.
"""

import time
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from chairlift.server.http.errors import HttpError
from chairlift.server.http.json_pieces import arrays, quoted, to_json
from chairlift.server.protocols.openai.choices import UsageSum, was_stopped
from chairlift.server.protocols.openai.job import Origin
from chairlift.server.protocols.openai.logprobs import TokenTexts
from chairlift.server.protocols.openai.response_items import Ended, Growth, Item, Items
from chairlift.server.protocols.openai.tools import is_json
from chairlift.v1 import generation_pb2 as pb


class _Response:
    """The object that a response is, at every moment of it."""

    def __init__(
        self,
        origin: Origin,
        repeated: bytes,
        texts: TokenTexts | None,
        stop_token_ids: frozenset[int],
    ) -> None:
        self.origin = origin
        self._stop_token_ids = stop_token_ids
        self.last_item_status = "completed"
        self.items = Items(origin.handle, texts)
        self._repeated = repeated
        self._usage: dict[str, Any] | None = None
        self.is_incomplete = False
        self._ended: list[list[bytes]] = []
        """Pieces of each item that has ended."""

    def finish(self, finished: pb.Finished) -> Growth | None:
        """Note how the answer ended; return the item that an answer without any gets."""
        self.is_incomplete = finished.reason != pb.FINISH_REASON_STOP
        usage = UsageSum()
        usage.add(finished.usage)
        self._usage = {
            "input_tokens": usage.prompt,
            "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
            "output_tokens": usage.output,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage.prompt + usage.output,
        }
        growth = self.items.finish()
        self.last_item_status = self._status_of_last(finished)
        return growth

    def _status_of_last(self, finished: pb.Finished) -> str:
        """Return the status of the last item, which a stop may have cut amid a call."""
        last = self.items.last
        if last is None or last.kind != "function_call":
            return self.last_status
        is_cut = was_stopped(finished, self._stop_token_ids) and not is_json(last.text)
        return "incomplete" if is_cut else self.last_status

    def end_item(self, item: Item, status: str) -> Ended:
        """End an item, which the response has from then on."""
        ended = item.end(status)
        self._ended.append(ended.object)
        return ended

    def pieces(self, status: str, error: dict[str, Any] | None = None) -> list[bytes]:
        """Return the response, with the items that have ended and what it repeats.

        A failed response has no items.
        """
        is_incomplete = status == "incomplete"
        head = {
            "id": f"resp_{self.origin.handle}",
            "object": "response",
            "created_at": self.origin.created,
            "completed_at": int(time.time()) if status == "completed" else None,
            "status": status,
            "error": error,
            "incomplete_details": {"reason": "max_output_tokens"} if is_incomplete else None,
            "model": self.origin.model,
        }
        output = arrays([] if error else self._ended)
        usage = b',"usage":' + to_json(self._usage)
        return [to_json(head)[:-1], b',"output":', *output, usage, b",", self._repeated, b"}"]

    @property
    def last_status(self) -> str:
        """Return the status of the response at its end."""
        return "incomplete" if self.is_incomplete else "completed"


class ResponseAnswer:
    """A whole response."""

    def __init__(
        self,
        origin: Origin,
        repeated: bytes,
        texts: TokenTexts | None,
        stop_token_ids: frozenset[int],
    ) -> None:
        """Start without text."""
        self._response = _Response(origin, repeated, texts, stop_token_ids)

    def prompt(self, _numbers: range, _prompt: pb.Prompt) -> None:
        """Ignore a prompt: no response asks for it."""

    def tokens(self, _number: int, tokens: pb.Tokens) -> None:
        """Add tokens."""
        for growth in self._response.items.add(tokens):
            if growth.ended is not None:
                self._response.end_item(growth.ended, "completed")

    def finished(self, _number: int, finished: pb.Finished) -> None:
        """End the answer."""
        self._response.finish(finished)
        last = self._response.items.last
        assert last is not None, "invariant: an answer without any item gets an empty one"
        self._response.end_item(last, self._response.last_item_status)

    def body(self) -> list[bytes]:
        """Return the pieces of the body."""
        return self._response.pieces(self._response.last_status)


class ResponseStream:
    """A response as server-sent events."""

    def __init__(
        self,
        origin: Origin,
        repeated: bytes,
        texts: TokenTexts | None,
        stop_token_ids: frozenset[int],
    ) -> None:
        """Start without events."""
        self._response = _Response(origin, repeated, texts, stop_token_ids)
        self._number = 0
        self._has_begun = False
        self._before = b""
        """The beginning of a delta of the message, the same for every token."""

    def _event(self, kind: str, pieces: Sequence[bytes] = (), **values: Any) -> list[bytes]:
        """Return the pieces of an event: its values, and members that are encoded."""
        event = to_json({"type": f"response.{kind}", "sequence_number": self._number, **values})
        self._number += 1
        head = b"event: response." + kind.encode() + b"\ndata: " + event[:-1]
        return [head, *pieces, b"}\n\n"]

    def _begin(self) -> list[bytes]:
        if self._has_begun:
            return []
        self._has_begun = True
        response = [b',"response":', *self._response.pieces("in_progress")]
        return self._event("created", response) + self._event("in_progress", response)

    def accepted(self, _number: int, _num_prompt_tokens: int) -> None:
        """Ignore the length of the prompt: the usage at the end has it."""

    def prompt(self, _numbers: range, _prompt: pb.Prompt) -> list[bytes]:
        """Return nothing: no response asks for its prompt."""
        return []

    def tokens(self, _number: int, tokens: pb.Tokens) -> list[bytes]:
        """Encode what items have got; a part of a character alone is nothing."""
        pieces = self._begin()
        for part in self._response.items.add(tokens):
            pieces += self._grow(part)
        return pieces

    def _grow(self, growth: Growth) -> list[bytes]:
        before: list[bytes] = []
        if growth.ended is not None:
            before += self._end_item(growth.ended, "completed")
        if growth.is_new:
            before += self._begin_item(growth.item)
        if not growth.text and not growth.logprobs:
            return before
        item = growth.item
        if item.kind == "function_call":
            place: dict[str, Any] = {"item_id": item.item_id, "output_index": item.position}
            return before + self._event("function_call_arguments.delta", **place, delta=growth.text)
        if item.kind == "reasoning":
            return before + self._event("reasoning_text.delta", **_place(item), delta=growth.text)
        after = b',"logprobs":[%b],"sequence_number":%d}\n\n' % (growth.logprobs, self._number)
        self._number += 1
        return [*before, self._before + quoted(growth.text) + after]

    def _begin_item(self, item: Item) -> list[bytes]:
        at: dict[str, Any] = {"output_index": item.position}
        added = self._event("output_item.added", [b',"item":', item.new()], **at)
        if item.kind == "function_call":
            return added
        place = _place(item)
        delta = b'"type":"response.output_text.delta",' + to_json(place)[1:-1]
        self._before = b"event: response.output_text.delta\ndata: {" + delta + b',"delta":'
        part = item.part(b'""', [b"[]"])
        return added + self._event("content_part.added", [b',"part":', *part], **place)

    def _end_item(self, item: Item, status: str) -> list[bytes]:
        ended = self._response.end_item(item, status)
        at: dict[str, Any] = {"output_index": item.position}
        if item.kind == "function_call":
            place: dict[str, Any] = {"item_id": item.item_id, **at, "name": item.name}
            kind = "function_call_arguments.done"
            done = self._event(kind, [b',"arguments":', ended.text], **place)
        else:
            is_message = item.kind == "message"
            kind = "output_text.done" if is_message else "reasoning_text.done"
            more = [b',"logprobs":', *ended.logprobs] if is_message else []
            done = self._event(kind, [b',"text":', ended.text, *more], **_place(item))
            done += self._event("content_part.done", [b',"part":', *ended.part], **_place(item))
        return done + self._event("output_item.done", [b',"item":', *ended.object], **at)

    def finished(self, _number: int, finished: pb.Finished) -> list[bytes]:
        """Encode the end of the item that was open."""
        pieces = self._begin()
        growth = self._response.finish(finished)
        if growth is not None:
            pieces += self._grow(growth)
        last = self._response.items.last
        assert last is not None
        return pieces + self._end_item(last, self._response.last_item_status)

    def failed(self, error: HttpError) -> list[bytes]:
        """Encode the failure of a response that has begun."""
        code = "server_error"
        if error.status is HTTPStatus.TOO_MANY_REQUESTS:
            code = "rate_limit_exceeded"
        failure = {"code": code, "message": error.message}
        return self._event("failed", [b',"response":', *self._response.pieces("failed", failure)])

    def end(self) -> list[bytes]:
        """Encode the whole response."""
        status = self._response.last_status
        return self._event(status, [b',"response":', *self._response.pieces(status)])


def _place(item: Item) -> dict[str, Any]:
    return {"item_id": item.item_id, "output_index": item.position, "content_index": 0}
