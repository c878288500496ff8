"""Chat templates against `transformers`, which is where models are trained with them."""

import subprocess
import sys

import pytest
from chairlift.api.errors import Reason, RequestError
from chairlift.text.chat.chat_template import render
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

LLAMA_3 = """\
{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}
    {{- "Environment: ipython\\n" }}
{%- endif %}
{{- "Today Date: " + date_string + "\\n\\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if message.role == 'ipython' or message.role == 'tool' %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {{- message.content | tojson }}
        {{- "<|eot_id|>" }}
    {%- else %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'}}
        {{- message['content'] | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

QWEN_3 = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- "# Tools\\n\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role == "user" or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- if '</think>' in content %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index and loop.last %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n\\n</think>\\n\\n' + content }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""

MISTRAL = """\
{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('roles must alternate user and assistant') }}
    {%- endif %}
    {%- if message["role"] == "user" %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"] + eos_token}}
    {%- endif %}
{%- endfor %}
"""

CHATML_IN_LINES = """\
{% for message in messages %}
    {% if loop.index > 3 %}
        {% break %}
    {% endif %}
    {% generation %}
{{ message['role'] }}: {{ message['content'] }}
    {% endgeneration %}
  {# a comment #}
{% endfor %}
{% if add_generation_prompt %}
assistant in {{ strftime_now('%Y') }}:
{% endif %}
"""

TEMPLATES = {
    "llama-3": LLAMA_3,
    "qwen-3": QWEN_3,
    "mistral": MISTRAL,
    "lines": CHATML_IN_LINES,
}
CHAT = [
    {"role": "system", "content": " You are <b>brief</b> & 'kind'. "},
    {"role": "user", "content": "Hello\n 缆车 🚡"},
    {"role": "assistant", "content": "<think>hm</think>\n\nHi!"},
    {"role": "user", "content": 'What is {{ 1 + 1 }}? {"a": [1, 2]}  '},
]
TOOL = {"type": "function", "function": {"name": "lift", "description": "ünïcode & <tags>"}}


@pytest.fixture(scope="module")
def reference() -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.WordLevel({"<s>": 0, "</s>": 1, "<unk>": 2}, unk_token="<unk>"))
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
@pytest.mark.parametrize("add_generation_prompt", [True, False])
@pytest.mark.parametrize("messages", [CHAT, CHAT[1:], CHAT[:2], CHAT[1:3]])
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"tools": [TOOL]},
        {"enable_thinking": False, "date_string": "today"},
        {"documents": [{"title": "a", "text": "b"}]},
    ],
)
def test_rendering_equals_transformers(
    reference, template, add_generation_prompt, messages, arguments
):
    expected = reference.apply_chat_template(
        messages,
        chat_template=template,
        tokenize=False,
        add_generation_prompt=add_generation_prompt,
        **arguments,
    )
    variables = {**reference.special_tokens_map, **arguments}
    text = render(
        template, messages, add_generation_prompt=add_generation_prompt, variables=variables
    )
    assert text == expected


def refusal(template: str, messages=CHAT, variables=None) -> str:
    with pytest.raises(RequestError) as caught:
        render(template, messages, variables=variables or {})
    assert caught.value.reason is Reason.BAD_PARAMETER
    assert caught.value.field == "chat"
    assert "\n" not in caught.value.message
    return caught.value.message


def test_what_a_template_refuses_is_said_in_its_words():
    chat = [CHAT[1], CHAT[1]]
    message = refusal(MISTRAL, chat, {"bos_token": "<s>"})
    assert message == "chat template: roles must alternate user and assistant"


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages[0].content + 1 }}",
        "{{ messages[9].content.strip() }}",
        "{{ 1 / 0 }}",
        "{% for message in messages %}",
        "{% include 'other' %}",
        "{% macro deep(n) %}{{ deep(n) }}{% endmacro %}{{ deep(1) }}",
    ],
)
def test_a_template_that_fails_refuses_the_request_without_quoting_it(template):
    assert "brief" not in refusal(template)


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{{ range(10 ** 9) | list }}",
    ],
)
def test_a_template_stays_in_its_sandbox(template):
    refusal(template)


def test_an_empty_conversation_is_refused():
    assert refusal(LLAMA_3, []) == "expected at least one message"


def test_a_tokenizer_loads_neither_jinja_nor_transformers():
    code = (
        "import sys, chairlift.text.tokenizer; print({'jinja2', 'transformers'} & {*sys.modules})"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "set()"
