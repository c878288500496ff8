"""Tools as text of a conversation, for models whose chat template takes none.

Used only where the settings name the format of calls: the model has not learned it, so that calls
should be constrained. The form is that of Hermes.
"""

import json
from dataclasses import replace
from typing import Any

from chairlift.api.types import Chat, ChatMessage
from chairlift.text.chat.chat_values import template_has_tools, template_messages, template_tools

_BEFORE = """\
You may call functions to answer. Their signatures are within <tools></tools>:
<tools>
"""
_AFTER = """\

</tools>
For a call write its name and arguments as a JSON object within <tool_call></tool_call>:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call>"""


def write_tools(chat: Chat) -> Chat:
    """Return the conversation with its tools, calls and their results as text.

    Raises:
        RequestError: The parameters of a tool are no JSON object.
    """
    tools = template_tools(chat)
    messages = [_written(message, values) for message, values in _with_values(chat)]
    if tools is not None:
        lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
        text = f"{_BEFORE}{lines}{_AFTER}"
        if messages and messages[0].role == "system":
            first = messages.pop(0)
            text = f"{first.content}\n\n{text}"
        messages.insert(0, ChatMessage("system", text))
    return replace(chat, messages=messages, tools=())


def has_tool_parts(chat: Chat) -> bool:
    """Return whether a conversation has what a template without tools cannot show."""
    parts = (turn.tool_calls or turn.role == "tool" for turn in chat.messages)
    return template_has_tools(chat) or any(parts)


def _with_values(chat: Chat) -> list[tuple[ChatMessage, dict[str, Any]]]:
    return list(zip(chat.messages, template_messages(chat, ""), strict=True))


def _written(message: ChatMessage, values: dict[str, Any]) -> ChatMessage:
    if message.role == "tool":
        text = f"<tool_response>\n{message.content}\n</tool_response>"
        return ChatMessage("user", text)
    if not message.tool_calls:
        return message
    calls = [_call(call["function"]) for call in values["tool_calls"]]
    text = "\n".join([message.content, *calls] if message.content else calls)
    return replace(message, content=text, tool_calls=())


def _call(function: dict[str, Any]) -> str:
    arguments = function["arguments"]
    shown = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    name = json.dumps(function["name"], ensure_ascii=False)
    return f'<tool_call>\n{{"name": {name}, "arguments": {shown}}}\n</tool_call>'
