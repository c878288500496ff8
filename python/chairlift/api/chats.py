"""Conversations as clients write them: to one `Chat`, checked by types and sizes.

Messages, tools and the tool choice may be mappings as the OpenAI API has them. The engine and the
clients share this module, so that a conversation means the same with and without a server. The
texts that hold JSON are read later, off the event loop (`text/chat/chat_values.py`).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from chairlift.api import checks
from chairlift.api.checks import bad, check_count, flag, is_list, kind, utf8_len
from chairlift.api.errors import Reason, RequestError, echo
from chairlift.api.types import (
    Chat,
    ChatMessage,
    Prompt,
    Request,
    Tool,
    ToolCall,
    ToolChoice,
    ToolMode,
)

MAX_TOOLS: Final = 128
"""Tools of one conversation."""
MAX_CALLS: Final = 128
"""Calls of one turn."""
MAX_ARGUMENTS: Final = 8192
"""Values of all template arguments, those inside lists and objects included."""

_CHAT: Final = "chat"
_TOOL_NAME: Final = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")
_EXPECTED_NAME: Final = "1 to 128 letters, digits or characters of _.:/-"


def request(value: Request) -> Request:
    """Check the type of each part of a request; return it with its conversation as a `Chat`.

    Raises:
        RequestError: With the path of the first field that is wrong.
    """
    checks.request(value)
    converted = as_chat(value.prompt)
    if isinstance(converted, Chat):
        chat(converted)
    return value if converted is value.prompt else replace(value, prompt=converted)


def as_chat(value: Prompt) -> Prompt:
    """Return the `Chat` of a list of messages as the OpenAI API writes them, or the prompt itself.

    Args:
        value: A prompt; the messages and tools of a conversation may be mappings.

    Raises:
        RequestError: With the path of the first field that is wrong.
    """
    messages: Any = value.messages if isinstance(value, Chat) else value
    if is_list(messages) and isinstance(next(iter(messages), None), Mapping):
        converted = [_message(message, i) for i, message in enumerate(messages)]
        value = replace(value, messages=converted) if isinstance(value, Chat) else Chat(converted)
    if not isinstance(value, Chat):
        return value
    tools: Any = value.tools
    if is_list(tools) and any(isinstance(tool, Mapping) for tool in tools):
        value = replace(value, tools=[_tool(tool, i) for i, tool in enumerate(tools)])
    choice: object = value.tool_choice
    if not isinstance(choice, ToolChoice):
        value = replace(value, tool_choice=_tool_choice(choice))
    return value


def with_tools(
    prompt: Prompt,
    tools: Sequence[Tool | Mapping[str, Any]] | None,
    tool_choice: ToolChoice | Mapping[str, Any] | str | None,
    parallel_tool_calls: bool | None,
) -> Prompt:
    """Return a conversation with its tools; None leaves what it has.

    Args:
        prompt: A conversation, or any prompt where nothing is set.
        tools: In the form of `Chat`, or in that of the OpenAI API.
        tool_choice: The same.
        parallel_tool_calls: Whether an answer may hold more than one call.

    Raises:
        RequestError: `BAD_PARAMETER`: something is set, and the prompt is no conversation.
    """
    given: dict[str, Any] = {
        "tools": tools,
        "tool_choice": tool_choice,
        "parallel_tool_calls": parallel_tool_calls,
    }
    given = {name: value for name, value in given.items() if value is not None}
    if not given:
        return prompt
    conversation = as_chat(prompt)
    if not isinstance(conversation, Chat):
        field = f"chat.{next(iter(given))}"
        message = f"{field}: expected a conversation as the prompt"
        raise RequestError(Reason.BAD_PARAMETER, message, field=field)
    return as_chat(replace(conversation, **given))


def chat(value: Chat) -> None:
    """Check the types in a conversation, and that its parts fit each other.

    Raises:
        RequestError: With the path of the first field that is wrong.
    """
    flag(value.add_generation_prompt, "chat.add_generation_prompt")
    kind(value.template_arguments, Mapping, "chat.template_arguments")
    _check_arguments(value.template_arguments)
    if not is_list(value.messages):
        raise _bad(_CHAT, "messages", "a list of ChatMessage", value.messages)
    for i, message in enumerate(value.messages):
        kind(message, ChatMessage, f"chat.messages[{i}]")
        _check_message(message, f"chat.messages[{i}]")
    _check_tools(value)


def _check_arguments(arguments: Mapping[Any, Any]) -> None:
    """Check the number of values; values that hold themselves end at it, too."""
    num = 0
    left: list[Any] = [arguments]
    while left:
        given = left.pop()
        num += len(given)
        if num > MAX_ARGUMENTS:
            field = "chat.template_arguments"
            message = f"{field}: expected at most {MAX_ARGUMENTS} values, got more"
            raise RequestError(Reason.BAD_PARAMETER, message, field=field)
        items = given.values() if isinstance(given, Mapping) else given
        left += [item for item in items if isinstance(item, Mapping | list | tuple)]


def _bad(path: str, name: str, expected: str, got: object) -> RequestError:
    return bad(f"{path}.{name}", expected, got)


def _check_message(message: ChatMessage, path: str) -> None:
    for name in ("role", "content", "name", "reasoning", "tool_call_id"):
        utf8_len(getattr(message, name), f"{path}.{name}")
    if not is_list(message.tool_calls):
        raise _bad(path, "tool_calls", "a list of ToolCall", message.tool_calls)
    owners = {"reasoning": "assistant", "tool_calls": "assistant", "tool_call_id": "tool"}
    for name, role in owners.items():
        if getattr(message, name) and message.role != role:
            text = f"{path}.{name}: expected in a turn of role {role} alone"
            raise RequestError(Reason.BAD_PARAMETER, text, field=f"{path}.{name}")
    check_count(message.tool_calls, f"{path}.tool_calls", MAX_CALLS)
    for i, call in enumerate(message.tool_calls):
        call_path = f"{path}.tool_calls[{i}]"
        kind(call, ToolCall, call_path)
        utf8_len(call.id, f"{call_path}.id")
        # A model may have called a function that there is not: its name is only text here.
        if utf8_len(call.name, f"{call_path}.name") == 0:
            raise _bad(call_path, "name", "the name of a function", call.name)
        if not isinstance(call.arguments, Mapping):
            utf8_len(call.arguments, f"{call_path}.arguments_json")


def _check_tools(value: Chat) -> None:
    flag(value.parallel_tool_calls, "chat.parallel_tool_calls")
    if not is_list(value.tools):
        raise _bad(_CHAT, "tools", "a list of Tool", value.tools)
    check_count(value.tools, "chat.tools", MAX_TOOLS)
    names = set()
    for i, tool in enumerate(value.tools):
        path = f"chat.tools[{i}]"
        kind(tool, Tool, path)
        if not isinstance(tool.name, str) or not _TOOL_NAME.fullmatch(tool.name):
            raise _bad(path, "name", _EXPECTED_NAME, tool.name)
        if tool.name in names:
            text = f"{path}.name: expected another name than those before"
            raise RequestError(Reason.BAD_PARAMETER, text, field=f"{path}.name")
        names.add(tool.name)
        utf8_len(tool.description, f"{path}.description")
        flag(tool.strict, f"{path}.strict")
        if not isinstance(tool.parameters, Mapping):
            utf8_len(tool.parameters, f"{path}.parameters_json")
    choice = value.tool_choice
    if not isinstance(choice.mode, ToolMode):
        raise _bad(_CHAT, "tool_choice.mode", "auto, none or required", choice.mode)
    if choice.mode is ToolMode.REQUIRED and not names:
        text = "chat.tool_choice: expected tools to choose from, got none"
        raise RequestError(Reason.BAD_PARAMETER, text, field="chat.tool_choice")
    if choice.name and (choice.mode is not ToolMode.REQUIRED or choice.name not in names):
        text = "chat.tool_choice.name: expected the name of one of the tools"
        raise RequestError(Reason.BAD_PARAMETER, text, field="chat.tool_choice.name")


# --- as the OpenAI API writes them ------------------------------------------------------------


_MESSAGE_FIELDS: Final = (
    "role",
    "content",
    "name",
    "reasoning",
    "reasoning_content",
    "tool_calls",
    "tool_call_id",
)


def _message(message: object, number: int) -> ChatMessage:
    path = f"chat.messages[{number}]"
    if isinstance(message, ChatMessage):
        return message
    if not isinstance(message, Mapping):
        raise bad(path, "a ChatMessage or a mapping of role and content", message)
    given = _fields(message, path, *_MESSAGE_FIELDS)
    calls = given.get("tool_calls", ())
    if not is_list(calls):
        raise _bad(path, "tool_calls", "a list of calls", calls)
    for name in ("role", "content"):
        # A turn that only calls functions has no content.
        if name not in given and not (name == "content" and calls):
            text = f"{path}.{name}: expected text, got nothing"
            raise RequestError(Reason.BAD_PARAMETER, text, field=f"{path}.{name}")
    return ChatMessage(
        role=_text(given, "role", path),
        content=_joined_parts(given.get("content", ""), f"{path}.content"),
        name=_text(given, "name", path),
        reasoning=_text(given, "reasoning", path) or _text(given, "reasoning_content", path),
        tool_calls=[_tool_call(call, f"{path}.tool_calls[{i}]") for i, call in enumerate(calls)],
        tool_call_id=_text(given, "tool_call_id", path),
    )


def _tool_call(call: object, path: str) -> ToolCall:
    if isinstance(call, ToolCall):
        return call
    given, function = _function(call, path, "id", "index")
    given_function = _fields(function, f"{path}.function", "name", "arguments")
    arguments = given_function.get("arguments", "")
    if not isinstance(arguments, str | Mapping):
        raise _bad(path, "function.arguments", "text or a mapping", arguments)
    return ToolCall(
        id=_text(given, "id", path),
        name=_text(given_function, "name", f"{path}.function"),
        arguments=arguments,
    )


def _tool(tool: object, number: int) -> Tool:
    path = f"chat.tools[{number}]"
    if isinstance(tool, Tool):
        return tool
    _, function = _function(tool, path)
    given = _fields(function, f"{path}.function", "name", "description", "parameters", "strict")
    parameters = given.get("parameters", {})
    if not isinstance(parameters, str | Mapping):
        raise _bad(path, "function.parameters", "a mapping or JSON text", parameters)
    return Tool(
        name=_text(given, "name", f"{path}.function"),
        description=_text(given, "description", f"{path}.function"),
        parameters=parameters,
        strict=given.get("strict", False),
    )


def _tool_choice(choice: object) -> ToolChoice:
    path = "chat.tool_choice"
    if isinstance(choice, str) and choice in set(ToolMode):
        return ToolChoice(ToolMode(choice))
    if not isinstance(choice, Mapping):
        raise bad(path, "auto, none, required or a function", choice)
    _, function = _function(choice, path)
    name = _text(_fields(function, f"{path}.function", "name"), "name", f"{path}.function")
    if not name:
        raise _bad(path, "function.name", "the name of a function", name)
    return ToolChoice(ToolMode.REQUIRED, name)


def _function(
    value: object, path: str, *others: str
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return a mapping of type function, and what it says of the function."""
    if not isinstance(value, Mapping):
        raise bad(path, "a mapping of type and function", value)
    given = _fields(value, path, "type", "function", *others)
    function = given.get("function")
    if given.get("type", "function") != "function" or not isinstance(function, Mapping):
        raise _bad(path, "function", "a mapping, of type function", function)
    return given, function


def _fields(value: Mapping[Any, Any], path: str, *names: str) -> dict[str, Any]:
    """Return what a mapping sets; None sets nothing, as the clients of the API write it."""
    given = {name: item for name, item in value.items() if item is not None}
    for name in given:
        if name not in names:
            text = f"{path}: expected {', '.join(names)} alone, got {echo(str(name))}"
            raise RequestError(Reason.BAD_PARAMETER, text, field=path)
    return given


def _text(given: Mapping[str, Any], name: str, path: str) -> str:
    text = given.get(name, "")
    utf8_len(text, f"{path}.{name}")
    return str(text)


def _joined_parts(content: object, path: str) -> str:
    """Return the text of a message: a text, or a list of parts of type text."""
    if isinstance(content, str):
        return content
    expected = "text or a list of parts of type text"
    if not is_list(content):
        raise bad(path, expected, content)
    for part in content:
        is_text = isinstance(part, Mapping) and part.get("type") == "text"
        if not is_text or not isinstance(part.get("text"), str):
            raise bad(path, expected, part)
    return "".join(part["text"] for part in content)
