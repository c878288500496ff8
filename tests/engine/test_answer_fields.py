"""Reasoning and function calls of answers that the test writes, through the engine."""

import pytest
from chairlift.api.errors import RequestError
from chairlift.api.types import Chat, Finished, Output, Request, Sampling, Stopping, Tokens

from tests import tool_templates
from tests.engine import tiny_model
from tests.engine.drive import run, script

USER = {"role": "user", "content": "one"}
TOOLS = [{"type": "function", "function": {"name": "ride", "parameters": {"type": "object"}}}]
CALL = '<tool_call>\n{"name": "ride", "arguments": {"up": [1, 2]}}\n</tool_call>'


@pytest.fixture(scope="module")
def thinking(tiny, tmp_path_factory):
    """The tiny model with a template that has tools and reasoning."""
    folder = tmp_path_factory.mktemp("thinking") / "model"
    return tiny_model.copy_with_template(tiny.folder, folder, tool_templates.QWEN_THINK)


def write(engine, answer, *, tools=TOOLS, output=None, n=1, **chat):
    """Let the model answer a conversation with a text; return the events."""
    ids = [*engine.tokenizer.encode(answer, add_special_tokens=False), tiny_model.EOS]
    script(engine, dict.fromkeys(range(1, n + 1), ids))
    request = Request(
        Chat([USER], tools=tools, **chat),
        Sampling(temperature=0, seed=1, n=n),
        Stopping(max_tokens=400),
        output or Output(),
    )
    return run(engine, [request])[0]


def said(events):
    """The text, the reasoning, and the calls by position."""
    tokens = [event for event in events if isinstance(event, Tokens)]
    calls = {}
    for part in (part for event in tokens for part in event.tool_calls):
        head, arguments = calls.get(part.position, (None, ""))
        assert (head is None) == bool(part.name) == bool(part.id)
        calls[part.position] = (head or (part.id, part.name), arguments + part.arguments)
    text = "".join(event.text for event in tokens)
    return text, "".join(event.reasoning for event in tokens), list(calls.values())


def test_an_answer_is_parted_into_its_fields_as_it_comes(make_engine, thinking):
    with make_engine(thinking) as engine:
        events = write(engine, f"<think>\nUp.\n</think>\n\nI ride.\n{CALL}")
        text, reasoning, [((call_id, name), arguments)] = said(events)
        assert (text, reasoning) == ("I ride.", "Up.")
        assert (name, arguments) == ("ride", '{"up": [1, 2]}')
        assert len(call_id) == 9
        assert call_id.isalnum()
        parts = [e for e in events if isinstance(e, Tokens) and e.tool_calls]
        assert len(parts) > 5
        end = next(event for event in events if isinstance(event, Finished))
        tokens = [event for event in events if isinstance(event, Tokens)]
        assert end.usage.output_tokens == sum(len(event.token_ids) for event in tokens)


def test_an_answer_cut_by_its_length_keeps_what_it_has(make_engine, thinking):
    with make_engine(thinking) as engine:
        ids = engine.tokenizer.encode(f"<think>\nUp.\n</think>\n\n{CALL}", add_special_tokens=False)
        script(engine, {1: ids})
        request = Request(
            Chat([USER], tools=TOOLS),
            Sampling(temperature=0, seed=1),
            Stopping(max_tokens=len(ids) - 20),
        )
        text, reasoning, [((_, name), arguments)] = said(run(engine, [request])[0])
        assert (text, reasoning, name) == ("", "Up.", "ride")
        assert '{"up": [1, 2]}'.startswith(arguments)


def test_malformed_calls_and_raw_prompts_stay_text(make_engine, thinking):
    malformed = CALL.replace("name", "nom")
    with make_engine(thinking) as engine:
        assert said(write(engine, malformed)) == (malformed, "", [])
        ids = [*engine.tokenizer.encode(CALL, add_special_tokens=False), tiny_model.EOS]
        script(engine, {1: ids})
        raw = Request("one", Sampling(temperature=0, seed=1), Stopping(max_tokens=100))
        assert said(run(engine, [raw])[0]) == (CALL, "", [])


def test_tools_that_the_model_must_not_call_leave_its_text(make_engine, thinking):
    with make_engine(thinking) as engine:
        assert said(write(engine, CALL, tool_choice="none"))[0] == CALL
        assert said(write(engine, CALL, tools=[]))[0] == CALL


@pytest.mark.parametrize(
    ("formats", "expected"),
    [
        ({"tool_format": "none"}, (CALL, "Up.")),
        ({"reasoning_format": "none"}, ("<think>Up.</think>", "")),
    ],
)
def test_a_format_can_be_switched_off(make_engine, thinking, formats, expected):
    with make_engine(thinking, **formats) as engine:
        text, reasoning, calls = said(write(engine, f"<think>Up.</think>{CALL}"))
        assert (text, reasoning) == expected
        assert len(calls) == ("reasoning_format" in formats)


def test_a_named_format_gives_tools_to_any_template(make_engine, tiny, tmp_path):
    template = tiny_model.CHAT_TEMPLATE
    plain = tiny_model.copy_with_template(tiny.folder, tmp_path / "plain", template)
    with make_engine(plain, tool_format="hermes") as engine:
        text, _, [((_, name), _)] = said(write(engine, CALL))
        assert (text, name) == ("", "ride")
    with make_engine(plain) as engine, pytest.raises(RequestError) as caught:
        write(engine, CALL)
    assert caught.value.field == "chat.tools"


def test_calls_of_a_request_have_ids_of_their_own(make_engine, thinking):
    with make_engine(thinking) as engine:
        events = write(engine, CALL + CALL, n=1) + write(engine, CALL, n=1)
        tokens = [event for event in events if isinstance(event, Tokens)]
        ids = [part.id for event in tokens for part in event.tool_calls if part.id]
        assert len(set(ids)) == len(ids) == 3


def test_an_engine_returns_whole_calls(make_engine, thinking):
    with make_engine(thinking) as engine:
        ids = engine.tokenizer.encode(f"<think>Up.</think>{CALL}", add_special_tokens=False)
        script(engine, {1: [*ids, tiny_model.EOS]})
        [answer] = engine.generate(
            [USER], Sampling(temperature=0, seed=1), Stopping(max_tokens=99), tools=TOOLS
        )
        [call] = answer.tool_calls
        assert (answer.text, answer.reasoning) == ("", "Up.")
        assert (call.name, call.arguments) == ("ride", '{"up": [1, 2]}')
        with pytest.raises(RequestError) as caught:
            engine.generate("one", tools=TOOLS)
        assert caught.value.field == "chat.tools"
