"""Responses of choices: chat completions and completions, whole and as chunks.

A chunk is put together from bytes that are the same for every token of an answer and the token's
text: no object is made for it.
"""

import json
from json.encoder import encode_basestring
from typing import Any, Final

from chairlift.server.http.errors import HttpError
from chairlift.server.http.exchange import to_json
from chairlift.server.protocols.openai.job import Origin
from chairlift.server.protocols.openai.logprobs import LegacyLogprobs, TokenTexts
from chairlift.server.protocols.openai.parts import StreamOptions
from chairlift.server.protocols.openai.tools import Calls, call_delta
from chairlift.v1 import generation_pb2 as pb

DONE: Final = b"data: [DONE]\n\n"

_FINISH_REASONS: Final = {
    pb.FINISH_REASON_STOP: "stop",
    pb.FINISH_REASON_LENGTH: "length",
    pb.FINISH_REASON_TIME_LIMIT: "length",
}

_UNFINISHED: Final = b',"finish_reason":null}'


def quoted(text: str) -> bytes:
    """Return a text as JSON."""
    return encode_basestring(text).encode()


class UsageSum:
    """The usage of all answers of a response."""

    def __init__(self) -> None:
        self.prompt = self.cached = self.output = 0

    def add(self, usage: pb.Usage, *, has_output: bool = True) -> None:
        """Add an answer's; the prompt counts for the first of a request alone."""
        self.prompt += usage.prompt_tokens
        self.cached += usage.cached_tokens
        self.output += usage.output_tokens if has_output else 0

    def object(self) -> dict[str, Any]:
        """Return the object of the API."""
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.output,
            "total_tokens": self.prompt + self.output,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        }


class Form:
    """What differs between chat completions and completions."""

    def __init__(
        self,
        *,
        is_chat: bool,
        texts: TokenTexts | None,
        has_output: bool = True,
        skip_special: bool = True,
        stop_token_ids: frozenset[int] = frozenset(),
    ) -> None:
        """Set the form.

        Args:
            is_chat: Chat completions.
            texts: Of the tokens; None leaves log probabilities out.
            has_output: Whether more than the prompt is shown.
            skip_special: The text leaves special tokens out.
            stop_token_ids: Those of the request, beside the model's own.
        """
        self.skip_special = skip_special
        self.stop_token_ids = stop_token_ids
        self.is_chat = is_chat
        self.has_output = has_output
        self.texts = texts
        self._legacy: dict[int, LegacyLogprobs] = {}

    def response_id(self, origin: Origin) -> str:
        """Return the id of a response."""
        return f"{'chatcmpl' if self.is_chat else 'cmpl'}-{origin.handle}"

    def logprobs(self, number: int, tokens: pb.Tokens | pb.Prompt) -> dict[str, Any] | None:
        """Return the object of an answer's tokens, or of its prompt's."""
        if self.texts is None:
            return None
        if self.is_chat and isinstance(tokens, pb.Tokens):
            return {"content": self.texts.content(tokens), "refusal": None}
        legacy = self._legacy.get(number)
        if legacy is None:
            legacy = LegacyLogprobs(self.texts, skip_special=self.skip_special)
            self._legacy[number] = legacy
        return legacy.add(tokens)

    def finish_reason(self, finished: pb.Finished, calls: Calls) -> str:
        """Return why an answer ended; one that a stop cut amid a call does not end with it."""
        reason = _FINISH_REASONS[finished.reason]
        if reason != "stop" or not calls:
            return reason
        is_cut = was_stopped(finished, self.stop_token_ids) and not calls.is_whole()
        return "stop" if is_cut else "tool_calls"


