"""Constraints that were refused: sent again, they are refused at once, and for one tenant alone."""

import pytest
from chairlift import _core
from chairlift.api.constraints import Source
from chairlift.api.errors import Reason, RequestError
from chairlift.engine.prepare import refusals
from chairlift.engine.prepare.grammars import ConstraintPreparer
from chairlift.engine.prepare.refusals import KEPT_S, MAX_REFUSALS, MAX_TENANT_REFUSALS, Refusals
from chairlift.text.constraints.constraint_process import ConstraintProcess

TOKENS = [b"<end>", *(bytes([byte]) for byte in range(256))]
SCHEMA = Source("json_schema", '{"minimun": 3}')
ERROR = RequestError(Reason.BAD_PARAMETER, "constraint.json_schema: no", field="x")


def is_refused(kept, tenant, source):
    try:
        kept.check(tenant, source)
    except RequestError:
        return True
    return False


@pytest.mark.parametrize(
    "source",
    [SCHEMA, Source("regex", "a("), Source("json_schema", '{"type":"integer","multipleOf":99989}')],
    ids=["unknown keyword", "no pattern", "too long"],
)
def test_a_refused_constraint_is_compiled_once_for_a_tenant(monkeypatch, source):
    preparer = ConstraintPreparer(_core.TokenTable(TOKENS, [0]), (0,))
    compiled = []
    checked = ConstraintProcess.checked

    def noted(self, source):
        compiled.append(source)
        return checked(self, source)

    monkeypatch.setattr(ConstraintProcess, "checked", noted)
    errors = []
    for tenant in ("ann", "ann", "ann", "bob"):
        with pytest.raises(RequestError) as caught:
            preparer.compile(source, tenant)
        errors.append((caught.value.reason, caught.value.field, caught.value.message))
    assert len(set(errors)) == 1
    assert compiled == [source] * 2


def test_a_refusal_that_the_constraint_does_not_cause_is_not_kept():
    kept = Refusals()
    for reason in (Reason.ENGINE_BUSY, Reason.DRAINING, Reason.INTERNAL):
        kept.put("ann", SCHEMA, RequestError(reason, "no"))
    assert not len(kept)
    assert not is_refused(kept, "ann", SCHEMA)


def test_a_refused_constraint_is_tried_again_after_a_while():
    now = [5.0]
    kept = Refusals(clock=lambda: now[0])
    kept.put("ann", SCHEMA, ERROR)
    now[0] += KEPT_S - 1
    assert is_refused(kept, "ann", SCHEMA)
    now[0] += 1
    assert not is_refused(kept, "ann", SCHEMA)
    kept.put("ann", SCHEMA, ERROR)
    assert is_refused(kept, "ann", SCHEMA)
    assert len(kept) == 1


def test_the_same_text_in_another_field_is_another_constraint():
    kept = Refusals()
    kept.put("ann", SCHEMA, ERROR)
    assert not is_refused(kept, "ann", SCHEMA._replace(path="chat.tools[0].parameters_json"))
    assert not is_refused(kept, "ann", Source("lark", SCHEMA.text))
    assert not is_refused(kept, "ann", Source("choices", choices=(SCHEMA.text,)))
    assert not is_refused(kept, "bob", SCHEMA)


def test_refusals_have_a_bound_for_a_tenant_and_for_all():
    kept = Refusals()
    for number in range(3 * MAX_TENANT_REFUSALS):
        kept.put("ann", Source("regex", f"({number}"), ERROR)
    assert len(kept) == MAX_TENANT_REFUSALS
    assert not is_refused(kept, "ann", Source("regex", "(0"))
    assert is_refused(kept, "ann", Source("regex", f"({3 * MAX_TENANT_REFUSALS - 1}"))
    for number in range(2 * MAX_REFUSALS):
        kept.put(f"tenant {number}", SCHEMA, ERROR)
    assert len(kept) == MAX_REFUSALS
    assert len(kept._tenants) == MAX_REFUSALS


def test_a_bound_holds_where_it_is_small(monkeypatch):
    monkeypatch.setattr(refusals, "MAX_REFUSALS", 1)
    kept = Refusals()
    kept.put("ann", SCHEMA, ERROR)
    kept.put("bob", SCHEMA, ERROR)
    assert [is_refused(kept, name, SCHEMA) for name in ("ann", "bob")] == [False, True]
