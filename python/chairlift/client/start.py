"""Builds `Start` and `Update` messages from plain Python values.

A protobuf message converts values silently: a text to its letters, bytes to token ids, 3 to true.
So the type of each value is checked here; the server checks its range.
"""

import json
from collections.abc import Mapping, Set
from typing import Any, Final, Unpack

from google.protobuf import duration_pb2

from chairlift.api import chats, checks, constraints
from chairlift.api.errors import Reason, RequestError
from chairlift.api.types import Chat, ChatMessage, Prompt, ToolMode
from chairlift.client.options import (
    NAMES,
    SCHEDULE_NAMES,
    STOPPING_NAMES,
    RequestOptions,
    UpdateOptions,
)
from chairlift.v1 import generation_pb2 as pb

_MAX_UINT32: Final = 2**32 - 1
_YEAR_S: Final = 31_536_000.0
_INFINITY: Final = float("inf")
_TOOL_MODES: Final = {
    ToolMode.NONE: pb.TOOL_MODE_NONE,
    ToolMode.REQUIRED: pb.TOOL_MODE_REQUIRED,
}


def new_start(prompt: Prompt, **options: Unpack[RequestOptions]) -> pb.Start:
    """Build the message of one request.

    Args:
        prompt: Text, token ids or a conversation.
        options: See `RequestOptions`.

    Raises:
        RequestError: `BAD_PARAMETER`: a value has the wrong type; `field` is its path in `Start`.
        TypeError: There is no option of that name.
    """
    given = _OptionReader("new_start", options, NAMES)
    start = pb.Start(
        request_id=given.text("request_id", ""),
        model=given.text("model", ""),
        adapter=given.text("adapter", ""),
        sampling=pb.Sampling(
            temperature=given.number("temperature"),
            top_k=given.count("top_k", -1),
            top_p=given.number("top_p"),
            min_p=given.number("min_p"),
            seed=given.integer("seed", 0, 2**64 - 1),
            n=given.count("n"),
            **{name: given.number(name) for name in _NUMBERS},
            dry_allowed_length=given.count("dry_allowed_length"),
            dry_sequence_breakers=given.text_list("dry_sequence_breakers"),
            dry_penalty_last_n=given.count("dry_penalty_last_n"),
            logit_bias=given.biases("logit_bias"),
            allowed_token_ids=given.token_ids("allowed_token_ids"),
            banned_token_ids=given.token_ids("banned_token_ids"),
            bad_words=given.texts("bad_words"),
        ),
        stopping=_stopping(given),
        output=pb.Output(
            token_ids=given.flag("token_ids"),
            logprobs=given.logprobs("logprobs"),
            skip_special_tokens=given.optional_flag("skip_special_tokens"),
            prompt_logprobs=given.logprobs("prompt_logprobs"),
            echo=given.flag("echo"),
            timeline=given.flag("timeline"),
            interval=given.count("interval"),
        ),
        schedule=_schedule(given),
        credit=given.count("credit"),
        resume_window=given.duration("resume_window_s"),
        constraint=given.constraint("constraint"),
    )
    tools, choice, parallel = (
        options.get("tools"),
        options.get("tool_choice"),
        options.get("parallel_tool_calls"),
    )
    checks.prompt(prompt, "prompt")
    _set_prompt(start, chats.with_tools(prompt, tools, choice, parallel))
    return start


def new_update(request_id: str, **options: Unpack[UpdateOptions]) -> pb.Update:
    """Build the message that changes a live request.

    Args:
        request_id: Label of the request.
        options: See `UpdateOptions`.

    Raises:
        RequestError: `BAD_PARAMETER`: a value has the wrong type, or there is none; `field` is its
            path.
        TypeError: There is no option of that name.
    """
    given = _OptionReader("update", options, STOPPING_NAMES | SCHEDULE_NAMES, path="update.")
    has_stopping, has_schedule = given.has_any(STOPPING_NAMES), given.has_any(SCHEDULE_NAMES)
    if not has_stopping and not has_schedule:
        message = "update: expected an option that changes the request, got none"
        raise RequestError(Reason.BAD_PARAMETER, message, field="update")
    return pb.Update(
        request_id=request_id,
        stopping=_stopping(given) if has_stopping else None,
        schedule=_schedule(given) if has_schedule else None,
    )