class ChoicesAnswer:
    """A whole response."""

    def __init__(self, origin: Origin, form: Form, num_choices: int) -> None:
        """Start without text."""
        self._origin = origin
        self._form = form
        self._texts: list[list[str]] = [[] for _ in range(num_choices)]
        self._reasoning: list[list[str]] = [[] for _ in range(num_choices)]
        self._calls = [Calls() for _ in range(num_choices)]
        self._logprobs: list[dict[str, Any] | None] = [None] * num_choices
        self._reasons = [""] * num_choices
        self._usage = UsageSum()

    def prompt(self, number: int, prompt: pb.Prompt) -> None:
        """Add a piece of the prompt of an answer."""
        self._add(number, prompt)

    def tokens(self, number: int, tokens: pb.Tokens) -> None:
        """Add tokens of an answer."""
        if not self._form.has_output:
            return
        self._reasoning[number].append(tokens.reasoning)
        for part in tokens.tool_calls:
            self._calls[number].add(part)
        self._add(number, tokens)

    def _add(self, number: int, tokens: pb.Tokens | pb.Prompt) -> None:
        self._texts[number].append(tokens.text)
        more = self._form.logprobs(number, tokens)
        before = self._logprobs[number]
        if before is None or more is None:
            self._logprobs[number] = more
        else:
            for name, values in more.items():
                if values is not None:
                    before[name].extend(values)

    def finished(self, number: int, finished: pb.Finished) -> None:
        """End an answer."""
        self._reasons[number] = self._form.finish_reason(finished, self._calls[number])
        self._usage.add(finished.usage, has_output=self._form.has_output)

    def result(self) -> dict[str, Any]:
        """Return the body."""
        is_chat = self._form.is_chat
        return {
            "id": self._form.response_id(self._origin),
            "object": "chat.completion" if is_chat else "text_completion",
            "created": self._origin.created,
            "model": self._origin.model,
            "choices": [self._choice(number) for number in range(len(self._texts))],
            "usage": self._usage.object(),
        }

    def _choice(self, number: int) -> dict[str, Any]:
        text = "".join(self._texts[number])
        said: dict[str, Any] = {"text": text}
        if self._form.is_chat:
            said = {"message": self._message(number, text)}
        logprobs, reason = self._logprobs[number], self._reasons[number]
        return {"index": number, **said, "logprobs": logprobs, "finish_reason": reason}

    def _message(self, number: int, text: str) -> dict[str, Any]:
        """Return the turn that an answer is; what it does not have is left out."""
        calls = self._calls[number].objects()
        message: dict[str, Any] = {
            "role": "assistant",
            "content": None if calls and not text else text,
            "refusal": None,
        }
        if reasoning := "".join(self._reasoning[number]):
            message["reasoning_content"] = reasoning
        if calls:
            message["tool_calls"] = calls
        return message


def was_stopped(finished: pb.Finished, stop_token_ids: frozenset[int]) -> bool:
    """Return whether a stop of the request ended an answer, and not the model itself."""
    if finished.HasField("stop_token_id"):
        return finished.stop_token_id in stop_token_ids
    return bool(finished.HasField("stop"))


