"""Responses of `/v1/responses`, whole or as events.

    created, in_progress,
    of each item: output_item.added, content_part.added, output_text.delta ..., output_text.done,
        content_part.done, output_item.done; reasoning has reasoning_text.delta and .done, and a
        function call function_call_arguments.delta and .done without a part around them,
    completed | incomplete | failed

Every event has its `type` and a `sequence_number`; the last one has the whole response.
"""

import json
import time
from http import HTTPStatus
from typing import Any

from chairlift.server.http.errors import HttpError
from chairlift.server.http.exchange import to_json
from chairlift.server.protocols.openai.choices import UsageSum, quoted, was_stopped
from chairlift.server.protocols.openai.job import Origin
from chairlift.server.protocols.openai.logprobs import TokenTexts
from chairlift.server.protocols.openai.response_items import Growth, Item, Items
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

    def object(
        self, status: str, output: list[dict[str, Any]], error: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the response."""
        is_incomplete = status == "incomplete"
        return {
            "id": f"resp_{self.origin.handle}",
            "object": "response",
            "created_at": self.origin.created,
            "completed_at": int(time.time()) if status == "completed" else None,
            "status": status,
            "error": error,
            "incomplete_details": {"reason": "max_output_tokens"} if is_incomplete else None,
            "model": self.origin.model,
            "output": output,
            "usage": self._usage,
        }

    @property
    def last_status(self) -> str:
        """Return the status of the response at its end."""
        return "incomplete" if self.is_incomplete else "completed"

    def end(self) -> dict[str, Any]:
        """Return the response at its end."""
        items = self.items.objects(is_incomplete=self.last_item_status == "incomplete")
        return self.object(self.last_status, items)

    def whole(self, values: dict[str, Any]) -> bytes:
        """Encode a response with what it repeats of its request."""
        return to_json(values)[:-1] + b"," + self._repeated + b"}"


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

    def prompt(self, _number: int, _prompt: pb.Prompt) -> None:
        """Ignore a prompt: no response asks for it."""

    def tokens(self, _number: int, tokens: pb.Tokens) -> None:
        """Add tokens."""
        self._response.items.add(tokens)

    def finished(self, _number: int, finished: pb.Finished) -> None:
        """End the answer."""
        self._response.finish(finished)

    def result(self) -> dict[str, Any]:
        """Return the body."""
        result: dict[str, Any] = json.loads(self._response.whole(self._response.end()))
        return result


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
        """Of a delta of the message, the same for every token."""

    def _event(self, kind: str, **values: Any) -> bytes:
        event = {"type": f"response.{kind}", "sequence_number": self._number, **values}
        self._number += 1
        return b"event: response." + kind.encode() + b"\ndata: " + to_json(event) + b"\n\n"

    def _with_response(self, kind: str, response: dict[str, Any]) -> bytes:
        event = {"type": f"response.{kind}", "sequence_number": self._number}
        self._number += 1
        data = to_json(event)[:-1] + b',"response":' + self._response.whole(response) + b"}"
        return b"event: response." + kind.encode() + b"\ndata: " + data + b"\n\n"

    def _begin(self) -> bytes:
        if self._has_begun:
            return b""
        self._has_begun = True
        response = self._response.object("in_progress", [])
        created = self._with_response("created", response)
        return created + self._with_response("in_progress", response)

    def accepted(self, _number: int, _num_prompt_tokens: int) -> None:
        """Ignore the length of the prompt: the usage at the end has it."""

    def prompt(self, _number: int, _prompt: pb.Prompt) -> bytes:
        """Return nothing: no response asks for its prompt."""
        return b""

    def tokens(self, _number: int, tokens: pb.Tokens) -> bytes:
        """Encode what items have got; a part of a character alone is nothing."""
        before = self._begin()
        return before + b"".join([self._grow(part) for part in self._response.items.add(tokens)])

    def _grow(self, growth: Growth) -> bytes:
        before = b""
        if growth.ended is not None:
            before += self._end_item(growth.ended, "completed")
        if growth.is_new:
            before += self._begin_item(growth.item)
        if not growth.text and not growth.logprobs:
            return before
        item = growth.item
        if item.kind == "function_call":
            place = {"item_id": item.item_id, "output_index": item.position}
            return before + self._event("function_call_arguments.delta", **place, delta=growth.text)
        if item.kind == "reasoning":
            return before + self._event("reasoning_text.delta", **_place(item), delta=growth.text)
        logprobs = to_json(growth.logprobs) if growth.logprobs else b"[]"
        after = b',"logprobs":%s,"sequence_number":%d}\n\n' % (logprobs, self._number)
        self._number += 1
        return before + self._before + quoted(growth.text) + after

    def _begin_item(self, item: Item) -> bytes:
        added = self._event(
            "output_item.added", output_index=item.position, item=item.object("in_progress")
        )
        if item.kind == "function_call":
            return added
        place = _place(item)
        delta = b'"type":"response.output_text.delta",' + to_json(place)[1:-1]
        self._before = b"event: response.output_text.delta\ndata: {" + delta + b',"delta":'
        part = item.part(is_empty=True)
        return added + self._event("content_part.added", **place, part=part)

    def _end_item(self, item: Item, status: str) -> bytes:
        done: bytes
        if item.kind == "function_call":
            place = {"item_id": item.item_id, "output_index": item.position}
            kind = "function_call_arguments.done"
            done = self._event(kind, **place, name=item.name, arguments=item.text)
        else:
            if item.kind == "reasoning":
                done = self._event("reasoning_text.done", **_place(item), text=item.text)
            else:
                values = {"text": item.text, "logprobs": item.logprobs}
                done = self._event("output_text.done", **_place(item), **values)
            done += self._event("content_part.done", **_place(item), part=item.part())
        ended = item.object(status)
        return done + self._event("output_item.done", output_index=item.position, item=ended)

    def finished(self, _number: int, finished: pb.Finished) -> bytes:
        """Encode the end of the item that was open."""
        before = self._begin()
        growth = self._response.finish(finished)
        if growth is not None:
            before += self._grow(growth)
        last = self._response.items.last
        assert last is not None
        return before + self._end_item(last, self._response.last_item_status)

    def failed(self, error: HttpError) -> bytes:
        """Encode the failure of a response that has begun."""
        code = "server_error"
        if error.status is HTTPStatus.TOO_MANY_REQUESTS:
            code = "rate_limit_exceeded"
        failure = {"code": code, "message": error.message}
        return self._with_response("failed", self._response.object("failed", [], failure))

    def end(self) -> bytes:
        """Encode the whole response."""
        return self._with_response(self._response.last_status, self._response.end())


def _place(item: Item) -> dict[str, Any]:
    return {"item_id": item.item_id, "output_index": item.position, "content_index": 0}
