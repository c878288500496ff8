"""Conversations with tools and calls, rendered as `transformers` renders them."""

import json

import pytest
from chairlift.api import chats
from chairlift.api.errors import RequestError
from chairlift.api.types import Chat, ChatMessage, Tool, ToolCall, ToolChoice, ToolMode
from chairlift.text.tokenizer import Tokenizer
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models
from transformers import PreTrainedTokenizerFast

from tests import tool_templates

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "ünïcode & <b>"},
        "days": {"type": "integer"},
    },
    "required": ["city"],
}
TOOLS = [
    {
        "type": "function",
        "function": {"name": "weather", "description": "Tell it.", "parameters": SCHEMA},
    },
    {
        "type": "function",
        "function": {"name": "noon", "parameters": {"type": "object", "properties": {}}},
    },
]


def call(arguments, name="weather"):
    return {
        "id": "abcdefghi",
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


USER = {"role": "user", "content": "Is it warm in Zürich?"}
CALLING = {"role": "assistant", "content": "", "tool_calls": [call({"city": "Zürich", "days": 2})]}
RESULT = {"role": "tool", "name": "weather", "tool_call_id": "abcdefghi", "content": '{"c": 21}'}
CONVERSATIONS = {
    "user": [USER],
    "result": [USER, CALLING, RESULT],
    "answer": [USER, CALLING, RESULT, {"role": "assistant", "content": "Yes."}, USER],
}
TEMPLATES = {
    name: getattr(tool_templates, name)
    for name in ("HERMES", "QWEN_THINK", "LLAMA_3", "MISTRAL", "HARMONY", "ITEMS")
}


def backend():
    words = Backend(models.WordLevel({"<s>": 0, "</s>": 1, "<unk>": 2}, unk_token="<unk>"))
    words.decoder = decoders.ByteLevel()
    return words


@pytest.fixture(scope="module")
def reference():
    return PreTrainedTokenizerFast(
        tokenizer_object=backend(), bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


def tokenizer_of(template):
    special_tokens = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    return Tokenizer(backend(), special_tokens=special_tokens, chat_templates={"default": template})


def as_strings(messages):
    """The messages with their arguments as texts, as OpenAI's API has them."""
    texts = json.loads(json.dumps(messages))
    for message in texts:
        for made in message.get("tool_calls", ()):
            made["function"]["arguments"] = json.dumps(made["function"]["arguments"])
    return texts


def rendered(template, chat):
    chat = chats.as_chat(chat)
    chats.chat(chat)
    return tokenizer_of(template).render_chat(chat)


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
@pytest.mark.parametrize("messages", CONVERSATIONS.values(), ids=CONVERSATIONS)
@pytest.mark.parametrize("tools", [TOOLS, []], ids=["tools", "no tools"])
def test_a_conversation_with_tools_renders_as_transformers_renders_it(
    reference, template, messages, tools
):
    expected = reference.apply_chat_template(
        messages,
        chat_template=template,
        tools=tools or None,
        tokenize=False,
        add_generation_prompt=True,
    )
    assert rendered(template, Chat(messages, tools=tools)) == expected
    assert rendered(template, Chat(as_strings(messages), tools=tools)) == expected


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
@pytest.mark.parametrize(
    ("template", "key"), [("QWEN_THINK", "reasoning_content"), ("HARMONY", "thinking")]
)
def test_reasoning_is_under_the_name_that_the_template_reads(reference, template, key, name):
    template = TEMPLATES[template]
    turn = {**CALLING, "content": ""}
    messages = [USER, {**turn, key: "It is summer."}, RESULT]
    expected = reference.apply_chat_template(
        messages, chat_template=template, tokenize=False, add_generation_prompt=True
    )
    assert "It is summer." in expected
    ours = rendered(template, Chat([USER, {**turn, name: "It is summer."}, RESULT]))
    assert ours == expected


@pytest.mark.parametrize("arguments", ['{"city": "Zür', "[1]", "7", '{"a": NaN}', "[" * 5000])
@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
def test_a_call_with_malformed_arguments_renders_with_them(template, arguments):
    messages = [USER, {**CALLING, "tool_calls": [call(arguments)]}, RESULT]
    text = rendered(template, Chat(messages, tools=TOOLS))
    # Some templates quote a text.
    assert arguments in text or json.dumps(arguments, ensure_ascii=False)[1:-1] in text


def test_the_model_does_not_see_tools_that_it_must_not_call():
    choice = ToolChoice(ToolMode.NONE)
    template = TEMPLATES["HERMES"]
    text = rendered(template, Chat([USER], tools=TOOLS, tool_choice=choice))
    assert text == rendered(template, Chat([USER]))


def test_tools_as_values_and_as_mappings_render_alike():
    values = [
        Tool("weather", "Tell it.", json.dumps(SCHEMA)),
        Tool("noon"),
    ]
    calls = [ToolCall("abcdefghi", "weather", {"city": "Zürich", "days": 2})]
    messages = [
        ChatMessage("user", USER["content"]),
        ChatMessage("assistant", "", tool_calls=calls),
        ChatMessage("tool", RESULT["content"], name="weather", tool_call_id="abcdefghi"),
    ]
    template = TEMPLATES["MISTRAL"]
    expected = rendered(template, Chat(CONVERSATIONS["result"], tools=TOOLS))
    assert rendered(template, Chat(messages, tools=values)) == expected


# --- what is wrong is said by name ------------------------------------------------------------

PLAIN = "{% for message in messages %}{{ message.content }}{% endfor %}"


def refusal(chat, template=TEMPLATES["HERMES"]):
    with pytest.raises(RequestError) as caught:
        rendered(template, chat)
    return caught.value


@pytest.mark.parametrize(
    ("chat", "field"),
    [
        (Chat([USER], tools=TOOLS), "chat.tools"),
        (Chat([USER, CALLING]), "chat.messages[1].tool_calls"),
        (
            Chat([USER, {"role": "assistant", "content": "a", "reasoning": "b"}]),
            "chat.messages[1].reasoning",
        ),
    ],
)
def test_what_a_template_does_not_read_is_refused(chat, field):
    error = refusal(chat, PLAIN)
    assert error.field == field
    assert error.message.startswith(f"{field}: the model's chat template takes no ")


def test_tools_that_a_template_does_not_read_are_refused_with_the_setting_that_helps():
    assert "the setting tool_format" in refusal(Chat([USER], tools=TOOLS), PLAIN).message


@pytest.mark.parametrize(
    ("tools", "field"),
    [
        ([Tool("")], "chat.tools[0].name"),
        ([Tool("a b")], "chat.tools[0].name"),
        ([Tool("a"), Tool("a")], "chat.tools[1].name"),
        ([Tool("a", parameters="[]")], "chat.tools[0].parameters_json"),
        ([Tool("a", parameters="{")], "chat.tools[0].parameters_json"),
        ([Tool("a", parameters="{" * 100_000)], "chat.tools[0].parameters_json"),
        ([Tool("a", 3)], "chat.tools[0].description"),
        ([{"type": "web_search"}], "chat.tools[0].function"),
        ([{"type": "function", "function": {"name": 3}}], "chat.tools[0].function.name"),
        ([{"type": "function", "function": {"name": "a", "x": 1}}], "chat.tools[0].function"),
        ("weather", "chat.tools"),
        ([Tool(f"t{i}") for i in range(129)], "chat.tools"),
    ],
)
def test_a_wrong_tool_is_refused_by_its_field(tools, field):
    assert refusal(Chat([USER], tools=tools)).field == field


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ({"role": "user", "content": "a", "reasoning": "b"}, "reasoning"),
        ({"role": "user", "content": "a", "tool_call_id": "b"}, "tool_call_id"),
        ({"role": "user", "content": "a", "tool_calls": [call({})]}, "tool_calls"),
        ({"role": "assistant", "content": "a", "tool_calls": {}}, "tool_calls"),
        ({"role": "assistant", "content": "a", "tool_calls": [{}]}, "tool_calls[0].function"),
        ({"role": "assistant", "tool_calls": [call({}, "")]}, "tool_calls[0].name"),
        ({"role": "assistant", "tool_calls": [call(7)]}, "tool_calls[0].function.arguments"),
        ({"role": "assistant"}, "content"),
        ({"role": "assistant", "content": None}, "content"),
    ],
)
def test_a_wrong_turn_is_refused_by_its_field(message, field):
    assert refusal(Chat([message])).field == f"chat.messages[0].{field}"


@pytest.mark.parametrize(
    ("choice", "field"),
    [
        ("sometimes", "chat.tool_choice"),
        (ToolChoice(ToolMode.REQUIRED, "x"), "chat.tool_choice.name"),
        (ToolChoice(ToolMode.AUTO, "weather"), "chat.tool_choice.name"),
        ({"type": "function", "function": {"name": "x"}}, "chat.tool_choice.name"),
        ({"type": "function", "function": {}}, "chat.tool_choice.function.name"),
    ],
)
def test_a_wrong_tool_choice_is_refused_by_its_field(choice, field):
    assert refusal(Chat([USER], tools=TOOLS, tool_choice=choice)).field == field


def test_a_choice_that_needs_tools_is_refused_without_any():
    assert refusal(Chat([USER], tool_choice="required")).field == "chat.tool_choice"
