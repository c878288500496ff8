"""Answers that must call functions: of a model with random weights, in every format."""

import json

import jsonschema
import pytest
from chairlift.api.errors import Reason, RequestError
from chairlift.api.types import (
    Chat,
    Constraint,
    Finished,
    FinishReason,
    Request,
    Sampling,
    Stopping,
)

from tests import tool_templates
from tests.engine import tiny_model
from tests.engine.drive import run
from tests.engine.test_answer_fields import said

USER = {"role": "user", "content": "one"}
RIDE = {
    "type": "object",
    "properties": {
        "up": {"type": "integer", "minimum": 0, "maximum": 99},
        "lift": {"type": "string", "enum": ["chair", "größe"]},
        "stops": {"type": "array", "items": {"$ref": "#/$defs/stop"}, "maxItems": 2},
    },
    "required": ["up", "lift"],
    "additionalProperties": False,
    "$defs": {"stop": {"type": "boolean"}},
}
SKI = {
    "type": "object",
    "properties": {"fast": {"type": "boolean"}},
    "required": ["fast"],
    "additionalProperties": False,
}
SCHEMAS = {"ride": RIDE, "ski": SKI, "rest": {}}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": schema}}
    for name, schema in SCHEMAS.items()
]
NAMES = ["HERMES", "QWEN_THINK", "LLAMA_3", "MISTRAL", "HARMONY", "ITEMS"]


@pytest.fixture(scope="module")
def folders(tiny, tmp_path_factory):
    parent = tmp_path_factory.mktemp("tools")
    return {
        name: tiny_model.copy_with_template(
            tiny.folder, parent / name, getattr(tool_templates, name)
        )
        for name in NAMES
    }


def asked(seed=0, constraint=None, n=1, max_tokens=400, **chat):
    chat = {"tools": TOOLS, "tool_choice": "required", **chat}
    return Request(
        Chat([USER], **chat),
        Sampling(temperature=1, seed=seed, n=n),
        Stopping(max_tokens=max_tokens),
        constraint=constraint,
    )


def check(events, *, names=tuple(SCHEMAS)):
    """Check that the answer is calls that follow their schemas; return them."""
    _, _, calls = said(events)
    end = next(event for event in events if isinstance(event, Finished))
    for (_, name), arguments in calls if end.reason is FinishReason.STOP else calls[:-1]:
        assert name in names
        value = json.loads(arguments)
        if SCHEMAS[name]:
            jsonschema.validate(value, SCHEMAS[name])
        else:
            assert value == {}
    return calls


@pytest.mark.parametrize("name", NAMES)
def test_a_model_that_must_call_calls_as_the_schema_says(make_engine, folders, name):
    # Its random model would reason until the end.
    with make_engine(folders[name], reasoning_format="none") as engine:
        requests = [asked(seed) for seed in range(4)]
        requests += [asked(seed, tool_choice={"function": {"name": "ski"}}) for seed in (5, 6)]
        requests += [asked(seed, parallel_tool_calls=False) for seed in (7, 8)]
        answers = run(engine, requests)
        for events in answers:
            assert check(events)
            assert said(events)[:2] == ("", "")
        for events in answers[4:6]:
            assert {head[1] for head, _ in check(events)} == {"ski"}
        for events in answers[6:]:
            assert len(check(events)) == 1
            assert events[-1].reason is FinishReason.STOP


def test_the_calls_are_the_same_whatever_the_batch(make_engine, folders):
    with make_engine(folders["HERMES"]) as engine:
        alone = [said(run(engine, [asked(seed)])[0])[2] for seed in range(3)]
        free = Request("one two", Sampling(temperature=1, seed=9), Stopping(max_tokens=60))
        together = run(engine, [asked(0), free, asked(1), free, asked(2)])
        calls = [said(together[i])[2] for i in (0, 2, 4)]
        for one, other in zip(alone, calls, strict=True):
            assert [(head[1], arguments) for head, arguments in one] == [
                (head[1], arguments) for head, arguments in other
            ]


