"""Responses of choices: chat completions and completions, whole and as chunks.

A chunk is put together from bytes that are the same for every token of an answer and the token's
text: no object is made for it.
"""

from typing import Any, Final

from chairlift.api.answer_collector import AnswerCollector
from chairlift.server.http.errors import HttpError
from chairlift.server.http.json_pieces import arrays, quoted, to_json
from chairlift.server.protocols.openai.job import Origin
from chairlift.server.protocols.openai.logprobs import LegacyLogprobs, Lists, TokenTexts
from chairlift.server.protocols.openai.parts import StreamOptions
from chairlift.server.protocols.openai.tools import add_calls, call_delta, call_objects, is_json
from chairlift.v1 import generation_pb2 as pb

DONE: Final = b"data: [DONE]\n\n"

_FINISH_REASONS: Final = {
    pb.FINISH_REASON_STOP: "stop",
    pb.FINISH_REASON_LENGTH: "length",
    pb.FINISH_REASON_TIME_LIMIT: "length",
}

_UNFINISHED: Final = b',"finish_reason":null}'


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
            texts: Texts of single tokens; None leaves log probabilities out.
            has_output: Whether more than the prompt is shown.
            skip_special: The text leaves special tokens out.
            stop_token_ids: Those of the request, beside the model's own.
        """
        self.skip_special = skip_special
        self.stop_token_ids = stop_token_ids
        self.is_chat = is_chat
        self.has_output = has_output
        self.texts = texts
        self._prompts: dict[int, LegacyLogprobs] = {}
        self._legacy: dict[int, LegacyLogprobs] = {}

    def response_id(self, origin: Origin) -> str:
        """Return the id of a response."""
        return f"{'chatcmpl' if self.is_chat else 'cmpl'}-{origin.handle}"

    def lists(self) -> Lists:
        """Return the object of log probabilities without any."""
        if self.is_chat:
            return Lists(b"content", after=b',"refusal":null}')
        return Lists(b"tokens", b"token_logprobs", b"top_logprobs", b"text_offset")

    def logprobs(self, number: int, tokens: pb.Tokens) -> tuple[bytes, ...]:
        """Return the runs for the lists of an answer, of tokens that have log probabilities."""
        assert self.texts is not None, "invariant: only where they are asked for"
        if self.is_chat:
            return (self.texts.content(tokens),)
        legacy = self._legacy.get(number)
        if legacy is None:
            prompt = self._prompts.get(number)
            legacy = self._legacy_at(0 if prompt is None else prompt.end())
            self._legacy[number] = legacy
        return legacy.add(tokens)

    def prompt_logprobs(self, numbers: range, prompt: pb.Prompt) -> tuple[bytes, ...]:
        """Return the runs for a piece of a prompt, which all answers to it have."""
        legacy = self._prompts.get(numbers.start)
        if legacy is None:
            legacy = self._legacy_at(0)
            self._prompts.update(dict.fromkeys(numbers, legacy))
        return legacy.add(prompt)

    def _legacy_at(self, offset: int) -> LegacyLogprobs:
        assert self.texts is not None, "invariant: only where they are asked for"
        return LegacyLogprobs(self.texts, skip_special=self.skip_special, offset=offset)

    def finish_reason(self, finished: pb.Finished, answer: AnswerCollector) -> str:
        """Return why an answer ended; one that a stop cut amid a call does not end with it."""
        reason = _FINISH_REASONS[finished.reason]
        if reason != "stop" or not answer.calls:
            return reason
        is_whole = is_json(str(answer.tool_calls[-1].arguments))
        is_cut = was_stopped(finished, self.stop_token_ids) and not is_whole
        return "stop" if is_cut else "tool_calls"


class _Choice:
    """One answer as it grows, encoded as it comes."""

    def __init__(self, lists: Lists | None) -> None:
        self.text: list[bytes] = []
        """In pieces, without quotes."""
        self.reasoning: list[bytes] = []
        self.answer = AnswerCollector()
        """Its function calls alone."""
        self.logprobs = lists
        self.reason = ""

    def pieces(self, number: int, *, is_chat: bool) -> list[bytes]:
        """Return the pieces of the object."""
        said = self._message() if is_chat else [b'"text":"', *self.text, b'"']
        logprobs = [b"null"] if self.logprobs is None else self.logprobs.object()
        end = b',"finish_reason":' + quoted(self.reason) + b"}"
        return [b'{"index":%d,' % number, *said, b',"logprobs":', *logprobs, end]

    def _message(self) -> list[bytes]:
        """Return the turn that an answer is; what it does not have is left out."""
        calls = call_objects(self.answer)
        text = [b"null"] if calls and not self.text else [b'"', *self.text, b'"']
        pieces = [b'"message":{"role":"assistant","content":', *text, b',"refusal":null']
        if self.reasoning:
            pieces += [b',"reasoning_content":"', *self.reasoning, b'"']
        if calls:
            pieces += [b',"tool_calls":', to_json(calls)]
        return [*pieces, b"}"]


class ChoicesAnswer:
    """A whole response."""

    def __init__(self, origin: Origin, form: Form, num_choices: int) -> None:
        """Start without text."""
        self._origin = origin
        self._form = form
        has_lists = form.texts is not None
        self._choices = [_Choice(form.lists() if has_lists else None) for _ in range(num_choices)]
        self._usage = UsageSum()

    def prompt(self, numbers: range, prompt: pb.Prompt) -> None:
        """Add a piece of the prompt of some answers."""
        text = _within(prompt.text)
        runs = None
        if self._form.texts is not None:
            runs = self._form.prompt_logprobs(numbers, prompt)
        for number in numbers:
            _add(self._choices[number], text, runs)

    def tokens(self, number: int, tokens: pb.Tokens) -> None:
        """Add tokens of an answer."""
        if not self._form.has_output:
            return
        choice = self._choices[number]
        if tokens.reasoning:
            choice.reasoning.append(_within(tokens.reasoning))
        add_calls(choice.answer, tokens)
        runs = None if self._form.texts is None else self._form.logprobs(number, tokens)
        _add(choice, _within(tokens.text), runs)

    def finished(self, number: int, finished: pb.Finished) -> None:
        """End an answer."""
        choice = self._choices[number]
        choice.reason = self._form.finish_reason(finished, choice.answer)
        self._usage.add(finished.usage, has_output=self._form.has_output)

    def body(self) -> list[bytes]:
        """Return the pieces of the body."""
        is_chat = self._form.is_chat
        head = {
            "id": self._form.response_id(self._origin),
            "object": "chat.completion" if is_chat else "text_completion",
            "created": self._origin.created,
            "model": self._origin.model,
        }
        choices = arrays([c.pieces(n, is_chat=is_chat) for n, c in enumerate(self._choices)])
        usage = b',"usage":' + to_json(self._usage.object()) + b"}"
        return [to_json(head)[:-1], b',"choices":', *choices, usage]


def _within(text: str) -> bytes:
    """Return a text as a part of a JSON text, without the quotes around it."""
    return quoted(text)[1:-1]


def _add(choice: _Choice, text: bytes, runs: tuple[bytes, ...] | None) -> None:
    if text:
        choice.text.append(text)
    if choice.logprobs is not None and runs is not None:
        choice.logprobs.add(runs)


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
        self._usage_options = usage
        self._usage = UsageSum()
        self._num_prompt_tokens = [0] * num_choices
        self._num_tokens = [0] * num_choices
        """Output tokens of each answer so far; counted only where chunks tell it."""
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
        self._answers = [AnswerCollector() for _ in range(num_choices)]
        """The function calls of each answer alone; the rest is sent, and not kept."""

    def _tail(self, number: int) -> bytes:
        """Return the end of a chunk of an answer."""
        if not self._usage_options.in_chunks:
            return self._plain_tail
        prompt, output = self._num_prompt_tokens[number], self._num_tokens[number]
        counts = b'{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}'
        return b'],"usage":' + counts % (prompt, output, prompt + output) + b"}\n\n"

    def _end(self, number: int) -> bytes:
        """Return the end of a chunk that is not the last of its answer."""
        return (
            _UNFINISHED + self._tail(number) if self._usage_options.in_chunks else self._plain_end
        )

    def accepted(self, number: int, num_prompt_tokens: int) -> None:
        """Note the length of the prompt of an answer."""
        self._num_prompt_tokens[number] = num_prompt_tokens

    def prompt(self, numbers: range, prompt: pb.Prompt) -> list[bytes]:
        """Encode a piece of the prompt of some answers, as if it were output."""
        logprobs = b""
        if self._form.texts is not None:
            logprobs = self._object(self._form.prompt_logprobs(numbers, prompt))
        text = quoted(prompt.text) if prompt.text else b""
        return [
            piece for n in numbers for piece in (*self._role(n), *self._chunk(n, text, logprobs))
        ]

    def tokens(self, number: int, tokens: pb.Tokens) -> list[bytes]:
        """Encode tokens of an answer; a part of a character alone is no chunk."""
        if not self._form.has_output:
            return []
        self._num_tokens[number] += len(tokens.token_ids)
        logprobs = b""
        if self._form.texts is not None:
            logprobs = self._object(self._form.logprobs(number, tokens))
        text = quoted(tokens.text) if tokens.text else b""
        chunk = self._chunk(number, text, logprobs)
        if not self._has_begun[number] or tokens.reasoning or tokens.tool_calls:
            reasoning, calls = self._fields(number, tokens)
            return [*self._role(number), *reasoning, *chunk, *calls]
        return chunk

    def _object(self, runs: tuple[bytes, ...]) -> bytes:
        lists = self._form.lists()
        lists.add(runs)
        return b"".join(lists.object())

    def _chunk(self, number: int, text: bytes, logprobs: bytes) -> list[bytes]:
        """Return the chunk of a text, if there is any or log probabilities."""
        if not text and not logprobs:
            return []
        after = self._after_text + (logprobs or b"null") + self._end(number)
        return [self._before_text[number] + (text or b'""') + after]

    def _fields(self, number: int, tokens: pb.Tokens) -> tuple[list[bytes], list[bytes]]:
        """Encode what stands before and after the text: reasoning, and parts of function calls."""
        reasoning: list[bytes] = []
        calls: list[bytes] = []
        if tokens.reasoning:
            reasoning = [self._delta(number, {"reasoning_content": tokens.reasoning})]
        if tokens.tool_calls:
            add_calls(self._answers[number], tokens)
            deltas = [call_delta(part) for part in tokens.tool_calls]
            calls = [self._delta(number, {"tool_calls": deltas})]
        return reasoning, calls

    def _delta(self, number: int, delta: dict[str, Any]) -> bytes:
        choice = b'{"index":%d,"delta":%s,"logprobs":null' % (number, to_json(delta))
        return self._head + choice + self._end(number)

    def _role(self, number: int) -> list[bytes]:
        """Return the first chunk of an answer, once."""
        if self._has_begun[number]:
            return []
        self._has_begun[number] = True
        delta = b'{"index":%d,"delta":{"role":"assistant","content":""},"logprobs":null' % number
        return [self._head + delta + self._end(number)]

    def finished(self, number: int, finished: pb.Finished) -> list[bytes]:
        """Encode the end of an answer."""
        self._usage.add(finished.usage, has_output=self._form.has_output)
        self._num_tokens[number] = finished.usage.output_tokens if self._form.has_output else 0
        said = b'"delta":{}' if self._form.is_chat else b'"text":""'
        reason = self._form.finish_reason(finished, self._answers[number]).encode()
        choice = b'{"index":%d,%s,"logprobs":null,"finish_reason":"%s"}' % (number, said, reason)
        return [*self._role(number), self._head + choice + self._tail(number)]

    def failed(self, error: HttpError) -> list[bytes]:
        """Encode the end of a response that has begun; clients raise for such an event."""
        return [b"data: " + error.body() + b"\n\n"]

    def end(self) -> list[bytes]:
        """Encode the usage, if it was asked for, and the end."""
        if not self._usage_options.at_end:
            return [DONE]
        usage = self._head + b'],"usage":' + to_json(self._usage.object()) + b"}\n\n"
        return [usage, DONE]
