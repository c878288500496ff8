"""Tools and function calls: from a body to the engine's, and back to the objects of the API."""

import json
import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from chairlift.api import types
from chairlift.api.answer_collector import AnswerCollector
from chairlift.api.chats import MAX_CALLS, MAX_TOOLS
from chairlift.api.checks import bad
from chairlift.api.errors import Reason, RequestError, echo
from chairlift.server.protocols.openai.fields import Fields, unsupported
from chairlift.v1 import generation_pb2 as pb

NAMES: Final = {
    "chat.tools": "tools",
    "chat.tool_choice": "tool_choice",
    "chat.parallel_tool_calls": "parallel_tool_calls",
}
"""Names of the API for paths of the engine."""

_INDEXED: Final = re.compile(r"chat\.(tools|messages)\[([0-9]{1,9})\]")
_OF_CALL: Final = re.compile(r"(tool_calls\[[0-9]+\])\.(name|arguments)")
_MODES: Final = set(types.ToolMode)
_WITHOUT_EFFECT: Final = (
    # When the API's own servers show a tool to the model, and which of its tools may call it.
    *("cache_control", "defer_loading", "allowed_callers"),
    # What a function returns, which the model is not told.
    "output_schema",
)
"""Fields of a tool."""


PathOfTool = tuple[str, types.Tool]


class Taken(NamedTuple):
    """The tools of a request."""

    arguments: dict[str, Any]
    """Keyword arguments of `Chat`."""
    paths: list[str]
    """Path of each tool, where its name is."""


def chat_tools(body: Fields) -> Taken:
    """Take the tools of a chat completion.

    Raises:
        RequestError: A tool is no function, or malformed.
    """
    tools = []
    for tool in body.objects("tools", MAX_TOOLS):
        if tool.one_of("type", "function") == "function":
            function = _function(tool)
            tools.append((function.path, _tool(function)))
        tool.drop("cache_control")
        tool.end()
    return _taken(body, tools, is_flat=False)


def response_tools(body: Fields, more: list[PathOfTool]) -> Taken:
    """Take the tools of a response; those of other types are the API's own and skipped.

    Args:
        body: The request's body.
        more: Tools that its input has.
    """
    return _taken(body, [*function_tools(body), *more], is_flat=True)


def function_tools(body: Fields) -> list[PathOfTool]:
    """Take the functions among the tools of a response, or of an item of its input."""
    tools = []
    for tool in body.objects("tools", MAX_TOOLS):
        kind = tool.take("type")
        if kind == "function":
            tools.append((tool.path, _tool(tool)))
        elif kind == "namespace":
            tools += function_tools(tool)
    return tools


def is_forced(choice: object) -> bool:
    """Return whether a choice of `chat_tools` or `response_tools` is a call, whatever else."""
    return isinstance(choice, dict) or choice == types.ToolMode.REQUIRED


def _taken(body: Fields, tools: list[PathOfTool], *, is_flat: bool) -> Taken:
    choice = _choice(body, tools, is_flat=is_flat)
    arguments = _arguments(body, [tool for _, tool in tools], choice)
    return Taken(arguments, [path for path, _ in tools])


def _choice(body: Fields, tools: list[PathOfTool], *, is_flat: bool) -> object:
    """Take which tool is called; of `tools` those are left that may be."""
    choice: object = body.take("tool_choice", "auto")
    if not isinstance(choice, dict):
        return choice
    fields = Fields(choice, "tool_choice")
    kind = fields.one_of("type", "function", "allowed_tools")
    if kind == "function":
        named: object = _named(fields, is_flat=is_flat)
    else:
        named = _allowed(fields, tools, is_flat=is_flat)
    fields.end()
    return named


def _allowed(fields: Fields, tools: list[PathOfTool], *, is_flat: bool) -> str:
    """Leave the tools that may be called; return whether one must be."""
    allowed = fields if is_flat else fields.part("allowed_tools")
    if allowed is None:
        raise bad(fields.path_of("allowed_tools"), "an object", None)
    mode = allowed.one_of("mode", "auto", "required")
    names = {tool.name for _, tool in tools}
    kept = set()
    for tool in allowed.objects("tools", MAX_TOOLS):
        # Those of other types are the API's own, as in `tools`.
        if tool.take("type", "function") == "function":
            path = tool.path if is_flat else tool.path_of("function")
            name = _named(tool, is_flat=is_flat)["function"]["name"]
            if name not in names:
                raise bad(f"{path}.name", "the name of one of the tools", name)
            kept.add(name)
    tools[:] = [(path, tool) for path, tool in tools if tool.name in kept]
    allowed.end()
    return mode