def test_reasoning_comes_before_a_call_that_must_be_made(make_engine, folders):
    with make_engine(folders["QWEN_THINK"]) as engine:
        answers = run(engine, [asked(seed, max_tokens=200) for seed in range(8)])
        for events in answers:
            text, reasoning, calls = said(events)
            assert text == ""
            assert reasoning or calls
            check(events)


@pytest.mark.parametrize("name", NAMES)
def test_one_call_at_most_after_any_text(make_engine, folders, name):
    with make_engine(folders[name], reasoning_format="none") as engine:
        chat = {"tool_choice": "auto", "parallel_tool_calls": False}
        for events in run(engine, [asked(seed, max_tokens=60, **chat) for seed in range(6)]):
            assert len(check(events)) <= 1


@pytest.mark.parametrize("name", NAMES)
def test_text_beside_tools_is_what_the_constraint_says(make_engine, folders, name):
    constraint = Constraint(choices=("yes", "no"))
    with make_engine(folders[name], reasoning_format="none") as engine:
        requests = [asked(seed, constraint, tool_choice="auto") for seed in range(8)]
        kinds = set()
        for events in run(engine, requests):
            text, _, calls = said(events)
            assert bool(calls) != (text in ("yes", "no"))
            check(events)
            kinds.add(bool(calls))
        assert kinds


def test_strict_tools_are_followed_where_the_model_calls(make_engine, folders):
    tools = [{**tool, "function": {**tool["function"], "strict": True}} for tool in TOOLS]
    with make_engine(folders["HERMES"]) as engine:
        constraint = Constraint(json_schema={"const": 1})
        requests = [asked(seed, constraint, tools=tools, tool_choice="auto") for seed in range(6)]
        for events in run(engine, requests):
            text, _, calls = said(events)
            assert (text == "1") != bool(calls)
            check(events)


@pytest.mark.parametrize(
    ("fields", "field", "reason"),
    [
        ({"constraint": Constraint(json_object=True)}, "constraint", Reason.BAD_PARAMETER),
        (
            {
                "constraint": Constraint(regex="a"),
                "tool_choice": "auto",
                "parallel_tool_calls": False,
            },
            "constraint.regex",
            Reason.UNSUPPORTED,
        ),
        ({"wrong": {"type": "nothing"}}, "chat.tools[1].parameters_json", Reason.BAD_PARAMETER),
        ({"wrong": {"type": "string"}}, "chat.tools[1].parameters_json", Reason.BAD_PARAMETER),
        ({"wrong": {"enum": ["x" * 300_000]}}, "chat.tools", Reason.BAD_PARAMETER),
    ],
)
def test_what_cannot_be_held_is_refused_by_its_field(make_engine, folders, fields, field, reason):
    wrong = fields.pop("wrong", None)
    tools = [TOOLS[0], {"type": "function", "function": {"name": "x", "parameters": wrong}}]
    with make_engine(folders["HERMES"]) as engine, pytest.raises(RequestError) as caught:
        engine.add(asked(**fields, **({"tools": tools} if wrong else {})))
    assert (caught.value.field, caught.value.reason) == (field, reason)


def test_a_model_without_a_known_form_of_calls_refuses_to_make_them(make_engine, folders):
    with make_engine(folders["HERMES"], tool_format="none") as engine:
        with pytest.raises(RequestError, match="--tool-format") as caught:
            engine.add(asked())
        assert (caught.value.field, caught.value.reason) == (
            "chat.tool_choice",
            Reason.UNSUPPORTED,
        )
        run(engine, [asked(tool_choice="auto", max_tokens=3)])


def test_a_cancel_amid_a_call_leaves_nothing(make_engine, folders):
    with make_engine(folders["HERMES"]) as engine:
        accepted = engine.add(asked(n=2))
        for _ in range(30):
            engine.step()
        assert len(engine.runner.sampler.constraints) == 2
        engine.abort(accepted.request_id)
        while engine.has_work:
            engine.step()
        assert len(engine.runner.sampler.constraints) == 0


