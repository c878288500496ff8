"""Answers are within their constraints, whatever else happens to them, and end where these end."""

import json
import re
from dataclasses import replace

import pytest
import torch
from chairlift.api.errors import Reason
from chairlift.api.types import (
    Change,
    Constraint,
    Failed,
    Finished,
    FinishReason,
    Output,
    Request,
    Sampling,
    Stopping,
)

from tests.engine import tiny_model
from tests.engine.drive import assert_empty, drain, end, greedy, run, text, token_ids
from tests.engine.test_faults import break_forward
from tests.engine.tiny_model import prompts

SCHEMA = {
    "type": "object",
    "properties": {
        "lift": {"type": "string", "maxLength": 6},
        "open": {"type": "boolean"},
        "chairs": {"type": "array", "maxItems": 3, "items": {"type": "integer", "maximum": 99}},
    },
    "required": ["lift", "open"],
    "additionalProperties": False,
}
PLATE = r"[A-Z]{2}-[0-9]{3,6}( (north|south))?"
CHOICES = ("up", "up and down", 'a "chair"', "größe")


def is_plate(answer):
    return re.fullmatch(PLATE, answer) is not None


def fits_schema(answer):
    value = json.loads(answer)
    chairs = value.get("chairs", [])
    return (
        set(value) <= {"lift", "open", "chairs"}
        and len(value["lift"]) <= 6
        and value["open"] in (True, False)
        and len(chairs) <= 3
        and all(type(chair) is int and chair <= 99 for chair in chairs)
    )


def is_sum(answer):
    return re.fullmatch(r"[0-9]{1,3}(\+[0-9]{1,3}){0,4}", answer) is not None


KINDS = {
    "schema": (Constraint(json_schema=SCHEMA), fits_schema),
    "regex": (Constraint(regex=PLATE), is_plate),
    "choices": (Constraint(choices=CHOICES), CHOICES.__contains__),
    "lark": (
        Constraint(lark='start: number ("+" number){0,4}\nnumber: /[0-9]{1,3}/'),
        is_sum,
    ),
    "free": (None, lambda answer: True),
}
MAX_TOKENS = 120


def requests(**sampling):
    """Requests with every kind of constraint, and without, in turn."""
    kinds = list(KINDS.values())
    drawn = {"temperature": 1.0, **sampling}
    return [
        Request(
            prompt,
            Sampling(seed=1000 + i, **drawn),
            Stopping(max_tokens=MAX_TOKENS if i % 5 < 4 else 12),
            Output(logprobs=True),
            constraint=kinds[i % 5][0],
        )
        for i, prompt in enumerate([*prompts(), *prompts()])
    ]


def check(answers):
    """Every answer that has stopped is within its constraint; return how many have."""
    kinds, num_stopped = list(KINDS.values()), 0
    for i, events in enumerate(answers):
        finished = end(events)
        assert isinstance(finished, Finished), finished
        if finished.reason is FinishReason.STOP:
            num_stopped += 1
            assert kinds[i % 5][1](text(events)), (i, text(events))
    return num_stopped


@pytest.fixture(scope="module")
def alone(tiny):
    """The tokens of each request that runs alone, without drafts."""
    from chairlift.engine.engine import Engine

    engine = Engine(tiny.folder, max_num_seqs=8, max_num_batched_tokens=64, drafts="off")
    answers = [run(engine, [request])[0] for request in requests()]
    assert check(answers) >= 10
    return [token_ids(events) for events in answers]


@pytest.mark.parametrize("drafts", ["off", "lookup"])
@pytest.mark.parametrize(
    "memory", [{}, {"num_blocks": 20}, {"num_blocks": 20, "host_blocks": 40}], ids=str
)
def test_answers_are_those_alone_and_without_drafts(make_engine, kv_blocks, alone, drafts, memory):
    settings = {}
    if memory:
        settings["kv_cache_memory"] = kv_blocks(memory["num_blocks"])
        settings["swap_memory"] = kv_blocks(memory.get("host_blocks", 0))
    engine = make_engine(drafts=drafts, **settings)
    answers = run(engine, requests())
    assert [token_ids(events) for events in answers] == alone
    assert (engine.load().num_preemptions > 0) == bool(memory)
    assert len(engine.runner.sampler.constraints) == 0
    assert_empty(engine)


def test_forced_tokens_save_steps(make_engine):
    long = Constraint(regex="(lift|chair) stops at the top of the slope[.!]")
    request = replace(greedy(prompts()[0], 60), constraint=long)

    def num_steps(drafts):
        engine, steps = make_engine(drafts=drafts), []
        engine.watch_steps(steps.append)
        (events,) = run(engine, [request])
        assert re.fullmatch(long.regex, text(events))
        return len(steps)

    assert num_steps("lookup") < num_steps("off") / 2


