"""The input of a response: items, of which reasoning and function calls belong to one turn."""

from dataclasses import replace
from typing import Any, Final

from chairlift import types
from chairlift.chats import MAX_CALLS
from chairlift.checks import at_most
from chairlift.engine.prepare.text_queue import MAX_MESSAGES
from chairlift.errors import echo
from chairlift.server.adapters.openai.fields import Fields, unsupported
from chairlift.server.adapters.openai.messages import role_of, text_of
from chairlift.server.adapters.openai.tools import called

MAX_ITEMS: Final = 2 * MAX_MESSAGES
"""Of one body: several items may make one turn."""

_KINDS: Final = "only messages, reasoning, function calls and their outputs are supported"


def input_messages(items: list[Any]) -> list[types.ChatMessage]:
    """Return the turns of a list of items: what an assistant thought, said and called is one.

    Raises:
        RequestError: With the path of the field that is wrong or not supported.
    """
    at_most(items, "input", MAX_ITEMS)
    messages: list[types.ChatMessage] = []
    for i, value in enumerate(items):
        item = Fields(value, f"input[{i}]")
        message = _message(item)
        last = messages[-1] if messages else None
        if message is None:
            continue
        if last is not None and _continues(last, message):
            # Before it is joined: a turn that grew without end would be copied for each item.
            at_most([*last.tool_calls, *message.tool_calls], item.path, MAX_CALLS)
            messages[-1] = _joined(last, message)
        else:
            messages.append(message)
    # Reasoning that no turn followed holds nothing for the model.
    return [turn for turn in messages if turn.content or turn.tool_calls or not turn.reasoning]


def _message(item: Fields) -> types.ChatMessage | None:
    """Return the turn that an item is a part of; None for one without text."""
    kind = item.take("type", "message")
    if kind == "reasoning":
        reasoning = _reasoning(item)
        return types.ChatMessage("assistant", "", reasoning=reasoning) if reasoning else None
    if kind == "function_call":
        call = called(item, item.text("call_id"))
        item.drop("id", "status", "namespace")
        item.end()
        return types.ChatMessage("assistant", "", tool_calls=[call])
    if kind == "function_call_output":
        message = types.ChatMessage(
            "tool", text_of(item, "output"), tool_call_id=item.text("call_id")
        )
        item.drop("id", "status")
        item.end()
        return message
    if kind != "message":
        shown = echo(kind) if isinstance(kind, str) else "a value of another type"
        raise unsupported(item.path_of("type"), f"{_KINDS}, got {shown}")
    item.drop("id", "status", "phase")
    message = types.ChatMessage(role_of(item), text_of(item, "content"))
    item.end()
    return message


def _reasoning(item: Fields) -> str:
    """Return the text of reasoning; what another server keeps to itself is left out."""
    texts = [
        part.text("text")
        for part in item.objects("content", MAX_MESSAGES)
        if part.take("type") == "reasoning_text"
    ]
    return "".join(texts)


def _continues(last: types.ChatMessage, message: types.ChatMessage) -> bool:
    """Return whether an item belongs to the turn before it."""
    if (last.role, message.role) != ("assistant", "assistant"):
        return False
    is_call, is_text = bool(message.tool_calls), bool(message.content)
    only_reasoning = not last.content and not last.tool_calls
    return is_call or (is_text and only_reasoning)


def _joined(last: types.ChatMessage, more: types.ChatMessage) -> types.ChatMessage:
    calls = [*last.tool_calls, *more.tool_calls]
    return replace(last, content=last.content + more.content, tool_calls=calls)
