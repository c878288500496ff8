"""Conversations: messages of chat completions, and input items of responses."""

from typing import Any, Final

from chairlift.api import types
from chairlift.api.checks import bad, check_count
from chairlift.api.errors import Reason, RequestError
from chairlift.engine.prepare.text_queue import MAX_MESSAGES
from chairlift.server.protocols.openai.fields import Fields, unsupported
from chairlift.server.protocols.openai.tools import message_calls

_ROLES: Final = ("system", "developer", "user", "assistant", "tool")
_TEXT_PARTS: Final = ("text", "input_text", "output_text", "refusal")
"""Types of parts; each has its text under its own name or under `text`."""
_WITHOUT_EFFECT: Final = ("annotations", "cache_control", "provider_specific_fields", "parsed")
"""Fields of a turn: marks of caches, and what clients add when they write an answer back."""
_WITHOUT_EFFECT_OF_PART: Final = (
    *("annotations", "logprobs", "cache_control", "prompt_cache_breakpoint"),
    *("id", "parsed"),
)


def chat_messages(body: Fields) -> list[types.ChatMessage]:
    """Take the messages of a chat completion.

    Raises:
        RequestError: A message is malformed, or there are none, or too many function calls.
    """
    messages: list[types.ChatMessage] = []
    num_calls = 0
    for fields in body.objects("messages", MAX_MESSAGES):
        message = _message(fields)
        num_calls += len(message.tool_calls)
        if num_calls > MAX_MESSAGES:
            text = f"messages: expected at most {MAX_MESSAGES} function calls, got more"
            raise RequestError(Reason.BAD_PARAMETER, text, field="messages")
        messages.append(message)
    if not messages:
        text = "messages: expected at least one message, got none"
        raise RequestError(Reason.BAD_PARAMETER, text, field="messages")
    return messages


def _message(fields: Fields) -> types.ChatMessage:
    role = role_of(fields)
    fields.refuse("function_call", "audio", "images")
    fields.refuse_unless("prefix", False)
    content = text_of(fields, "content")
    refusal = fields.text("refusal")
    name = fields.text("name")
    reasoning = fields.text("reasoning_content") or fields.text("reasoning")
    reasoning = reasoning or _detailed(fields)
    fields.drop("reasoning", "reasoning_details", *_WITHOUT_EFFECT)
    calls = message_calls(fields)
    call_id = fields.text("tool_call_id")
    fields.end()
    return types.ChatMessage(
        role=role,
        content=content or refusal,
        name=name,
        reasoning=reasoning,
        tool_calls=calls,
        tool_call_id=call_id,
    )


def _detailed(fields: Fields) -> str:
    """Take the texts of reasoning that is written in parts; what is encrypted is left out."""
    details = fields.objects("reasoning_details", MAX_MESSAGES)
    return "".join(detail.text("text") or detail.text("summary") for detail in details)


def role_of(fields: Fields) -> str:
    """Take a role; templates know a developer's messages as the system's.

    Raises:
        RequestError: The role is unknown.
    """
    path = fields.path_of("role")
    role = fields.take("role")
    if role not in _ROLES:
        message = f"{path}: expected {', '.join(_ROLES[:-1])} or {_ROLES[-1]}"
        raise RequestError(Reason.BAD_PARAMETER, message, field=path)
    return "system" if role == "developer" else str(role)


def text_of(fields: Fields, name: str) -> str:
    """Take a text, or a list of parts of text.

    Raises:
        RequestError: The value is neither text nor a list of its parts, or the list is too long.
    """
    value: Any = fields.take(name, "")
    if isinstance(value, str):
        return value
    path = fields.path_of(name)
    if not isinstance(value, list):
        raise bad(path, "text or a list of parts", value)
    check_count(value, path, MAX_MESSAGES)
    return "".join(_part(part, f"{path}[{i}]") for i, part in enumerate(value))


def _part(value: object, path: str) -> str:
    part = Fields(value, path)
    kind = part.take("type")
    if kind not in _TEXT_PARTS:
        raise unsupported(f"{path}.type", "only text is supported by this server")
    text = part.text("refusal" if kind == "refusal" else "text")
    part.drop(*_WITHOUT_EFFECT_OF_PART)
    part.end()
    return text