TEXTS = {
    "type": "object",
    "properties": {
        "long": {"type": "string", "minLength": 3, "maxLength": 8},
        "perhaps": {"anyOf": [{"type": "string", "maxLength": 2}, {"type": "null"}]},
        "one": {"const": "größe", "description": "text"},
        "some": {"$ref": "#/$defs/some"},
        "never": False,
        "either": {"type": ["string", "integer"], "enum": ["1", "a", 1]},
    },
    "required": ["long", "perhaps", "one", "some", "either"],
    "additionalProperties": False,
    "$defs": {"some": {"type": "string", "enum": ["a", "bc", "def"], "minLength": 2}},
}


def one_tool(parameters, **function):
    return [{"type": "function", "function": {"name": "x", "parameters": parameters, **function}}]


def test_texts_between_tags_follow_what_the_schema_says_of_them(make_engine, folders):
    with make_engine(folders["ITEMS"], reasoning_format="none") as engine:
        tools = one_tool(TEXTS)
        num = 0
        for events in run(engine, [asked(seed, tools=tools) for seed in range(8)]):
            _, _, calls = said(events)
            complete = calls if events[-1].reason is FinishReason.STOP else calls[:-1]
            for _, arguments in complete:
                jsonschema.validate(json.loads(arguments), TEXTS)
                num += 1
        assert num


UNHELD = [
    ({"properties": {"x": {"type": "string", "pattern": "^a+$"}}}, "pattern"),
    ({"properties": {"x": {"type": "string", "format": "date"}}}, "format"),
    ({"properties": {"x": {"minimun": 3}}}, "minimun"),
    ({"properties": {"x": {"not": {"type": "string"}}}}, "not"),
    ({"properties": {"x": {"anyOf": [{"maxLength": 2}, {"type": "integer"}]}}}, "anyOf"),
    ({"properties": {"x": {"$ref": "#/properties/x"}}}, "references"),
    ({"properties": {"x": {"type": "string", "minLength": "3"}}}, "minLength"),
    ({"properties": {"x": {"type": "string", "enum": ["a"], "minLength": 2}}}, "no text"),
    ({"properties": {"x": False}, "required": ["x"]}, "no value"),
    ({"properties": {}, "required": ["y"]}, "required"),
    ({"properties": {}, "minProperties": 1}, "minProperties"),
    ({"properties": {"x": {}, "y": {}}, "maxProperties": 1}, "maxProperties"),
    ({"properties": {}, "patternProperties": {"x": {}}}, "patternProperties"),
    ({"anyOf": [{"required": ["x"]}], "properties": {"x": {}}}, "anyOf"),
    ({"properties": {}, "aditionalProperties": False}, "aditionalProperties"),
]


@pytest.mark.parametrize(("schema", "named"), UNHELD, ids=[named for _, named in UNHELD])
def test_what_is_not_held_between_tags_is_refused_by_name(make_engine, folders, schema, named):
    with make_engine(folders["ITEMS"], reasoning_format="none") as engine:
        for chat in (
            {"tools": one_tool(schema)},
            {"tools": one_tool(schema, strict=True), "tool_choice": "auto"},
        ):
            with pytest.raises(RequestError, match=named) as caught:
                engine.add(asked(**chat))
            assert caught.value.field == "chat.tools[0].parameters_json"
            assert caught.value.reason is Reason.BAD_PARAMETER


def test_where_no_call_needs_to_follow_its_schema_a_text_may_be_any(make_engine, folders):
    tools = one_tool({"properties": {"x": {"type": "string", "pattern": "^a+$"}}})
    with make_engine(folders["ITEMS"], reasoning_format="none") as engine:
        chat = {"tool_choice": "auto", "parallel_tool_calls": False}
        run(engine, [asked(tools=tools, max_tokens=3, **chat)])
