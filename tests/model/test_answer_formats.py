"""Answers in the form in which a chat template writes earlier ones: told from the template, read
back as the turn that it wrote."""

import functools
import json

import pytest
from chairlift.api import chats
from chairlift.api.choices import ReasoningFormat, ToolFormat
from chairlift.api.types import Chat
from chairlift.text.tools.answer_formats import AnswerFormat, chosen_format, detect, new_parser
from chairlift.text.tools.tool_prompt import write_tools
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import tool_templates
from tests.model.test_tool_templates import CALLING, RESULT, TOOLS, USER, call, tokenizer_of

FORMATS = {
    "HERMES": (ToolFormat.HERMES, None),
    "QWEN_THINK": (ToolFormat.HERMES, ReasoningFormat.THINK),
    "LLAMA_3": (ToolFormat.LLAMA3_JSON, None),
    "MISTRAL": (ToolFormat.MISTRAL, None),
    "HARMONY": (ToolFormat.HARMONY, ReasoningFormat.HARMONY),
    "ITEMS": (ToolFormat.QWEN3_CODER, None),
}
PLAIN = "{% for message in messages %}{{ message.content }}{% endfor %}"
AUTO = (ToolFormat.AUTO, ReasoningFormat.AUTO)


# A process renders for each.
cached_tokenizer = functools.cache(tokenizer_of)


def rendered(template, messages, **fields):
    chat = Chat(messages, tools=TOOLS, **fields)
    return cached_tokenizer(template).render_chat(chats.as_chat(chat))


def parser(template, *, prompt="", chosen=None, tools=TOOLS, **fields):
    chat = chats.as_chat(Chat([USER], tools=tools, **fields))
    chosen = chosen or chosen_format(template, *AUTO)
    return new_parser(chat, prompt, chosen, token_ids=lambda _texts: [], id_key=1)


def read(parser, pieces):
    """The text, the reasoning and the calls of an answer in pieces."""
    fields = [field for piece in pieces for field in parser.push(piece)] + parser.finish()
    said = {"text": "", "reasoning": ""}
    calls = []
    for kind, text in fields:
        if kind == "call":
            calls.append([text, ""])
        elif kind == "arguments":
            calls[-1][1] += text
        else:
            said[kind] += text
    return said["text"], said["reasoning"], calls


@pytest.mark.parametrize("name", FORMATS)
def test_the_format_is_told_from_the_template(name):
    assert detect(getattr(tool_templates, name)) == AnswerFormat(*FORMATS[name])


def test_settings_go_before_the_template():
    template = tool_templates.QWEN_THINK
    none = chosen_format(template, ToolFormat.NONE, ReasoningFormat.NONE)
    assert none == AnswerFormat(None, None)
    mistral = chosen_format(template, ToolFormat.MISTRAL, ReasoningFormat.AUTO)
    assert mistral == AnswerFormat(ToolFormat.MISTRAL, ReasoningFormat.THINK)
    assert detect(PLAIN) == AnswerFormat(None, None)
    assert detect("<tool_call>arguments<arg_key>").tools is None


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=30, deadline=None)
@given(
    city=st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), max_size=12),
    days=st.one_of(st.integers(), st.lists(st.booleans(), max_size=3)),
    cuts=st.lists(st.integers(1, 9), min_size=1, max_size=4),
)
def test_a_call_that_a_template_wrote_is_read_back(name, city, days, cuts):
    template = getattr(tool_templates, name)
    arguments = {"city": city, "days": days}
    turn = {**CALLING, "tool_calls": [call(arguments)]}
    prompt = rendered(template, [USER])
    answer = rendered(template, [USER, turn], add_generation_prompt=False)
    if name == "MISTRAL":
        answer = answer.removeprefix(prompt)
    else:
        # What the prompt of the answer begins with, the template writes for the turn too.
        start = {"HARMONY": "<|start|>assistant", "ITEMS": "\n<"}.get(name, "assistant")
        answer = answer[answer.rindex("to=functions" if name == "HARMONY" else start) :]
        marks = ("assistant", "<|end_header_id|>", "\n\n", "\n")
        for mark in marks:
            answer = answer.removeprefix(mark)
    for end in ("<|im_end|>\n", "<|eot_id|>", "</s>", "<|im_start|>assistant\n"):
        answer = answer.split(end)[0]
    if name == "ITEMS":
        # That template is a part of a real one: it closes no tag.
        values = [city, json.dumps(days)]
        answer = "<tool_call>\n<function=weather>\n" + "".join(
            f"<parameter={key}>\n{value}\n</parameter>\n"
            for key, value in zip(arguments, values, strict=True)
        )
        answer += "</function>\n</tool_call>"
    pieces = []
    while answer:
        pieces.append(answer[: cuts[len(pieces) % len(cuts)]])
        answer = answer[len(pieces[-1]) :]
    text, _, calls = read(parser(template), pieces)
    assert text.strip() == ""
    assert [name for name, _ in calls] == ["weather"]
    assert json.loads(calls[0][1]) == arguments