def _stopping(given: "_OptionReader") -> pb.Stopping:
    return pb.Stopping(
        max_tokens=given.count("max_tokens"),
        min_tokens=given.count("min_tokens"),
        stop=given.texts("stop"),
        stop_token_ids=given.token_ids("stop_token_ids"),
        ignore_eos=given.flag("ignore_eos"),
        include_stop=given.flag("include_stop"),
        stop_regex=given.texts("stop_regex"),
    )


def _schedule(given: "_OptionReader") -> pb.Schedule:
    return pb.Schedule(
        queue_timeout=given.duration("queue_timeout_s"),
        time_to_first_token=given.duration("time_to_first_token_s"),
        time_limit=given.duration("time_limit_s"),
        priority=given.integer("priority", -(2**31), 2**31 - 1),
    )


_NUMBERS: Final = (
    *("repetition_penalty", "presence_penalty", "frequency_penalty", "typical_p", "top_n_sigma"),
    *("dry_multiplier", "dry_base", "xtc_probability", "xtc_threshold"),
)
_GROUPS: Final = {
    "sampling": (
        *("temperature", "top_k", "top_p", "min_p", "seed", "n", *_NUMBERS),
        *("dry_allowed_length", "dry_sequence_breakers", "dry_penalty_last_n"),
        *("logit_bias", "allowed_token_ids", "banned_token_ids", "bad_words"),
    ),
    "stopping": STOPPING_NAMES,
    "output": (
        *("skip_special_tokens", "token_ids", "logprobs", "prompt_logprobs", "echo"),
        *("timeline", "interval"),
    ),
    "schedule": SCHEDULE_NAMES,
}
_PATHS: Final = {
    name: f"{group}.{name.removesuffix('_s')}" for group, names in _GROUPS.items() for name in names
}


class _OptionReader:
    """The options that are not None; each method checks one and returns it, or None."""

    def __init__(
        self, function: str, options: Mapping[str, Any], names: Set[str], path: str = ""
    ) -> None:
        """Keep the options.

        Args:
            function: Name of the function that takes them.
            options: Values by name.
            names: Those that the function knows.
            path: Begins the paths of the fields.

        Raises:
            TypeError: There is no option of that name.
        """
        for name in options:
            if name not in names:
                message = f"{function}() got an unexpected keyword argument {name!r}"
                raise TypeError(message)
        self._options = {name: value for name, value in options.items() if value is not None}
        self._path = path

    def has_any(self, names: Set[str]) -> bool:
        """Return whether one of these options is given."""
        return not names.isdisjoint(self._options)

    def _get(self, name: str) -> tuple[Any, str]:
        return self._options.get(name), self._path + _PATHS.get(name, name)

    def text(self, name: str, default: str) -> str:
        value, path = self._get(name)
        if value is None:
            return default
        checks.utf8_len(value, path)
        return str(value)

    def texts(self, name: str) -> tuple[str, ...]:
        value, path = self._get(name)
        texts = () if value is None else checks.one_or_many(value, path, "text or a list of texts")
        for text in texts:
            checks.utf8_len(text, path)
        return texts

    def integer(self, name: str, low: int, high: int) -> int | None:
        value, path = self._get(name)
        return None if value is None else checks.integer(value, path, low, high)

    def count(self, name: str, off: int = 0) -> int | None:
        """Return a count; `off` is another way to write 0."""
        number = self.integer(name, off, _MAX_UINT32)
        return 0 if number is not None and number < 0 else number

    def number(self, name: str) -> float | None:
        value, path = self._get(name)
        return (
            None if value is None else checks.real(value, path, -_INFINITY, _INFINITY, "a number")
        )

    def flag(self, name: str) -> bool:
        value, path = self._get(name)
        return False if value is None else checks.flag(value, path)

    def optional_flag(self, name: str) -> Any:  # protoc's types know no unset bool
        """Return a switch whose default is the server's."""
        return None if self._options.get(name) is None else self.flag(name)

    def token_ids(self, name: str) -> list[int] | None:
        value, path = self._get(name)
        return None if value is None else checks.token_ids(value, path, _MAX_UINT32 + 1)

    def text_list(self, name: str) -> pb.StringList | None:
        """Return a list that is sent although it may be empty."""
        if self._options.get(name) is None:
            return None
        return pb.StringList(strings=self.texts(name))

    def logprobs(self, name: str) -> int | None:
        """Return a number of candidates; True is none, and False no log probabilities."""
        value, path = self._get(name)
        if isinstance(value, bool) or value is None:
            return 0 if value else None
        return checks.integer(value, path, 0, _MAX_UINT32)

    def biases(self, name: str) -> dict[int, float]:
        value, path = self._get(name)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise checks.bad(path, "numbers by token id", value)
        ids = checks.token_ids(list(value), path, _MAX_UINT32 + 1)
        values = (checks.real(v, path, -_INFINITY, _INFINITY, "numbers") for v in value.values())
        return dict(zip(ids, values, strict=True))

    def constraint(self, name: str) -> pb.Constraint | None:
        """Return a constraint; the server checks what it says."""
        value = self._options.get(name)
        if value is None:
            return None
        kind, text, choices, _ = constraints.source(value)
        if kind == "json_object":
            return pb.Constraint(json_object=pb.JsonObject())
        if kind == "choices":
            return pb.Constraint(choices=pb.Choices(choices=choices))
        of_kind: dict[str, Any] = {kind: text}
        return pb.Constraint(**of_kind)

    def duration(self, name: str) -> duration_pb2.Duration | None:
        value, path = self._get(name)
        return None if value is None else duration_of(value, path)


