"""Tools as a grammar (Lark, as `llguidance` reads it): what an answer that may call them can be.

A mark that is a special token of the model is named by its id; others are texts. Arguments follow
the tool's schema; white space between parts is as the model's template writes it.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from chairlift.api import checks, constraints
from chairlift.api.choices import ReasoningFormat, ToolFormat
from chairlift.api.constraints import Source
from chairlift.api.types import Chat, ToolMode
from chairlift.text.chat.chat_values import template_has_tools, tool_parameters
from chairlift.text.tools import tagged_arguments
from chairlift.text.tools.answer_formats import AnswerFormat, may_be_text

_REASONING: Final = {
    ReasoningFormat.THINK: ("<think>", "</think>"),
    ReasoningFormat.MISTRAL: ("[THINK]", "[/THINK]"),
    ReasoningFormat.SEED: ("<seed:think>", "</seed:think>"),
}
_WHITE: Final = r"\x20|\r?\n[\x20\x09]{0,32}"
"""White space inside of arguments: bounded, so that a model cannot fill its answer with it."""
_DEFINITIONS: Final = ("$defs", "definitions")
_ANY: Final = r"(.|\n)*"
_END_OF_VALUE: Final = "\n" + tagged_arguments.END


class _Frame(NamedTuple):
    """What calls stand in."""

    before: str
    """Before the first."""
    between: str
    """Empty where an answer has one call at most."""
    after: str
    """After the last."""


def needs_grammar(chat: Chat, content: Source | None) -> bool:
    """Return whether only a grammar can make sure of what a conversation asks of its calls.

    Args:
        chat: The conversation.
        content: What the text of the answer must be.
    """
    if not template_has_tools(chat):
        return False
    is_strict = any(tool.strict for tool in chat.tools)
    is_required = chat.tool_choice.mode is ToolMode.REQUIRED
    return is_required or is_strict or not chat.parallel_tool_calls or content is not None


def tool_grammar(
    chat: Chat,
    template: str,
    chosen: AnswerFormat,
    content: Source | None,
    *,
    starts_in_reasoning: bool,
    special_id: Callable[[str], int | None],
) -> Source:
    """Return the grammar of the answer to a conversation.

    Args:
        chat: The conversation, which `needs_grammar`.
        template: The chat template of the model.
        chosen: The formats of its answers; that of calls is one.
        content: What an answer without calls must be: a JSON schema, any object, or choices.
        starts_in_reasoning: The prompt ends with the mark that begins reasoning.
        special_id: Returns the id of a text that is a special token, or None.

    Raises:
        RequestError: The schema of a tool is no JSON.
    """
    grammar = _Grammar(chat, template, chosen, special_id)
    text = grammar.text(content, starts_in_reasoning=starts_in_reasoning)
    return Source("lark", text, path="chat.tools")


def tool_schema(chat: Chat, number: int) -> Source:
    """Return the schema of a tool's arguments as a constraint of its own.

    Raises:
        RequestError: It is no JSON.
    """
    path = f"chat.tools[{number}]"
    parameters = chat.tools[number].parameters
    schema = tool_parameters(parameters, path)
    if not parameters:
        schema["additionalProperties"] = False
    field = f"{path}.parameters_json"
    if schema.get("type", "object") != "object":
        raise checks.bad(field, "a schema of type object", schema["type"])
    text = constraints.schema_text({"type": "object", **schema}, field)
    return Source("json_schema", text, path=field)


class _Grammar:
    """The rules of one grammar as they are written."""

    def __init__(
        self,
        chat: Chat,
        template: str,
        chosen: AnswerFormat,
        special_id: Callable[[str], int | None],
    ) -> None:
        self._chat = chat
        self._chosen = chosen
        self._special_id = special_id
        self._has_arguments_mark = "[ARGS]" in template
        is_required = chat.tool_choice.mode is ToolMode.REQUIRED
        self._is_held = is_required or any(tool.strict for tool in chat.tools)
        """Whether calls must follow their schemas: what is not held is refused then."""
        self._rules: list[str] = []

    def text(self, content: Source | None, *, starts_in_reasoning: bool) -> str:
        """Return the whole grammar."""
        answer = self._calls()
        if self._chat.tool_choice.mode is not ToolMode.REQUIRED:
            answer = self._perhaps(answer, content)
        parts = (self._reasoning(starts_in_reasoning), answer)
        start = " ".join(part for part in parts if part)
        return "\n".join([f"start: {start}", *self._rules, f"TEXT: /{_ANY}/"]) + "\n"

    def _mark(self, text: str) -> str:
        token_id = self._special_id(text)
        return json.dumps(text) if token_id is None else f"<[{token_id}]>"

    def _until(self, name: str, mark: str) -> str:
        """Return a rule for any text up to a mark, the mark included."""
        if self._special_id(mark) is not None:
            return f"TEXT {self._mark(mark)}"
        self._rules.append(f"{name}[lazy]: /{_ANY}{_escaped(mark)}/")
        return name

    def _reasoning(self, starts_in_reasoning: bool) -> str:
        reasoning = self._chosen.reasoning
        if reasoning is ReasoningFormat.HARMONY:
            head = f'{self._mark("<|channel|>")} "analysis" {self._mark("<|message|>")}'
            text = self._until("thought", "<|end|>")
            return f'({head} {text} {self._mark("<|start|>")} "assistant")?'
        if reasoning is None:
            return ""
        opening, closing = _REASONING[reasoning]
        text = f"{self._until('thought', closing)} /\\n{{0,2}}/"
        return text if starts_in_reasoning else f"({self._mark(opening)} {text})?"

    def _perhaps(self, calls: str, content: Source | None) -> str:
        """Return a rule for text, after which calls may follow, or for the content alone."""
        head = ""
        if self._chosen.tools is ToolFormat.HARMONY:
            channel, message = self._mark("<|channel|>"), self._mark("<|message|>")
            head = f'{channel} "final" {message} '
        if content is not None:
            return f"({head}{_content(content)} | {calls})"
        match self._chosen.tools:
            case ToolFormat.HARMONY:
                return f"({head}TEXT | {calls})"
            case ToolFormat.LLAMA3_JSON:
                self._rules.append(r"PLAIN: /(\s*[^{\s](.|\n)*)?/ & ~/<\|python_tag\|>(.|\n)*/")
                return f"(PLAIN | {calls})"
            case ToolFormat.MISTRAL:
                mark = "[TOOL_CALLS]"
            case _:
                mark = "<tool_call>"
        self._rules.append(f"PLAIN: /{_ANY}/ & ~/{_ANY}{_escaped(mark)}{_ANY}/")
        if self._special_id(mark) is not None:
            return f"PLAIN ({calls})?"
        return f"(PLAIN | {self._until('head', mark)} {calls.removeprefix(self._mark(mark))})"

    def _calls(self) -> str:
        frame = self._frame()
        self._rules.append(f"call: {' | '.join(self._body(i) for i in self._numbers())}")
        has_more = bool(frame.between) and self._chat.parallel_tool_calls
        more = f"({frame.between} call)*" if has_more else ""
        return " ".join(part for part in (frame.before, "call", more, frame.after) if part)

    def _numbers(self) -> list[int]:
        """Return the positions of the tools that may be called."""
        name = self._chat.tool_choice.name
        return [i for i, tool in enumerate(self._chat.tools) if name in ("", tool.name)]

    def _frame(self) -> _Frame:
        match self._chosen.tools:
            case ToolFormat.HERMES:
                opening, closing = self._mark("<tool_call>"), self._mark("</tool_call>")
                between = f'"\\n" {closing} "\\n" {opening} "\\n"'
                return _Frame(f'{opening} "\\n"', between, f'"\\n" {closing}')
            case ToolFormat.QWEN3_CODER:
                opening, closing = self._mark("<tool_call>"), self._mark("</tool_call>")
                return _Frame(f'{opening} "\\n"', f'{closing} "\\n" {opening} "\\n"', closing)
            case ToolFormat.LLAMA3_JSON:
                return _Frame("", '"; "', "")
            case ToolFormat.MISTRAL if self._has_arguments_mark:
                opening = self._mark("[TOOL_CALLS]")
                return _Frame(opening, opening, "")
            case ToolFormat.MISTRAL:
                return _Frame(f'{self._mark("[TOOL_CALLS]")} "["', '", "', '"]"')
            case _:
                # A message ends with the token that ends the answer.
                return _Frame("", "", "")

    def _body(self, number: int) -> str:
        tool = self._chat.tools[number]
        schema = json.loads(tool_schema(self._chat, number).text)
        rule = f"call{number}"
        match self._chosen.tools:
            case ToolFormat.QWEN3_CODER:
                body = self._tagged(number, tool.name, schema)
            case ToolFormat.MISTRAL if self._has_arguments_mark:
                body = f"{json.dumps(tool.name)} {self._mark('[ARGS]')} {_json(schema)}"
            case ToolFormat.HARMONY:
                to = json.dumps(f"commentary to=functions.{tool.name} ")
                channel, message = self._mark("<|channel|>"), self._mark("<|message|>")
                form = f'{self._mark("<|constrain|>")} "json"'
                body = f"{channel} {to} {form} {message} {_json(schema)}"
            case other:
                key = "parameters" if other is ToolFormat.LLAMA3_JSON else "arguments"
                head = f'{{"name": {json.dumps(tool.name)}, "{key}": '
                body = f'{json.dumps(head)} {_json(schema)} "}}"'
        self._rules.append(f"{rule}: {body}")
        return rule

    def _tagged(self, number: int, name: str, schema: Mapping[str, Any]) -> str:
        """Return a call as tags: the parameters in the order of the schema."""
        parts = [json.dumps(f"<function={name}>\n")]
        required, properties = schema.get("required"), schema.get("properties")
        definitions = {key: schema[key] for key in _DEFINITIONS if key in schema}
        try:
            if self._is_held:
                tagged_arguments.check_root(schema)
            for i, (key, part) in enumerate(
                properties.items() if isinstance(properties, Mapping) else ()
            ):
                is_required = isinstance(required, list) and key in required
                if part is False and not is_required:
                    continue
                head = json.dumps(f"<parameter={key}>\n", ensure_ascii=False)
                if may_be_text(part, schema):
                    text = self._tagged_text(key, part, schema)
                    value = self._text_rule(f"text{number}x{i}", text)
                else:
                    inner = {**definitions, **part} if isinstance(part, Mapping) else part
                    value = f"{_json(inner)} {json.dumps(_END_OF_VALUE)}"
                parts.append(f'({head} {value} "\\n"){"" if is_required else "?"}')
        except tagged_arguments.Unheld as error:
            tagged_arguments.refuse(error, f"chat.tools[{number}]")
        return " ".join([*parts, json.dumps("</function>\n")])

    def _tagged_text(
        self, key: str, part: object, root: Mapping[str, Any]
    ) -> tagged_arguments.Text:
        """Return what a text can be: anything where no call needs to follow its schema."""
        try:
            return tagged_arguments.text_of(key, part, root)
        except tagged_arguments.Unheld:
            if self._is_held:
                raise
            return tagged_arguments.Text()

    def _text_rule(self, rule: str, text: tagged_arguments.Text) -> str:
        """Return a rule for a text and the tag behind it."""
        end = json.dumps(_END_OF_VALUE)
        if text.values is not None:
            return f"({_one_of(text.values)}) {end}"
        if not text.min_length and text.max_length is None:
            self._rules.append(f"{rule}[lazy]: /{_ANY}{_escaped(tagged_arguments.END)}/")
            return rule
        # One terminal with its end, behind which nothing may come: the first end is the only one.
        max_length = "" if text.max_length is None else text.max_length
        characters = rf"(.|\n){{{text.min_length},{max_length}}}"
        tag = _escaped(tagged_arguments.END)
        name = rule.upper()
        self._rules.append(f"{name}: /{characters}\\n{tag}/ & ~/{_ANY}{tag}(.|\\n)+/")
        return name


def _escaped(text: str) -> str:
    """Return a text inside the slashes of an expression."""
    return re.escape(text).replace("/", r"\/")


def _one_of(texts: Iterable[str]) -> str:
    return " | ".join(json.dumps(text, ensure_ascii=False) for text in texts)


def _content(content: Source) -> str:
    if content.kind == "choices":
        return f"({_one_of(content.choices)})"
    if content.kind == "json_object":
        return _json({"type": "object"})
    return _json(json.loads(content.text))


def _json(schema: object) -> str:
    """Return the rule of a JSON schema, with bounded white space unless it has its own."""
    if schema is True:
        schema = {}
    if isinstance(schema, Mapping) and "x-guidance" not in schema:
        schema = {**schema, "x-guidance": {"whitespace_pattern": _WHITE}}
    return f"%json {json.dumps(schema, ensure_ascii=False)}"
