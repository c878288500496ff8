"""From a conversation to its prompt, the parser of its answer, and the answer's constraint."""

import secrets
import time
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from chairlift import _core
from chairlift.api import checks, constraints
from chairlift.api.choices import ToolFormat
from chairlift.api.config import EngineConfig
from chairlift.api.constraints import Source
from chairlift.api.errors import Reason, RequestError
from chairlift.api.types import Chat, ToolMode
from chairlift.engine.prepare.grammars import ConstraintPreparer
from chairlift.text.chat.chat_values import reads
from chairlift.text.tools.answer_formats import (
    AnswerFormat,
    chosen_format,
    new_parser,
    starts_in_reasoning,
)
from chairlift.text.tools.tool_grammar import needs_grammar, tool_grammar, tool_schema
from chairlift.text.tools.tool_prompt import has_tool_parts, write_tools

_BESIDE_CALLS = ("json_schema", "json_object", "choices")
"""Kinds of constraints that text may have beside calls."""
_MAX_SEARCH_S = 1.0
"""For the tool whose schema is wrong; beyond it the whole grammar is named."""


class ChatEncoder(Protocol):
    """What preparation needs of a tokenizer."""

    def render_chat(self, chat: Chat, max_bytes: int | None = None) -> str:
        """Return the text of a conversation by the model's template."""

    def chat_template(self, chat: Chat) -> str:
        """Return the template of a conversation."""

    def special_ids(self, texts: Sequence[str]) -> list[int]:
        """Return the ids of those texts that are special tokens."""


class ChatPrompt(NamedTuple):
    """A conversation as a prompt."""

    text: str
    parser: _core.AnswerParser | None
    """Finds the fields of the answer."""
    source: Source | None
    """What the whole answer must be."""


class ChatPreparer:
    """Renders conversations; holds no state that changes."""

    def __init__(
        self, config: EngineConfig, encoder: ChatEncoder, preparer: ConstraintPreparer
    ) -> None:
        """Keep the formats of the settings, the tokenizer, and what compiles grammars."""
        self._config = config
        self._encoder = encoder
        self._constraints = preparer

    def prepare(
        self, chat: Chat, content: Source | None, max_bytes: int, *, wants_text: bool
    ) -> ChatPrompt:
        """Return the prompt of a conversation.

        Args:
            chat: The conversation.
            content: The constraint of the request.
            max_bytes: The most that the prompt may have.
            wants_text: Whether the answer is sent as text.

        Raises:
            RequestError: With the path of the field that is wrong.
        """
        config, encoder = self._config, self._encoder
        template = encoder.chat_template(chat)
        shown = chat
        # A model whose template takes no tools gets them as text, in a form that the settings name.
        is_named = config.tool_format is ToolFormat.HERMES
        if is_named and has_tool_parts(chat) and not reads(template, "tools"):
            shown = write_tools(chat)
        text = encoder.render_chat(shown, max_bytes)
        chosen = chosen_format(template, config.tool_format, config.reasoning_format)
        parser = None
        if wants_text:
            id_key = secrets.randbits(64)
            parser = new_parser(chat, text, chosen, token_ids=encoder.special_ids, id_key=id_key)
        source = self._source(chat, text, template, chosen, content)
        return ChatPrompt(text, parser, source)

    def compile(self, chat: Chat, source: Source, tenant: str) -> _core.Grammar:
        """Return the grammar of an answer; a tool whose schema is wrong is named.

        Raises:
            RequestError: With the path of the field, and what the parser says.
        """
        try:
            return self._constraints.compile(source, tenant)
        except RequestError:
            deadline = time.monotonic() + _MAX_SEARCH_S
            for number in range(len(chat.tools) if source.path else 0):
                if time.monotonic() > deadline:
                    break
                self._constraints.compile(tool_schema(chat, number), tenant)
            raise

    def _source(
        self,
        chat: Chat,
        prompt: str,
        template: str,
        chosen: AnswerFormat,
        content: Source | None,
    ) -> Source | None:
        if not needs_grammar(chat, content):
            return content
        field = _required_by(chat)
        if chosen.tools is None and field:
            message = (
                f"{field}: this model's template tells no form of calls that this server knows;"
                " --tool-format names one"
            )
            raise RequestError(Reason.UNSUPPORTED, message, field=field)
        if content is not None and chat.tool_choice.mode is ToolMode.REQUIRED:
            message = "constraint: expected none where a function must be called"
            raise RequestError(Reason.BAD_PARAMETER, message, field="constraint")
        if content is not None and content.kind not in _BESIDE_CALLS:
            if not field:
                return content
            message = f"{content.field}: expected {', '.join(_BESIDE_CALLS)} beside {field}"
            raise RequestError(Reason.UNSUPPORTED, message, field=content.field)
        if chosen.tools is None:
            return content
        self._constraints.check_support(field or "constraint")
        source = tool_grammar(
            chat,
            template,
            chosen,
            content,
            starts_in_reasoning=starts_in_reasoning(chosen, prompt),
            special_id=lambda text: next(iter(self._encoder.special_ids([text])), None),
        )
        constraints.check_size(checks.utf8_len(source.text, source.field), source.field)
        return source


def _required_by(chat: Chat) -> str:
    """Return the field of a conversation that asks for a grammar; empty if none does."""
    if chat.tool_choice.mode is ToolMode.REQUIRED:
        return "chat.tool_choice"
    for number, tool in enumerate(chat.tools):
        if tool.strict:
            return f"chat.tools[{number}].strict"
    return "" if chat.parallel_tool_calls else "chat.parallel_tool_calls"