def duration_of(value: float, field: str) -> duration_pb2.Duration:
    """Convert a number of seconds.

    Raises:
        RequestError: Not a positive time of at most a year.
    """
    expected = "a positive number of seconds, at most a year"
    seconds = checks.real(value, field, 1e-9, _YEAR_S, expected)
    duration = duration_pb2.Duration()
    duration.FromNanoseconds(round(seconds * 1e9))
    return duration


def checked_credit(tokens: int) -> int:
    """Check a number of tokens that a request is allowed beyond its credit.

    Raises:
        RequestError: Not a whole number that the message holds.
    """
    return checks.integer(tokens, "credit.tokens", 0, _MAX_UINT32)


def _set_prompt(start: pb.Start, prompt: Prompt) -> None:
    checks.prompt(prompt, "prompt")
    prompt = chats.as_chat(prompt)
    if isinstance(prompt, str):
        checks.utf8_len(prompt, "prompt")
        start.text = prompt
    elif isinstance(prompt, Chat):
        start.chat.CopyFrom(_chat(prompt))
    else:
        start.token_ids.ids.extend(checks.token_ids(prompt, "token_ids", _MAX_UINT32 + 1))
        start.token_ids.SetInParent()


def _chat(chat: Chat) -> pb.Chat:
    chats.chat(chat)
    message = pb.Chat(
        messages=[_chat_message(turn, i) for i, turn in enumerate(chat.messages)],
        tools=[
            pb.Tool(
                name=tool.name,
                description=tool.description,
                parameters_json=_json(tool.parameters, f"chat.tools[{i}].parameters_json"),
                strict=tool.strict,
            )
            for i, tool in enumerate(chat.tools)
        ],
        add_generation_prompt=chat.add_generation_prompt,
    )
    choice = chat.tool_choice
    if choice.name:
        message.tool_choice.name = choice.name
    elif choice.mode is not ToolMode.AUTO:
        message.tool_choice.mode = _TOOL_MODES[choice.mode]
    if not chat.parallel_tool_calls:
        message.parallel_tool_calls = False
    try:
        message.template_arguments.update(dict(chat.template_arguments))
    except (ValueError, TypeError, AttributeError):
        field, expected = "chat.template_arguments", "values that JSON has, under names"
        raise checks.bad(field, expected, chat.template_arguments) from None
    return message


def _chat_message(turn: ChatMessage, number: int) -> pb.ChatMessage:
    path = f"chat.messages[{number}].tool_calls"
    return pb.ChatMessage(
        role=turn.role,
        text=turn.content,
        name=turn.name,
        reasoning=turn.reasoning,
        tool_calls=[
            pb.ToolCall(
                index=i,
                id=call.id,
                name=call.name,
                arguments_json=_json(call.arguments, f"{path}[{i}].arguments_json"),
            )
            for i, call in enumerate(turn.tool_calls)
        ],
        tool_call_id=turn.tool_call_id,
    )


def _json(value: Mapping[str, Any] | str, field: str) -> str:
    """Return the text of an object; a text is one already, and an empty object needs none."""
    if isinstance(value, str):
        return value
    if not value:
        return ""
    try:
        return json.dumps(dict(value), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        raise checks.bad(field, "values that JSON has, under names", value) from None