class ChoicesStream:
    """A response as server-sent events."""

    def __init__(
        self, origin: Origin, form: Form, num_choices: int, *, usage: StreamOptions
    ) -> None:
        """Prepare what all chunks have in common."""
        self._form = form
        self._asked = usage
        self._usage = UsageSum()
        self._num_prompt_tokens = [0] * num_choices
        self._num_tokens = [0] * num_choices
        """Of each answer so far; counted only where chunks tell it."""
        kind = "chat.completion.chunk" if form.is_chat else "text_completion"
        head = {
            "id": form.response_id(origin),
            "object": kind,
            "created": origin.created,
            "model": origin.model,
        }
        self._head = b"data: " + to_json(head)[:-1] + b',"choices":['
        self._plain_tail = b'],"usage":null}\n\n' if usage.at_end else b"]}\n\n"
        before = b'"delta":{"content":' if form.is_chat else b'"text":'
        self._before_text = [
            self._head + b'{"index":%d,' % number + before for number in range(num_choices)
        ]
        self._after_text = b'},"logprobs":' if form.is_chat else b',"logprobs":'
        self._plain_end = _UNFINISHED + self._plain_tail
        self._has_begun = [not form.is_chat] * num_choices
        self._calls = [Calls() for _ in range(num_choices)]

    def _tail(self, number: int) -> bytes:
        """Return the end of a chunk of an answer."""
        if not self._asked.in_chunks:
            return self._plain_tail
        prompt, output = self._num_prompt_tokens[number], self._num_tokens[number]
        counts = b'{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}'
        return b'],"usage":' + counts % (prompt, output, prompt + output) + b"}\n\n"

    def _end(self, number: int) -> bytes:
        """Return the end of a chunk that is not the last of its answer."""
        return _UNFINISHED + self._tail(number) if self._asked.in_chunks else self._plain_end

    def accepted(self, number: int, num_prompt_tokens: int) -> None:
        """Note the length of the prompt of an answer."""
        self._num_prompt_tokens[number] = num_prompt_tokens

    def prompt(self, number: int, prompt: pb.Prompt) -> bytes:
        """Encode a piece of the prompt of an answer, as if it were output."""
        return self._chunk(number, prompt)

    def tokens(self, number: int, tokens: pb.Tokens) -> bytes:
        """Encode tokens of an answer; a part of a character alone is no chunk."""
        if not self._form.has_output:
            return b""
        self._num_tokens[number] += len(tokens.token_ids)
        return self._chunk(number, tokens)

    def _chunk(self, number: int, tokens: pb.Tokens | pb.Prompt) -> bytes:
        before = b""
        if not self._has_begun[number]:
            self._has_begun[number] = True
            before = self._role(number)
        after_text = b""
        if isinstance(tokens, pb.Tokens):
            reasoning, after_text = self._fields(number, tokens)
            before += reasoning
        if self._form.texts is not None:
            logprobs = to_json(self._form.logprobs(number, tokens))
            after = self._after_text + logprobs + self._end(number)
        elif tokens.text:
            after = self._after_text + b"null" + self._end(number)
        else:
            return before + after_text
        return before + self._before_text[number] + quoted(tokens.text) + after + after_text

    def _fields(self, number: int, tokens: pb.Tokens) -> tuple[bytes, bytes]:
        """Encode what stands before and after the text: reasoning, and parts of function calls."""
        reasoning = calls = b""
        if tokens.reasoning:
            reasoning = self._delta(number, {"reasoning_content": tokens.reasoning})
        if tokens.tool_calls:
            for part in tokens.tool_calls:
                self._calls[number].add(part)
            deltas = [call_delta(part) for part in tokens.tool_calls]
            calls = self._delta(number, {"tool_calls": deltas})
        return reasoning, calls

    def _delta(self, number: int, delta: dict[str, Any]) -> bytes:
        choice = b'{"index":%d,"delta":%s,"logprobs":null' % (number, to_json(delta))
        return self._head + choice + self._end(number)

    def _role(self, number: int) -> bytes:
        delta = b'{"index":%d,"delta":{"role":"assistant","content":""},"logprobs":null' % number
        return self._head + delta + self._end(number)

    def finished(self, number: int, finished: pb.Finished) -> bytes:
        """Encode the end of an answer."""
        self._usage.add(finished.usage, has_output=self._form.has_output)
        self._num_tokens[number] = finished.usage.output_tokens if self._form.has_output else 0
        before = b""
        if not self._has_begun[number]:
            self._has_begun[number] = True
            before = self._role(number)
        said = b'"delta":{}' if self._form.is_chat else b'"text":""'
        reason = self._form.finish_reason(finished, self._calls[number]).encode()
        choice = b'{"index":%d,%s,"logprobs":null,"finish_reason":"%s"}' % (number, said, reason)
        return before + self._head + choice + self._tail(number)

    def failed(self, error: HttpError) -> bytes:
        """Encode the end of a response that has begun; clients raise for such an event."""
        return b"data: " + json.dumps({"error": error.object()}).encode() + b"\n\n"

    def end(self) -> bytes:
        """Encode the usage, if it was asked for, and the end."""
        if not self._asked.at_end:
            return DONE
        return self._head + b'],"usage":' + to_json(self._usage.object()) + b"}\n\n" + DONE