def _named(fields: Fields, *, is_flat: bool) -> dict[str, Any]:
    """Take the name of a function, as the choice of it."""
    function = fields if is_flat else _function(fields)
    named = {"function": {"name": function.text("name")}}
    function.end()
    return named


def _function(fields: Fields) -> Fields:
    function = fields.part("function")
    if function is None:
        raise bad(fields.path_of("function"), "an object", None)
    return function


def _arguments(body: Fields, tools: list[types.Tool], choice: object) -> dict[str, Any]:
    if not isinstance(choice, dict) and choice not in _MODES:
        got = echo(choice) if isinstance(choice, str) else f"a {type(choice).__name__}"
        message = f"tool_choice: expected auto, none, required or a function, got {got}"
        raise RequestError(Reason.BAD_PARAMETER, message, field="tool_choice")
    return {
        "tools": tools,
        "tool_choice": choice,
        "parallel_tool_calls": body.flag("parallel_tool_calls", default=True),
    }


def _tool(function: Fields) -> types.Tool:
    name, description = function.text("name"), function.text("description")
    parameters = function.take("parameters", {})
    strict = function.flag("strict")
    if not isinstance(parameters, dict):
        raise bad(function.path_of("parameters"), "an object", parameters)
    function.drop(*_WITHOUT_EFFECT)
    function.end()
    return types.Tool(name, description, parameters, strict=strict)


def renaming(tools: list[str], messages: list[str] | None = None) -> Callable[[str], str | None]:
    """Return what finds the client's path for one of the engine.

    Args:
        tools: Path of each tool.
        messages: Path of each message; None where they are numbered as the engine's.
    """

    def rename(path: str) -> str | None:
        found = _INDEXED.match(path)
        if found is None:
            return None
        rest = path[found.end() :].replace("_json", "")
        number = int(found[2])
        if found[1] == "tools":
            return tools[number] + rest if number < len(tools) else None
        if messages is None:
            return f"messages[{number}]" + _OF_CALL.sub(r"\1.function.\2", rest)
        # A turn has the parts of several items: its first is named.
        rest = rest if rest == ".content" else ""
        return messages[number] + rest if number < len(messages) else None

    return rename


def message_calls(message: Fields) -> list[types.ToolCall]:
    """Take the function calls of an earlier turn; their arguments may be anything.

    Raises:
        RequestError: A call is malformed, or not one of a function.
    """
    calls = []
    for call in message.objects("tool_calls", MAX_CALLS):
        if call.take("type", "function") != "function":
            raise unsupported(call.path_of("type"), "only 'function' is supported by this server")
        call_id = call.text("id")
        call.drop("index", "cache_control", "provider_specific_fields", "extra_content")
        function = call.part("function")
        if function is None:
            raise bad(call.path_of("function"), "an object", None)
        calls.append(called(function, call_id))
        # What clients add when they write an answer back.
        function.drop("parsed_arguments", "provider_specific_fields")
        function.end()
        call.end()
    return calls


def called(function: Fields, call_id: str) -> types.ToolCall:
    """Take the name and the arguments of a call.

    Raises:
        RequestError: The name is no text, or the arguments are neither text nor an object.
    """
    name = function.text("name")
    arguments = function.take("arguments", "")
    if not isinstance(arguments, str | dict):
        raise bad(function.path_of("arguments"), "text", arguments)
    return types.ToolCall(call_id, name, arguments)


def is_json(text: str) -> bool:
    """Return whether a text is JSON."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def add_calls(answer: AnswerCollector, tokens: pb.Tokens) -> None:
    """Add the parts of function calls that come with tokens."""
    for part in tokens.tool_calls:
        answer.add_call(part.index, part.id, part.name, part.arguments_json)


def call_objects(answer: AnswerCollector) -> list[dict[str, Any]]:
    """Return the function calls of an answer as a chat completion has them."""
    return [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for call in answer.tool_calls
    ]


def call_delta(part: pb.ToolCall) -> dict[str, Any]:
    """Return a part of a call as a chunk has it."""
    delta: dict[str, Any] = {"index": part.index}
    function = {"arguments": part.arguments_json}
    if part.name:
        delta |= {"id": part.id, "type": "function"}
        function = {"name": part.name, **function}
    return {**delta, "function": function}
