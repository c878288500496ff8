"""What is no constraint is refused; compiled grammars are kept per tenant, within bounds."""

import asyncio
import re
import threading

import pytest
from chairlift import _core
from chairlift.api.constraints import Source
from chairlift.api.errors import Reason, RequestError
from chairlift.api.types import Constraint, Finished, Request, Stopping
from chairlift.engine.async_engine import AsyncEngine
from chairlift.engine.prepare import grammars
from chairlift.engine.prepare.grammars import GrammarCache

from tests.engine.drive import assert_empty

TOKENS = [b"<end>", *(bytes([byte]) for byte in range(256))]


@pytest.fixture(scope="module")
def grammar():
    table = _core.TokenTable(TOKENS, [0])
    return _core.GrammarCompiler(table, [0]).compile("regex", "up")


def test_a_grammar_of_one_tenant_is_not_another_ones(grammar):
    cache, source = GrammarCache(), Source("regex", "up")
    cache.put("one", source, grammar)
    assert cache.get("one", source) is grammar
    assert cache.get("two", source) is None
    assert cache.get("", source) is None


def test_what_was_used_least_recently_goes_first(grammar, monkeypatch):
    monkeypatch.setattr(grammars, "MAX_TENANT_GRAMMARS", 3)
    cache = GrammarCache()
    sources = [Source("regex", str(i)) for i in range(4)]
    for source in sources[:3]:
        cache.put("one", source, grammar)
    cache.get("one", sources[0])
    cache.put("one", sources[3], grammar)
    kept = [cache.get("one", source) is not None for source in sources]
    assert kept == [True, False, True, True]
    assert len(cache) == 3


def test_all_tenants_together_have_a_bound(grammar, monkeypatch):
    monkeypatch.setattr(grammars, "MAX_GRAMMARS", 5)
    cache = GrammarCache()
    for tenant in range(20):
        for number in range(3):
            cache.put(str(tenant), Source("regex", str(number)), grammar)
    assert len(cache) == 5
    assert cache.get("19", Source("regex", "2")) is not None
    assert cache.get("0", Source("regex", "2")) is None


def test_memory_has_a_bound(grammar, monkeypatch):
    monkeypatch.setattr(grammars, "MAX_TENANT_BYTES", 2 * (grammar.num_bytes + 4196))
    cache = GrammarCache()
    for number in range(10):
        cache.put("one", Source("regex", str(number)), grammar)
    assert len(cache) == 2
    # The text that a grammar is found by is kept, too.
    cache.put("one", Source("regex", "0" * 4096), grammar)
    assert len(cache) == 1
    monkeypatch.setattr(grammars, "MAX_TENANT_BYTES", 1)
    cache.put("two", Source("regex", "0"), grammar)
    assert cache.get("two", Source("regex", "0")) is None


def test_a_grammar_is_compiled_once_for_a_tenant(make_engine, monkeypatch):
    engine = make_engine()
    preparer = engine.preparer
    request = Request([5], constraint=Constraint(choices=["up", "down"]), tenant="one")
    assert not preparer.is_quick(request)
    first = engine.prepare(request).grammar
    assert preparer.is_quick(request)
    assert engine.prepare(request).grammar is first
    other = Request([5], constraint=request.constraint, tenant="two")
    assert not preparer.is_quick(other)
    assert engine.prepare(other).grammar is not first


async def test_a_grammar_is_compiled_beside_the_event_loop(make_engine, monkeypatch):
    engine = AsyncEngine.of(make_engine())
    await engine.start()
    preparer, may_go_on = engine.engine.preparer, threading.Event()
    compile_grammar = preparer._constraints.compile

    def slow(source, tenant):
        assert may_go_on.wait(60)
        return compile_grammar(source, tenant)

    monkeypatch.setattr(preparer._constraints, "compile", slow)
    constrained = Request([5, 6], constraint=Constraint(choices=["up"]), tenant="one")
    first = asyncio.create_task(engine.prepare(constrained))
    free = Request([5, 6], stopping=Stopping(max_tokens=3, ignore_eos=True), tenant="two")
    events = [event async for event in engine.generate(free)]
    assert isinstance(events[-1], Finished)
    assert not first.done()
    may_go_on.set()
    assert (await first).grammar is not None
    await engine.stop()


@pytest.mark.parametrize(
    ("constraint", "field", "message"),
    [
        (Constraint(), "constraint", "expected one of json_schema"),
        (Constraint(regex="a", lark="start: A"), "constraint", "got regex and lark"),
        (Constraint(json_schema={"type": "strange"}), "constraint.json_schema", "strange"),
        (Constraint(json_schema="{"), "constraint.json_schema", "not JSON"),
        (Constraint(json_schema={1, 2}), "constraint.json_schema", "a mapping or a text"),
        (Constraint(json_schema={"enum": [{1}]}), "constraint.json_schema", "JSON can write"),
        (Constraint(json_schema={"const": float("nan")}), "constraint.json_schema", "JSON can"),
        (Constraint(regex="a("), "constraint.regex", "unclosed group"),
        (Constraint(regex=3), "constraint.regex", "expected text"),
        (Constraint(regex="\ud800"), "constraint.regex", "lone surrogate"),
        (Constraint(lark="start: missing"), "constraint.lark", "missing"),
        (Constraint(choices=["a", ""]), "constraint.choices", "1 to 262144 bytes"),
        (Constraint(choices=["a"] * 2000), "constraint.choices", "at most 1024"),
        (Constraint(json_object="yes"), "constraint.json_object", "True or False"),
        (Constraint(regex="a" * 300_000), "constraint.regex", "at most 262144 bytes"),
        ("up", "constraint", "a Constraint"),
    ],
)
def test_what_is_no_constraint_is_refused_by_its_field(engine, constraint, field, message):
    with pytest.raises(RequestError, match=re.escape(message)) as caught:
        engine.add(Request("a secret prompt", constraint=constraint))
    assert (caught.value.reason, caught.value.field) == (Reason.BAD_PARAMETER, field)
    assert "secret" not in caught.value.message
    assert_empty(engine)