def test_a_constraint_changes_no_answer_beside_it(make_engine):
    def free(constraint):
        wanted = [greedy(prompt, 20, ignore_eos=True) for prompt in prompts()]
        wanted[1::2] = [replace(request, constraint=constraint) for request in wanted[1::2]]
        return [token_ids(events) for events in run(make_engine(), wanted)][::2]

    assert free(None) == free(Constraint(regex="[0-9]{30}"))


def test_each_of_several_answers_follows_the_constraint_on_its_own(make_engine):
    request = replace(requests(n=4)[0], constraint=Constraint(regex=PLATE))
    for drafts in ("off", "lookup"):
        engine = make_engine(drafts=drafts)
        (answers,) = [
            engine.generate(request.prompt, request.sampling, constraint=request.constraint)
        ]
        texts = [answer.text for answer in answers]
        assert all(map(is_plate, texts))
        assert len(set(texts)) > 1
        assert len(engine.runner.sampler.constraints) == 0


def answer(engine, prompt=(5, 6, 7), **parts):
    """The text and the last event of one request."""
    (events,) = run(engine, [Request(list(prompt), **{"sampling": Sampling(seed=1), **parts})])
    return text(events), end(events)


def test_a_constraint_that_is_complete_ends_the_answer(engine):
    for stopping in (
        Stopping(max_tokens=20),
        Stopping(max_tokens=20, min_tokens=15),
        Stopping(max_tokens=20, ignore_eos=True),
        Stopping(max_tokens=20, min_tokens=15, ignore_eos=True),
    ):
        got, finished = answer(engine, constraint=Constraint(regex="up"), stopping=stopping)
        assert (got, finished.reason) == ("up", FinishReason.STOP)
        assert finished.stop_token_id == tiny_model.EOS


def test_an_answer_goes_on_past_where_it_may_end_if_it_must(engine):
    constraint = Constraint(regex="a(b{0,9})")
    favour_eos = Sampling(temperature=0, logit_bias={tiny_model.EOS: 100.0})

    def got(**stopping):
        asked = Stopping(max_tokens=40, **stopping)
        return answer(engine, constraint=constraint, sampling=favour_eos, stopping=asked)[0]

    assert got() == "a"
    assert len(got(min_tokens=4)) >= 4
    assert got(ignore_eos=True) == "a" + "b" * 9


def test_a_stop_string_ends_an_answer_amid_its_constraint(engine):
    constraint = Constraint(regex="[0-9]{3}:[0-9]{3}")
    got, finished = answer(engine, constraint=constraint, stopping=Stopping(stop=[":"]))
    assert re.fullmatch("[0-9]{3}", got)
    assert (finished.reason, finished.stop) == (FinishReason.STOP, ":")


def test_a_limit_ends_an_answer_amid_its_constraint(engine):
    got, finished = answer(
        engine, constraint=Constraint(regex="[a-z]{50}"), stopping=Stopping(max_tokens=5)
    )
    assert finished.reason is FinishReason.LENGTH
    assert re.fullmatch("[a-z]{5,49}", got)


def test_biases_and_bans_hold_within_a_constraint(engine):
    ids = {text: engine.tokenizer.encode(text)[0] for text in ("1", "2", "3")}
    digit = Constraint(regex="[123]")
    biased = Sampling(temperature=0, logit_bias={ids["2"]: 50.0})
    assert answer(engine, constraint=digit, sampling=biased)[0] == "2"
    banned = Sampling(seed=3, banned_token_ids=[ids["1"], ids["2"]])
    assert answer(engine, constraint=digit, sampling=banned)[0] == "3"


def test_a_request_for_which_no_token_is_left_fails_alone(make_engine):
    engine = make_engine()
    ids = [engine.tokenizer.encode(text)[0] for text in "12"]
    wanted = [greedy(prompt, 20) for prompt in prompts()]
    expected = [token_ids(events) for events in run(engine, wanted)]
    wanted[3] = replace(
        wanted[3],
        constraint=Constraint(regex="up[12]"),
        sampling=Sampling(seed=1, banned_token_ids=ids),
    )
    answers = run(engine, wanted)
    failed = end(answers[3])
    assert isinstance(failed, Failed)
    assert failed.reason is Reason.NO_TOKEN_LEFT
    assert text(answers[3]) == "up"
    others = [i for i in range(8) if i != 3]
    assert [token_ids(answers[i]) for i in others] == [expected[i] for i in others]
    assert_empty(engine)


def test_an_update_changes_where_an_answer_may_end(engine):
    constraint = Constraint(regex="a(b{0,30})")
    sampling = Sampling(temperature=0, logit_bias={tiny_model.EOS: 100.0})
    held = Request([5], sampling, Stopping(max_tokens=60, ignore_eos=True), constraint=constraint)
    accepted = engine.add(held)
    events = [event for _ in range(6) for event in engine.step()]
    assert engine.change(accepted.request_id, Change(stopping=Stopping(max_tokens=60)))
    events += drain(engine)[accepted.request_id]
    assert end(events).reason is FinishReason.STOP
    assert 1 < len(text(events)) < 30


