"""Responses of `/v1/responses`: one message, whole or as events.

    created, in_progress, output_item.added, content_part.added, output_text.delta ...,
    output_text.done, content_part.done, output_item.done, completed | incomplete | failed

Every event has its `type` and a `sequence_number`; the last one has the whole response.
"""

import time
from http import HTTPStatus
from typing import Any

from chairlift.server.adapters.openai.choices import UsageSum, quoted
from chairlift.server.adapters.openai.job import Origin
from chairlift.server.adapters.openai.logprobs import TokenTexts
from chairlift.server.http.errors import HttpError
from chairlift.server.http.exchange import to_json
from chairlift.v1 import generation_pb2 as pb


class _Response:
    """The object that a response is, at every moment of it."""

    def __init__(self, origin: Origin, repeated: dict[str, Any], texts: TokenTexts | None) -> None:
        self.origin = origin
        self.item_id = f"msg_{origin.handle}"
        self.texts: list[str] = []
        self.logprobs: list[dict[str, Any]] = []
        self.token_texts = texts
        self._repeated = repeated
        self._usage: dict[str, Any] | None = None
        self.is_incomplete = False

    def add(self, tokens: pb.Tokens) -> list[dict[str, Any]]:
        """Add tokens; return the entries of their log probabilities."""
        self.texts.append(tokens.text)
        entries = [] if self.token_texts is None else self.token_texts.content(tokens)
        self.logprobs += entries
        return entries

    def finish(self, finished: pb.Finished) -> None:
        """Note how the answer ended."""
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

    def part(self, text: str) -> dict[str, Any]:
        """Return the content of the message."""
        part = {"type": "output_text", "text": text, "annotations": []}
        return {**part, "logprobs": self.logprobs if text else []}

    def item(self, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the message."""
        return {
            "id": self.item_id,
            "type": "message",
            "status": status,
            "role": "assistant",
            "content": content,
        }

    def whole_item(self) -> dict[str, Any]:
        """Return the message at its end."""
        status = "incomplete" if self.is_incomplete else "completed"
        return self.item(status, [self.part("".join(self.texts))])

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
            "previous_response_id": None,
            "store": False,
            "tool_choice": "auto",
            "tools": [],
            "truncation": "disabled",
            "usage": self._usage,
            **self._repeated,
        }

    def end(self) -> dict[str, Any]:
        """Return the response at its end."""
        status = "incomplete" if self.is_incomplete else "completed"
        return self.object(status, [self.whole_item()])


class ResponseAnswer:
    """A whole response."""

    def __init__(self, origin: Origin, repeated: dict[str, Any], texts: TokenTexts | None) -> None:
        """Start without text."""
        self._response = _Response(origin, repeated, texts)

    def tokens(self, _number: int, tokens: pb.Tokens) -> None:
        """Add tokens."""
        self._response.add(tokens)

    def finished(self, _number: int, finished: pb.Finished) -> None:
        """End the answer."""
        self._response.finish(finished)

    def result(self) -> dict[str, Any]:
        """Return the body."""
        return self._response.end()


class ResponseStream:
    """A response as server-sent events."""

    def __init__(self, origin: Origin, repeated: dict[str, Any], texts: TokenTexts | None) -> None:
        """Prepare what all deltas have in common."""
        self._response = _Response(origin, repeated, texts)
        self._number = 0
        self._has_begun = False
        self._place = {"item_id": self._response.item_id, "output_index": 0, "content_index": 0}
        place = to_json(self._place)[1:-1]
        delta = b'"type":"response.output_text.delta",' + place
        self._before = b"event: response.output_text.delta\ndata: {" + delta + b',"delta":'

    def _event(self, kind: str, **values: Any) -> bytes:
        event = {"type": f"response.{kind}", "sequence_number": self._number, **values}
        self._number += 1
        return b"event: response." + kind.encode() + b"\ndata: " + to_json(event) + b"\n\n"

    def _begin(self) -> bytes:
        self._has_begun = True
        response = self._response.object("in_progress", [])
        return b"".join(
            (
                self._event("created", response=response),
                self._event("in_progress", response=response),
                self._event(
                    "output_item.added",
                    output_index=0,
                    item=self._response.item("in_progress", []),
                ),
                self._event("content_part.added", **self._place, part=self._response.part("")),
            )
        )

    def tokens(self, _number: int, tokens: pb.Tokens) -> bytes:
        """Encode a delta; a part of a character alone is none."""
        before = b"" if self._has_begun else self._begin()
        entries = self._response.add(tokens)
        if not tokens.text and not entries:
            return before
        logprobs = to_json(entries) if entries else b"[]"
        after = b',"logprobs":%s,"sequence_number":%d}\n\n' % (logprobs, self._number)
        self._number += 1
        return before + self._before + quoted(tokens.text) + after

    def finished(self, _number: int, finished: pb.Finished) -> bytes:
        """Encode the end of the text, its part and its item."""
        before = b"" if self._has_begun else self._begin()
        response = self._response
        response.finish(finished)
        text = "".join(response.texts)
        logprobs = response.logprobs
        return b"".join(
            (
                before,
                self._event("output_text.done", **self._place, text=text, logprobs=logprobs),
                self._event("content_part.done", **self._place, part=response.part(text)),
                self._event("output_item.done", output_index=0, item=response.whole_item()),
            )
        )

    def failed(self, error: HttpError) -> bytes:
        """Encode the failure of a response that has begun."""
        code = "server_error"
        if error.status is HTTPStatus.TOO_MANY_REQUESTS:
            code = "rate_limit_exceeded"
        failure = {"code": code, "message": error.message}
        return self._event("failed", response=self._response.object("failed", [], failure))

    def end(self) -> bytes:
        """Encode the whole response."""
        response = self._response.end()
        return self._event(response["status"], response=response)
