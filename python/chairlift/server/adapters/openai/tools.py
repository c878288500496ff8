"""Tools and function calls: from a body to the engine's, and back to the objects of the API."""

from typing import Any, Final

from chairlift import types
from chairlift.chats import MAX_CALLS, MAX_TOOLS
from chairlift.checks import bad
from chairlift.errors import Reason, RequestError, echo
from chairlift.server.adapters.openai.fields import Fields, unsupported
from chairlift.v1 import generation_pb2 as pb

NAMES: Final = {
    "chat.tools": "tools",
    "chat.tool_choice": "tool_choice",
    "chat.parallel_tool_calls": "parallel_tool_calls",
}
"""Names of the API for paths of the engine."""

_MODES: Final = set(types.ToolMode)


def chat_tools(body: Fields) -> dict[str, Any]:
    """Take the tools of a chat completion, as arguments of `Chat`.

    Raises:
        RequestError: A tool is no function, or malformed.
    """
    tools = []
    for tool in body.objects("tools", MAX_TOOLS):
        if tool.one_of("type", "function") == "function":
            function = tool.part("function")
            if function is None:
                raise bad(tool.path_of("function"), "an object", None)
            tools.append(_tool(function))
        tool.end()
    choice: Any = body.take("tool_choice", "auto")
    if isinstance(choice, dict):
        fields = Fields(choice, "tool_choice")
        if fields.take("type") != "function":
            raise unsupported("tool_choice.type", "only 'function' is supported by this server")
        named = fields.part("function")
        if named is None:
            raise bad("tool_choice.function", "an object", None)
        choice = {"function": {"name": named.text("name")}}
        named.end()
        fields.end()
    return _arguments(body, tools, choice)


def response_tools(body: Fields) -> dict[str, Any]:
    """Take the tools of a response; those of other types are the API's own and skipped."""
    given = body.objects("tools", MAX_TOOLS)
    tools = [_tool(tool) for tool in given if tool.take("type") == "function"]
    choice: Any = body.take("tool_choice", "auto")
    if isinstance(choice, dict):
        fields = Fields(choice, "tool_choice")
        if fields.take("type") != "function":
            raise unsupported("tool_choice.type", "only 'function' is supported by this server")
        choice = {"function": {"name": fields.text("name")}}
        fields.end()
    body.drop("max_tool_calls")
    return _arguments(body, tools, choice)


def shown(body: Fields) -> dict[str, Any]:
    """Return what a response repeats of its request about tools; nothing is taken."""
    return {
        "tools": body.peek("tools", []),
        "tool_choice": body.peek("tool_choice", "auto"),
        "parallel_tool_calls": body.peek("parallel_tool_calls", True),
    }


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
    function.end()
    return types.Tool(name, description, parameters, strict=strict)


def message_calls(message: Fields) -> list[types.ToolCall]:
    """Take the function calls of an earlier turn; their arguments may be anything."""
    calls = []
    for call in message.objects("tool_calls", MAX_CALLS):
        if call.take("type", "function") != "function":
            raise unsupported(call.path_of("type"), "only 'function' is supported by this server")
        call_id = call.text("id")
        call.drop("index")
        function = call.part("function")
        if function is None:
            raise bad(call.path_of("function"), "an object", None)
        calls.append(called(function, call_id))
        function.end()
        call.end()
    return calls


def called(function: Fields, call_id: str) -> types.ToolCall:
    """Take the name and the arguments of a call."""
    name = function.text("name")
    arguments = function.take("arguments", "")
    if not isinstance(arguments, str | dict):
        raise bad(function.path_of("arguments"), "text", arguments)
    return types.ToolCall(call_id, name, arguments)


class Calls:
    """The function calls of an answer as they grow."""

    def __init__(self) -> None:
        """Start without calls."""
        self._heads: list[tuple[str, str]] = []
        self._arguments: list[list[str]] = []

    def __len__(self) -> int:
        return len(self._heads)

    def add(self, part: pb.ToolCall) -> None:
        """Add a part; the first part of a call has its id and name."""
        if part.position >= len(self._heads):
            self._heads.append((part.id, part.name))
            self._arguments.append([])
        self._arguments[part.position].append(part.arguments_json)

    def arguments(self, position: int) -> str:
        """Return the arguments of a call so far."""
        return "".join(self._arguments[position])

    def objects(self) -> list[dict[str, Any]]:
        """Return the calls as a chat completion has them."""
        return [
            {
                "id": call_id,
                "type": "function",
                "function": {"name": name, "arguments": self.arguments(position)},
            }
            for position, (call_id, name) in enumerate(self._heads)
        ]


def call_delta(part: pb.ToolCall) -> dict[str, Any]:
    """Return a part of a call as a chunk has it."""
    delta: dict[str, Any] = {"index": part.position}
    function = {"arguments": part.arguments_json}
    if part.name:
        delta |= {"id": part.id, "type": "function"}
        function = {"name": part.name, **function}
    return {**delta, "function": function}