def test_cancelled_requests_leave_no_constraint(make_engine):
    engine = make_engine(max_num_seqs=4)
    long = [replace(greedy(p, 100), constraint=Constraint(regex="[a-z]{400}")) for p in prompts()]
    ids = [engine.add(request).request_id for request in long]
    for _ in range(5):
        engine.step()
    assert len(engine.runner.sampler.constraints) == 8
    for request_id in ids:
        assert engine.abort(request_id)
    drain(engine)
    assert len(engine.runner.sampler.constraints) == 0
    assert_empty(engine)


def test_a_paused_answer_goes_on_where_it_was(make_engine, alone):
    engine = make_engine(drafts="lookup")
    accepted = engine.add(requests()[0])
    events = [event for _ in range(4) for event in engine.step()]
    engine.change(accepted.request_id, Change(paused=True))
    events += [event for _ in range(3) for event in engine.step()]
    engine.change(accepted.request_id, Change(paused=False))
    events += drain(engine)[accepted.request_id]
    assert token_ids(events) == alone[0]


@pytest.mark.parametrize("drafts", ["off", "lookup"])
def test_a_step_that_fails_is_computed_again_within_constraints(make_engine, alone, drafts):
    engine = make_engine(drafts=drafts)
    break_forward(engine, lambda call: call in (4, 9, 15, 16))
    answers = run(engine, requests())
    assert [token_ids(events) for events in answers] == alone
    assert_empty(engine)


def test_wrong_drafts_change_nothing(make_engine, alone):
    engine = make_engine(drafts="lookup", max_num_batched_tokens=256)
    update = engine.stepper._finish

    def with_nonsense(step):
        output = update(step)
        for number, event in enumerate(output.events):
            if not isinstance(event, engine_events()):
                engine.stepper.core.scheduler.draft(
                    event.request_id, [(7 * number + i) % 300 for i in range(5)], event.index
                )
        return output

    engine.stepper._finish = with_nonsense
    answers = run(engine, requests())
    assert [token_ids(events) for events in answers] == alone


def engine_events():
    from chairlift import _core

    return (_core.FinishedEvent, _core.FailedEvent)


class Wrong:
    """Constraints whose masks a planted bug makes wrong."""

    def __init__(self, constraints, bug):
        self._constraints = constraints
        self._bug = bug
        self._previous = None

    def __getattr__(self, name):
        return getattr(self._constraints, name)

    def start(self, slots, position, last_tokens):
        if self._bug == "leaks":
            slots, position, last_tokens = (
                inputs[:1].expand(len(inputs)).contiguous()
                for inputs in (slots, position, last_tokens)
            )
            return self._constraints.start(slots, position, last_tokens)
        masks = self._constraints.start(slots, position, last_tokens)
        previous, self._previous = self._previous, masks
        is_like = previous is not None and len(previous.allowed()) == len(slots)
        return previous if self._bug == "lags" and is_like else masks


@pytest.mark.parametrize("bug", ["lags", "leaks"])
def test_masks_of_another_step_or_row_are_noticed(make_engine, alone, bug):
    engine = make_engine()
    sampler = engine.runner.sampler
    sampler.constraints = Wrong(sampler.constraints, bug)
    answers = run(engine, requests()[:5])
    assert [token_ids(events) for events in answers] != alone[:5]


def test_masks_hold_where_a_vocabulary_is_wider_than_its_tokenizer(engine):
    """Ids that the tokenizer does not have are never drawn within a constraint."""
    sample = engine.runner.sampler.sample

    def favour_unknown(logits, *arguments, **others):
        logits[:, -5:] = 1e5
        return sample(logits, *arguments, **others)

    engine.runner.sampler.sample = favour_unknown
    got, finished = answer(engine, constraint=Constraint(regex=PLATE))
    assert is_plate(got)
    assert finished.reason is FinishReason.STOP


def test_a_json_object_is_parsed_as_one(make_engine):
    engine = make_engine(drafts="lookup")
    wanted = [
        Request(
            p, Sampling(seed=i), Stopping(max_tokens=200), constraint=Constraint(json_object=True)
        )
        for i, p in enumerate(prompts())
    ]
    stopped = [e for e in run(engine, wanted) if end(e).reason is FinishReason.STOP]
    assert stopped
    assert all(isinstance(json.loads(text(events)), dict) for events in stopped)


def test_rows_without_a_constraint_start_no_masks(engine):
    zero = torch.zeros(3, dtype=torch.int32)
    assert engine.runner.sampler.constraints.start(zero, zero, zero) is None
