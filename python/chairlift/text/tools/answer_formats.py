"""How the answers of a model mark reasoning and function calls: read from its chat template.

The template writes earlier turns in the form in which the model writes its own, so that its marks
tell the format; a setting goes before it.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from chairlift import _core
from chairlift.api.choices import ReasoningFormat, ToolFormat
from chairlift.api.types import Chat, Tool
from chairlift.text.chat.chat_values import template_has_tools, tool_parameters

_F = TypeVar("_F", ToolFormat, ReasoningFormat)

OPENING_MARKS: Final[dict[ReasoningFormat, str]] = {
    ReasoningFormat.THINK: "<think>",
    ReasoningFormat.MISTRAL: "[THINK]",
    ReasoningFormat.SEED: "<seed:think>",
}
"""Marks that begin reasoning at the start of an answer; a template may end the prompt with one."""

_REASONING_MARKS: Final = {
    ReasoningFormat.HARMONY: ("<|channel|>", "analysis"),
    ReasoningFormat.THINK: ("</think>",),
    ReasoningFormat.MISTRAL: ("[/THINK]",),
    ReasoningFormat.SEED: ("</seed:think>",),
}
_TOOL_MARKS: Final = {
    ToolFormat.HARMONY: ("<|channel|>", "functions."),
    ToolFormat.MISTRAL: ("[TOOL_CALLS]",),
    ToolFormat.QWEN3_CODER: ("<tool_call>", "<function="),
    ToolFormat.HERMES: ("<tool_call>", "arguments"),
    ToolFormat.LLAMA3_JSON: ("<|start_header_id|>", '"parameters"'),
}
"""Texts of a template, all of which a format has; the first format whose texts are there counts."""

_FOREIGN_MARKS: Final = ("<arg_key>", "<longcat_tool_call>")
"""Marks of unknown formats that share another mark with a known one."""

_KINDS: Final = {"null", "boolean", "integer", "number", "array", "object", "string"}
_TEXT: Final = frozenset({"string"})

_SPECIAL_TEXTS: Final[dict[ToolFormat | ReasoningFormat, tuple[str, ...]]] = {
    ToolFormat.HARMONY: (
        *("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>"),
        *("<|return|>", "<|call|>"),
    ),
    ToolFormat.MISTRAL: ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
    ToolFormat.QWEN3_CODER: ("<tool_call>", "</tool_call>"),
    ToolFormat.HERMES: ("<tool_call>", "</tool_call>"),
    ToolFormat.LLAMA3_JSON: ("<|python_tag|>",),
    ReasoningFormat.THINK: ("<think>", "</think>"),
    ReasoningFormat.MISTRAL: ("[THINK]", "[/THINK]"),
    ReasoningFormat.SEED: ("<seed:think>", "</seed:think>"),
}
"""Marks that may be special tokens: an answer has them as text all the same."""


class AnswerFormat(NamedTuple):
    """The formats of a model's answers; None where there is none."""

    tools: ToolFormat | None
    reasoning: ReasoningFormat | None


@functools.lru_cache(maxsize=16)
def detect(template: str) -> AnswerFormat:
    """Return the formats that a chat template writes earlier turns in."""
    is_foreign = any(mark in template for mark in _FOREIGN_MARKS)
    tools = None if is_foreign else _first(_TOOL_MARKS, template)
    return AnswerFormat(tools, _first(_REASONING_MARKS, template))


def chosen_format(template: str, tools: ToolFormat, reasoning: ReasoningFormat) -> AnswerFormat:
    """Return the formats by the settings, where these are `AUTO` by the template."""
    found = detect(template)
    by_setting = (
        None if tools is ToolFormat.NONE else tools,
        None if reasoning is ReasoningFormat.NONE else reasoning,
    )
    return AnswerFormat(
        found.tools if tools is ToolFormat.AUTO else by_setting[0],
        found.reasoning if reasoning is ReasoningFormat.AUTO else by_setting[1],
    )


