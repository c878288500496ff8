"""A `Chat` as the values that chat templates read, in the form of `transformers` and OpenAI.

Templates differ in the names by which they read reasoning, and in what they make of a call whose
arguments are no JSON object. They are read for the names; such arguments are passed as a text.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Final, NoReturn

from chairlift.api.errors import Reason, RequestError
from chairlift.api.types import Chat, ChatMessage, ToolCall, ToolMode

_REASONING_NAMES: Final = ("reasoning_content", "reasoning", "thinking")
"""What templates call the reasoning of a turn: of Qwen and DeepSeek, of others, of gpt-oss."""


def template_tools(chat: Chat) -> list[dict[str, Any]] | None:
    """Return the tools that the model sees; None where it sees none.

    Raises:
        RequestError: `BAD_PARAMETER`: the parameters of a tool are no JSON object.
    """
    if chat.tool_choice.mode is ToolMode.NONE or not chat.tools:
        return None
    tools = []
    for i, tool in enumerate(chat.tools):
        function: dict[str, Any] = {"name": tool.name}
        if tool.description:
            function["description"] = tool.description
        function["parameters"] = tool_parameters(tool.parameters, f"chat.tools[{i}]")
        tools.append({"type": "function", "function": function})
    return tools


def tool_parameters(parameters: Mapping[str, Any] | str, path: str) -> dict[str, Any]:
    """Return the JSON schema of a tool's arguments, which is an object.

    Args:
        parameters: The schema, or its text; empty is an object without properties.
        path: Path of the tool, for messages.

    Raises:
        RequestError: `BAD_PARAMETER`: it is no JSON object.
    """
    if not parameters:
        return {"type": "object", "properties": {}}
    if isinstance(parameters, Mapping):
        return dict(parameters)
    field = f"{path}.parameters_json"
    value = _parsed(parameters)
    if not isinstance(value, dict):
        message = f"{field}: expected a JSON schema that is an object"
        raise RequestError(Reason.BAD_PARAMETER, message, field=field)
    return value


def template_messages(chat: Chat, template: str) -> list[dict[str, Any]]:
    """Return the turns, with what a turn does not have left out."""
    reasoning_names = [name for name in _REASONING_NAMES if re.search(rf"\b{name}\b", template)]
    return [_message(message, reasoning_names) for message in chat.messages]


def has_malformed_calls(chat: Chat) -> bool:
    """Return whether the arguments of an earlier call are no JSON object."""
    calls = (call for message in chat.messages for call in message.tool_calls)
    return any(isinstance(_arguments(call), str) for call in calls)


def wrap_malformed_calls(messages: list[dict[str, Any]]) -> None:
    """Put arguments that are no object into one, for templates that read their members."""
    for message in messages:
        for call in message.get("tool_calls", ()):
            if isinstance(call["function"]["arguments"], str):
                call["function"]["arguments"] = {"arguments": call["function"]["arguments"]}


def _message(message: ChatMessage, reasoning_names: list[str]) -> dict[str, Any]:
    values: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.name:
        values["name"] = message.name
    if message.reasoning:
        values |= dict.fromkeys(reasoning_names, message.reasoning)
    if message.tool_calls:
        values["tool_calls"] = [_call(call) for call in message.tool_calls]
    if message.tool_call_id:
        values["tool_call_id"] = message.tool_call_id
    return values


def _call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": _arguments(call)}
    return {"type": "function", **({"id": call.id} if call.id else {}), "function": function}


def _arguments(call: ToolCall) -> dict[str, Any] | str:
    """Return the arguments as an object, or as the text that they are."""
    if isinstance(call.arguments, Mapping):
        return dict(call.arguments)
    if not call.arguments:
        return {}
    value = _parsed(call.arguments)
    return value if isinstance(value, dict) else call.arguments


def _parsed(text: str) -> object:
    """Return the value of a JSON text; None where it is none."""
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return None


def _refuse_constant(name: str) -> NoReturn:
    """Refuse NaN and the infinities, which JSON does not have."""
    raise ValueError(name)


def check_template(chat: Chat, template: str, *, takes_reasoning: bool) -> None:
    """Check that a template reads what the conversation has beyond texts.

    Args:
        chat: The conversation.
        template: Jinja source.
        takes_reasoning: The answers of the model have reasoning, which templates may leave out.

    Raises:
        RequestError: `BAD_PARAMETER`: the template would leave out tools, calls or reasoning.
    """
    if template_has_tools(chat) and not reads(template, "tools"):
        _refuse("chat.tools", "takes no tools: the setting tool_format writes them as text")
    reads_reasoning = takes_reasoning or any(reads(template, name) for name in _REASONING_NAMES)
    for i, message in enumerate(chat.messages):
        if message.tool_calls and not reads(template, "tool_calls"):
            _refuse(f"chat.messages[{i}].tool_calls", "takes no function calls")
        if message.reasoning and not reads_reasoning:
            _refuse(f"chat.messages[{i}].reasoning", "takes no reasoning")


def template_has_tools(chat: Chat) -> bool:
    """Return whether the model sees tools."""
    return bool(chat.tools) and chat.tool_choice.mode is not ToolMode.NONE


def reads(template: str, name: str) -> bool:
    """Return whether a template has a variable or member of this name."""
    return re.search(rf"\b{name}\b", template) is not None


def _refuse(field: str, what: str) -> NoReturn:
    message = f"{field}: the model's chat template {what}"
    raise RequestError(Reason.BAD_PARAMETER, message, field=field)
