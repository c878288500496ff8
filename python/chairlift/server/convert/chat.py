"""Conversations of the proto to `types.Chat`."""

from typing import Final

from chairlift.api import types
from chairlift.api.chats import MAX_CALLS, MAX_TOOLS
from chairlift.api.checks import check_count
from chairlift.engine.prepare.text_queue import MAX_MESSAGES
from chairlift.server.convert.fields import bad, optional
from chairlift.server.convert.template_arguments import template_arguments
from chairlift.v1 import generation_pb2 as pb

_TOOL_MODES: Final = {
    pb.TOOL_MODE_UNSPECIFIED: types.ToolMode.AUTO,
    pb.TOOL_MODE_AUTO: types.ToolMode.AUTO,
    pb.TOOL_MODE_NONE: types.ToolMode.NONE,
    pb.TOOL_MODE_REQUIRED: types.ToolMode.REQUIRED,
}


def to_chat(chat: pb.Chat) -> types.Chat:
    """Convert a conversation.

    Raises:
        RequestError: With the path of the field that is wrong or not supported.
    """
    if not chat.messages:
        raise bad("chat.messages", "expected at least one message, got none")
    check_count(chat.messages, "chat.messages", MAX_MESSAGES)
    check_count(chat.tools, "chat.tools", MAX_TOOLS)
    if sum(len(message.parts.parts) for message in chat.messages) > MAX_MESSAGES:
        raise bad("chat.messages", f"expected at most {MAX_MESSAGES} parts, got more")
    if sum(len(message.tool_calls) for message in chat.messages) > MAX_MESSAGES:
        raise bad("chat.messages", f"expected at most {MAX_MESSAGES} function calls, got more")
    arguments = template_arguments(chat.template_arguments)
    return types.Chat(
        messages=[_chat_message(message, i) for i, message in enumerate(chat.messages)],
        add_generation_prompt=optional(chat, "add_generation_prompt", True),
        template_arguments=arguments,
        tools=[
            types.Tool(tool.name, tool.description, tool.parameters_json, strict=tool.strict)
            for tool in chat.tools
        ],
        tool_choice=_tool_choice(chat),
        parallel_tool_calls=optional(chat, "parallel_tool_calls", True),
    )


def _tool_choice(chat: pb.Chat) -> types.ToolChoice:
    if not chat.HasField("tool_choice"):
        return types.ToolChoice()
    if chat.tool_choice.WhichOneof("choice") == "name":
        return types.ToolChoice(types.ToolMode.REQUIRED, chat.tool_choice.name)
    mode = _TOOL_MODES.get(chat.tool_choice.mode)
    if mode is None:
        raise bad("chat.tool_choice.mode", f"expected a ToolMode, got {chat.tool_choice.mode}")
    return types.ToolChoice(mode)


def _chat_message(message: pb.ChatMessage, position: int) -> types.ChatMessage:
    path = f"chat.messages[{position}]"
    if not message.role:
        raise bad(f"{path}.role", "expected a role such as user, got none")
    check_count(message.tool_calls, f"{path}.tool_calls", MAX_CALLS)
    return types.ChatMessage(
        role=message.role,
        content=_content(message, path),
        name=message.name,
        reasoning=message.reasoning,
        tool_calls=[
            types.ToolCall(call.id, call.name, call.arguments_json) for call in message.tool_calls
        ],
        tool_call_id=message.tool_call_id,
    )


def _content(message: pb.ChatMessage, path: str) -> str:
    kind = message.WhichOneof("content")
    if kind == "text":
        return message.text
    if kind is None:
        if message.tool_calls:
            return ""
        raise bad(f"{path}.content", "expected text or parts, got none of them")
    for i, part in enumerate(message.parts.parts):
        if part.WhichOneof("part") is None:
            raise bad(f"{path}.parts[{i}]", "expected text, got nothing")
    return "".join(part.text for part in message.parts.parts)