def test_reasoning_that_the_prompt_opens_is_known():
    template = tool_templates.QWEN_THINK
    pieces = ["Hot", ".\n</thi", "nk>\n\nYes"]
    opened = parser(template, prompt="...<|im_start|>assistant\n<think>\n", tools=[])
    assert read(opened, pieces) == ("Yes", "Hot.", [])
    closed = parser(template, prompt="assistant\n<think>\n\n</think>\n\n", tools=[])
    assert read(closed, ["It is."]) == ("It is.", "", [])


def test_an_answer_that_can_have_no_fields_needs_no_parser():
    assert parser(tool_templates.HERMES, tools=[]) is None
    assert parser(tool_templates.HERMES, tool_choice="none") is None
    assert parser(PLAIN) is None


def test_tools_become_text_for_a_template_without_them():
    chat = chats.as_chat(
        Chat([{"role": "system", "content": "Be kind."}, USER, CALLING, RESULT], tools=TOOLS)
    )
    written = write_tools(chat)
    system, user, called, result = written.messages
    assert system.content.startswith("Be kind.\n\n")
    assert '"name": "weather"' in system.content
    assert (user.content, called.role, result.role) == (USER["content"], "assistant", "user")
    assert RESULT["content"] in result.content
    assert not written.tools
    # What it writes for a call is what the parser reads.
    hermes = AnswerFormat(ToolFormat.HERMES, None)
    _, _, calls = read(parser(PLAIN, chosen=hermes), [called.content])
    assert json.loads(calls[0][1]) == {"city": "Zürich", "days": 2}


PARAMETERS = {
    "type": "object",
    "$defs": {"Level": {"enum": [1, 2]}, "Name": {"type": "string"}},
    "properties": {
        "flag": {"type": "boolean"},
        "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "named": {"type": ["string", "null"]},
        "level": {"$ref": "#/$defs/Level"},
        "optional": {"anyOf": [{"$ref": "#/$defs/Level"}, {"type": "null"}], "default": None},
        "name": {"allOf": [{"$ref": "#/$defs/Name"}]},
        "list": {"type": "array", "items": {"type": "integer"}},
        "either": {"oneOf": [{"type": "object"}, {"type": "boolean"}]},
        "choice": {"enum": ["a", None]},
        "any": {},
    },
}


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ({"flag": "False"}, {"flag": False}),
        ({"flag": "True", "maybe": "null"}, {"flag": True, "maybe": None}),
        ({"maybe": "nullable", "named": "None"}, {"maybe": "nullable", "named": None}),
        ({"level": "2", "optional": "null"}, {"level": 2, "optional": None}),
        ({"optional": "1", "name": "5"}, {"optional": 1, "name": "5"}),
        ({"list": "[1, 2]", "either": '{"a": null}'}, {"list": [1, 2], "either": {"a": None}}),
        ({"either": "true", "choice": "null"}, {"either": True, "choice": None}),
        (
            {"choice": "a", "any": "null", "other": "1"},
            {"choice": "a", "any": "null", "other": "1"},
        ),
    ],
)
def test_values_without_quotes_have_the_types_of_the_schema(written, expected):
    tool = {"type": "function", "function": {"name": "ride", "parameters": PARAMETERS}}
    values = "".join(
        f"<parameter={name}>\n{value}\n</parameter>\n" for name, value in written.items()
    )
    text = f"<tool_call>\n<function=ride>\n{values}</function>\n</tool_call>"
    chosen = AnswerFormat(ToolFormat.QWEN3_CODER, None)
    for pieces in ([text], list(text)):
        read_parser = parser("", chosen=chosen, tools=[tool])
        _, _, [[name, arguments]] = read(read_parser, pieces)
        assert (name, json.loads(arguments)) == ("ride", expected)
