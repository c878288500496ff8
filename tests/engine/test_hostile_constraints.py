"""Constraints that take all the time, memory or stack there is: refused, and the next one works."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from chairlift import _core
from chairlift.api.constraints import Source
from chairlift.api.errors import Reason, RequestError
from chairlift.api.interruption import Interruption
from chairlift.engine.prepare.grammars import ConstraintPreparer
from chairlift.text.constraints import constraint_process

TOKENS = [b"<end>", *(bytes([byte]) for byte in range(256))]


def new_preparer():
    return ConstraintPreparer(_core.TokenTable(TOKENS, [0]), (0,))


@pytest.fixture(scope="module")
def preparer():
    return new_preparer()


def references(length, part):
    """A schema whose definitions each refer to the next one."""
    names = {f"d{i}": part({"$ref": f"#/$defs/d{i + 1}"}) for i in range(length)}
    return json.dumps({"$ref": "#/$defs/d0", "$defs": {**names, f"d{length}": {"type": "null"}}})


def properties(own):
    return {"type": "object", "properties": {"x": own}}


def rules(length, rule):
    chain = [rule(i) for i in range(length)]
    return "\n".join(["start: r0", *chain, f'r{length}: "b"', f'T{length}: "b"'])


WIDE = {"type": "string", "pattern": "^(.*a.{20}b|.*c.{20}d)$"}
DIGITS = [{"type": "integer", "multipleOf": n} for n in (9973, 9967, 9949)]
HOSTILE = {
    "remainders": ("json_schema", '{"type":"integer","multipleOf":99999989}'),
    "two remainders": ("json_schema", json.dumps({"allOf": DIGITS[:2]})),
    "three remainders": ("json_schema", json.dumps({"allOf": DIGITS})),
    "references": ("json_schema", references(6000, properties)),
    "references and levels": (
        "json_schema",
        references(1500, lambda own: {"items": {"items": {"items": properties(own)}}}),
    ),
    "levels": ("json_schema", '{"items":' * 20_000 + "{}" + "}" * 20_000),
    "lists": ("json_schema", "[" * 200_000),
    "alternatives": (
        "json_schema",
        json.dumps({"allOf": [{"anyOf": [{"minLength": i}] * 9} for i in range(9)]}),
    ),
    "patterns of keys": (
        "json_schema",
        json.dumps({"patternProperties": {f"^{i}.*x{{9}}": {} for i in range(2000)}}),
    ),
    "pattern of keys": (
        "json_schema",
        json.dumps({"patternProperties": {"(.*a){30}": {}, "(.*b.{30}c)": {}}}),
    ),
    "length and pattern": ("json_schema", json.dumps({**WIDE, "minLength": 100_000})),
    "rules": ("lark", rules(9000, lambda i: f'r{i}: "a" r{i + 1}')),
    "rules of nothing": ("lark", rules(9000, lambda i: f"r{i}: r{i + 1}")),
    "terminals": ("lark", rules(9000, lambda i: f'T{i}: "a" T{i + 1}')),
    "brackets": ("lark", "start: " + "(" * 100_000 + '"a"' + ")" * 100_000),
    "schemas in a grammar": ("lark", "start: %json " + '{"items":' * 20_000),
    "reference in a grammar": (
        "lark",
        f"start: %json {references(6000, properties)}",
    ),
    "intersections": ("lark", "start: A\nA: /(.*a){300}/ & /(.*b){300}/ & ~/(.*c){300}/\n"),
    "groups": ("regex", "(" * 100_000 + "a" + ")" * 100_000),
    "repeated groups": ("regex", "(?:" * 240 + "a" + "){1,2}" * 240),
}
MAY_PASS = {
    "a long repetition": ("regex", "a{1,100000}"),
    "nested repetitions": ("regex", "(((a{1,100}){1,100}){1,100}){1,100}"),
    "repetitions in a grammar": ("lark", 'start: ((("a"{1,100}){1,100}){1,100}){1,100}'),
    "many alternatives": ("lark", "start: " + " | ".join(['"a"'] * 40_000)),
    "alternatives behind a text": ("lark", "start: " + " | ".join(['"a" "b"'] * 20_000)),
    "ambiguous": ("lark", 'start: s\ns: s s s | s s | "a" |'),
    "many properties": (
        "json_schema",
        json.dumps({"properties": {f"p{i}": {"type": "null"} for i in range(9000)}}),
    ),
    "many references": ("json_schema", references(900, properties)),
    "many rules": ("lark", rules(4000, lambda i: f'r{i}: "a" r{i + 1}')),
}


def compile_source(preparer, kind, text, tenant="one"):
    return preparer.compile(Source(kind, text), tenant)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_constraint_is_refused_by_its_field(preparer, name):
    kind, text = HOSTILE[name]
    with pytest.raises(RequestError) as refused:
        compile_source(preparer, kind, text)
    assert (refused.value.reason, refused.value.field) == (
        Reason.BAD_PARAMETER,
        f"constraint.{kind}",
    )
    assert refused.value.message.startswith(f"constraint.{kind}: ")
    assert len(refused.value.message) < 600
    assert "panic" not in refused.value.message
    assert compile_source(preparer, "regex", f"after {name}")


@pytest.mark.parametrize("name", MAY_PASS)
def test_a_large_constraint_is_compiled_or_refused(preparer, name):
    kind, text = MAY_PASS[name]
    try:
        grammar = compile_source(preparer, kind, text)
    except RequestError as refused:
        outcome = (refused.reason, refused.field)
    else:
        outcome = grammar.num_bytes > 0
    assert outcome in (True, (Reason.BAD_PARAMETER, f"constraint.{kind}"))


def test_memory_has_a_bound_that_is_named(monkeypatch):
    # The process reads the constant for itself: only the message is from here.
    monkeypatch.setattr(constraint_process, "MAX_MEMORY_BYTES", 2**20)
    with pytest.raises(RequestError, match="nests too deeply, or takes more than 1 MiB"):
        compile_source(new_preparer(), *HOSTILE["references and levels"])


def test_one_tenants_constraint_does_not_wait_for_another_ones():
    preparer = new_preparer()
    is_done = threading.Event()

    def hog():
        while not is_done.is_set():
            with pytest.raises(RequestError):
                compile_source(preparer, *HOSTILE["two remainders"], tenant="hog")

    with ThreadPoolExecutor(1) as threads:
        hogging = threads.submit(hog)
        try:
            for number in range(20):
                assert compile_source(preparer, "regex", f"[a-z]{number}", tenant="other")
        finally:
            is_done.set()
        hogging.result()


def test_work_that_is_interrupted_ends_and_so_does_its_process():
    preparer = new_preparer()
    compile_source(preparer, "regex", "up")
    interruption = Interruption()
    began = threading.Event()

    def work():
        began.set()
        return compile_source(preparer, *HOSTILE["two remainders"])

    with ThreadPoolExecutor(1) as threads:
        working = threads.submit(interruption.run, work)
        began.wait()
        interruption.interrupt()
        error = working.exception()
    # It was interrupted, or had used up its time just then.
    assert isinstance(error, RequestError)
    assert error.reason in (Reason.DRAINING, Reason.BAD_PARAMETER)
    later = Interruption()
    later.interrupt()
    with pytest.raises(RequestError) as refused:
        later.run(lambda: compile_source(preparer, "regex", "down"))
    assert refused.value.reason is Reason.DRAINING
    assert compile_source(preparer, "regex", "down")