def new_parser(
    chat: Chat,
    prompt: str,
    chosen: AnswerFormat,
    *,
    token_ids: Callable[[Sequence[str]], list[int]],
    id_key: int,
) -> _core.AnswerParser | None:
    """Return what finds the fields of the answer to a conversation; None where it has only text.

    Args:
        chat: The conversation.
        prompt: Its text, as the template wrote it.
        chosen: The formats.
        token_ids: Returns the ids of those texts that are special tokens.
        id_key: 64 random bits, which make the ids of calls.
    """
    tools = chosen.tools if template_has_tools(chat) else None
    reasoning = chosen.reasoning
    if tools is None and reasoning is None:
        return None
    texts = [text for part in (tools, reasoning) for text in _special_texts(part)]
    return _core.AnswerParser(
        calls=None if tools is None else tools.value,
        reasoning=None if reasoning is None else reasoning.value,
        starts_in_reasoning=starts_in_reasoning(chosen, prompt),
        functions=[
            (tool.name, _typed_parameters(tool, f"chat.tools[{i}]"))
            for i, tool in enumerate(chat.tools)
        ],
        id_key=id_key,
        kept_tokens=token_ids(texts),
    )


def starts_in_reasoning(chosen: AnswerFormat, prompt: str) -> bool:
    """Return whether a prompt ends with the mark that begins reasoning."""
    opening = None if chosen.reasoning is None else OPENING_MARKS.get(chosen.reasoning)
    return opening is not None and prompt.rstrip().endswith(opening)


def _special_texts(part: ToolFormat | ReasoningFormat | None) -> tuple[str, ...]:
    if part is ReasoningFormat.HARMONY:
        part = ToolFormat.HARMONY
    return () if part is None else _SPECIAL_TEXTS[part]


def _typed_parameters(tool: Tool, path: str) -> list[tuple[str, list[str]]]:
    """Return the parameters that are not texts alone, for formats that write all types alike."""
    root = tool_parameters(tool.parameters, path)
    properties = root.get("properties")
    if not isinstance(properties, Mapping):
        return []
    found = ((str(name), kinds_of(schema, root)) for name, schema in properties.items())
    return [(name, sorted(kinds)) for name, kinds in found if kinds != {"string"}]


def may_be_text(schema: object, root: Mapping[str, Any]) -> bool:
    """Return whether a value of a schema may be a string; `kinds_of` has the arguments."""
    return "string" in kinds_of(schema, root)


def kinds_of(schema: object, root: Mapping[str, Any], depth: int = 8) -> frozenset[str]:
    """Return the types that a value of a schema may have; what the schema does not say is a text.

    Args:
        schema: The schema.
        root: The whole, for references within it.
        depth: So many more schemas within each other are looked at.
    """
    if not isinstance(schema, Mapping) or depth == 0:
        return _TEXT
    found = _declared_kinds(schema, root, depth)
    if not found:
        return _TEXT
    return found | {"null"} if schema.get("nullable") is True else found


def _declared_kinds(
    schema: Mapping[str, Any], root: Mapping[str, Any], depth: int
) -> frozenset[str]:
    kind, values, reference = schema.get("type"), schema.get("enum"), schema.get("$ref")
    if kind is not None:
        named = kind if isinstance(kind, list) else [kind]
        return frozenset(name for name in named if name in _KINDS)
    if isinstance(values, list):
        return frozenset(_kind_of(value) for value in values)
    if "const" in schema:
        return frozenset({_kind_of(schema["const"])})
    if isinstance(reference, str):
        return kinds_of(referred(reference, root), root, depth - 1)
    options = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(options, list):
        return frozenset().union(*(kinds_of(option, root, depth - 1) for option in options))
    parts = schema.get("allOf")
    if not isinstance(parts, list) or not parts:
        return _TEXT
    return frozenset.intersection(*(kinds_of(part, root, depth - 1) for part in parts))


def _kind_of(value: object) -> str:
    """Return the type of a value of JSON."""
    if isinstance(value, bool) or value is None:
        return "null" if value is None else "boolean"
    names = {str: "string", int: "integer", float: "number", list: "array"}
    return names.get(type(value), "object")


def referred(reference: str, root: Mapping[str, Any]) -> object:
    """Return the schema of a reference within the whole; None where there is none."""
    found: object = root
    for key in reference.removeprefix("#/").split("/"):
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def _first(marks: Mapping[_F, tuple[str, ...]], template: str) -> _F | None:
    has_all = (name for name, texts in marks.items() if all(text in template for text in texts))
    return next(has_all, None)
