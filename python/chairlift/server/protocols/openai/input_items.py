"""The input items of a response; reasoning and function calls form one turn.

Calls of the API's built-in tools, and their results, become turns like those of functions. Items
without content for the model are left out: only the API's own servers can read or execute them.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from chairlift.api import types
from chairlift.api.chats import MAX_CALLS
from chairlift.api.checks import check_count
from chairlift.api.errors import echo
from chairlift.engine.prepare.text_queue import MAX_MESSAGES
from chairlift.server.protocols.openai.fields import Fields, unsupported
from chairlift.server.protocols.openai.messages import role_of, text_of
from chairlift.server.protocols.openai.tools import PathOfTool, called, function_tools

MAX_ITEMS: Final = 2 * MAX_MESSAGES
"""Items of one body: several items may make one turn."""
_LEFT_OUT: Final = (
    *("web_search_call", "image_generation_call", "tool_search_call", "ghost_snapshot"),
    *("mcp_list_tools", "mcp_approval_request", "mcp_approval_response"),
    # Encrypted by another server.
    *("compaction", "compaction_summary"),
)
_WITH_TOOLS: Final = ("additional_tools", "tool_search_output")
_KINDS: Final = (
    "only messages, reasoning, calls with text and their outputs, and additional tools are"
    " supported by this server"
)


@dataclass(slots=True)
class _Turn:
    """A turn as it grows."""

    role: str
    path: str
    """Path of its first item."""
    texts: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[types.ToolCall] = field(default_factory=list)
    call_id: str = ""
    """Id of the call that it answers."""

    def takes(self, other: "_Turn") -> bool:
        """Return whether a turn that follows belongs to this one."""
        if (self.role, other.role) != ("assistant", "assistant"):
            return False
        return bool(other.calls) or not (self.texts or self.calls)

    def add(self, other: "_Turn") -> None:
        """Add what follows."""
        self.texts += other.texts
        self.reasoning += other.reasoning
        self.calls += other.calls

    def message(self) -> types.ChatMessage:
        """Return the turn."""
        return types.ChatMessage(
            self.role,
            "".join(self.texts),
            reasoning="".join(self.reasoning),
            tool_calls=self.calls,
            tool_call_id=self.call_id,
        )


class Input(NamedTuple):
    """What a list of items holds."""

    messages: list[types.ChatMessage]
    paths: list[str]
    """Path of the first item of each message."""
    tools: list[PathOfTool]


def input_messages(items: list[Any]) -> Input:
    """Return the turns of a list of items: what an assistant thought, said and called is one.

    Raises:
        RequestError: With the path of the field that is wrong or not supported.
    """
    check_count(items, "input", MAX_ITEMS)
    turns: list[_Turn] = []
    tools: list[PathOfTool] = []
    for i, value in enumerate(items):
        item = Fields(value, f"input[{i}]")
        kind = item.take("type", "message")
        if kind in _WITH_TOOLS:
            tools += function_tools(item)
            continue
        for turn in _turns(item, kind):
            if turns and turns[-1].takes(turn):
                turns[-1].add(turn)
                check_count(turns[-1].calls, item.path, MAX_CALLS)
            else:
                turns.append(turn)
    # Reasoning that no turn followed holds nothing for the model.
    turns = [turn for turn in turns if turn.texts or turn.calls or not turn.reasoning]
    return Input([turn.message() for turn in turns], [turn.path for turn in turns], tools)


def _turns(item: Fields, kind: object) -> list[_Turn]:
    """Return the turns that an item is a part of."""
    if kind == "message":
        item.drop("id", "status", "phase", "end_turn")
        turn = _Turn(role_of(item), item.path, [text_of(item, "content")])
        item.end()
        return [turn]
    if kind == "reasoning":
        reasoning = _reasoning(item)
        return [_Turn("assistant", item.path, reasoning=[reasoning])] if reasoning else []
    name = kind if isinstance(kind, str) else ""
    if name in _CALLS:
        call = _CALLS[name](item)
        return [_Turn("assistant", item.path, calls=[call])]
    if name in _OUTPUTS:
        # The output of a local shell names its call by the id.
        call_id = item.text("call_id") or item.text("id")
        return [_Turn("tool", item.path, [_OUTPUTS[name](item)], call_id=call_id)]
    if name in _DONE:
        call, output = _DONE[name](item)
        answer = _Turn("tool", item.path, [output], call_id=call.id)
        return [_Turn("assistant", item.path, calls=[call]), answer]
    if name in _LEFT_OUT:
        return []
    shown = echo(kind) if isinstance(kind, str) else "a value of another type"
    raise unsupported(item.path_of("type"), f"{_KINDS}, got {shown}")


def _reasoning(item: Fields) -> str:
    """Return the text of reasoning; what another server keeps to itself is left out."""
    texts = [
        part.text("text")
        for part in item.objects("content", MAX_MESSAGES)
        if part.take("type") == "reasoning_text"
    ]
    return "".join(texts)


# --- calls ------------------------------------------------------------------------------------


def _function_call(item: Fields) -> types.ToolCall:
    return called(item, item.text("call_id"))


def _custom_call(item: Fields) -> types.ToolCall:
    """Return the call of a tool that takes a text."""
    return types.ToolCall(item.text("call_id"), item.text("name"), {"input": item.text("input")})


def _api_call(name: str, member: str) -> Callable[[Fields], types.ToolCall]:
    """Return what makes a call of the API's own tool, whose member has the arguments."""

    def call(item: Fields) -> types.ToolCall:
        path, arguments = item.path_of(member), item.take(member, {})
        call_id = item.text("call_id") or item.text("id")
        return types.ToolCall(call_id, name, _object(arguments, path))

    return call


def _object(value: object, path: str) -> dict[str, Any]:
    """Return an object as it is."""
    Fields(value, path)
    assert isinstance(value, dict), "invariant: no other value has fields"
    return value


_CALLS: Final = {
    "function_call": _function_call,
    "custom_tool_call": _custom_call,
    "local_shell_call": _api_call("local_shell", "action"),
    "shell_call": _api_call("shell", "action"),
    "apply_patch_call": _api_call("apply_patch", "operation"),
}


# --- outputs ----------------------------------------------------------------------------------


def _text_output(item: Fields) -> str:
    return text_of(item, "output")


def _shell_output(item: Fields) -> str:
    """Return what commands wrote, and how they ended."""
    return json.dumps(item.items("output"), ensure_ascii=False)


_OUTPUTS: Final = {
    "function_call_output": _text_output,
    "custom_tool_call_output": _text_output,
    "local_shell_call_output": _text_output,
    "apply_patch_call_output": _text_output,
    "shell_call_output": _shell_output,
}


# --- calls with their output ------------------------------------------------------------------


def _mcp_call(item: Fields) -> tuple[types.ToolCall, str]:
    call = called(item, item.text("id"))
    return call, item.text("output") or str(item.take("error", ""))


def _interpreter_call(item: Fields) -> tuple[types.ToolCall, str]:
    call = types.ToolCall(item.text("id"), "code_interpreter", {"code": item.text("code")})
    return call, "".join(output.text("logs") for output in item.objects("outputs", MAX_MESSAGES))


def _search_call(item: Fields) -> tuple[types.ToolCall, str]:
    call = types.ToolCall(item.text("id"), "file_search", {"queries": item.items("queries")})
    return call, "\n".join(result.text("text") for result in item.objects("results", MAX_MESSAGES))


_DONE: Final = {
    "mcp_call": _mcp_call,
    "code_interpreter_call": _interpreter_call,
    "file_search_call": _search_call,
}
