"""Models with a recurrent state: no request finds another's state, or its own of another time."""

from dataclasses import replace

import pytest
from chairlift import Engine
from chairlift.api.errors import ConfigError, Reason
from chairlift.api.types import PrefixCache, Request, Sampling, Stopping
from chairlift.engine.loading.load import replan_memory
from chairlift.model.config import ModelConfig
from chairlift.model.parts.recurrent import num_states, state_bytes

from tests.engine import tiny_model
from tests.engine.drive import (
    assert_empty,
    cancel_at_random,
    drain,
    end,
    greedy,
    run,
    token_ids,
)
from tests.engine.test_faults import break_forward, poison_prompt

HYBRIDS = {
    "delta": "qwen3.5, heads that share keys",
    "mamba beside attention": "falcon h1, multipliers, tied",
    "blocks": "nemotron h, experts, attention last",
}
NUM_TOKENS = 16
PROMPTS = tiny_model.prompts(vocab_size=350)


@pytest.fixture(scope="module", params=HYBRIDS)
def hybrid(request, tmp_path_factory):
    """Return the folder of a model with recurrent states, convolutions and attention.

    In the second each layer has all three.
    """
    folder = tmp_path_factory.mktemp("hybrid")
    tiny_model.write_family(folder, HYBRIDS[request.param])
    return folder


@pytest.fixture(scope="module")
def alone(hybrid):
    """Return what each prompt is answered alone, in an engine of its own."""
    answers = []
    for prompt in PROMPTS:
        with Engine(hybrid, drafts="off", max_num_batched_tokens=128) as engine:
            answers.append(token_ids(run(engine, wanted([prompt]))[0]))
    return answers


def wanted(prompts, num_tokens=NUM_TOKENS):
    return [greedy(prompt, num_tokens, ignore_eos=True) for prompt in prompts]


@pytest.mark.parametrize("budget", [8, 24, 256])
@pytest.mark.parametrize("steps_in_flight", [1, 2])
def test_answers_do_not_depend_on_chunks_rows_and_preemption(
    hybrid, make_engine, kv_blocks, alone, budget, steps_in_flight
):
    engine = make_engine(
        hybrid,
        max_num_batched_tokens=budget,
        steps_in_flight=steps_in_flight,
        kv_cache_memory=kv_blocks(16, hybrid),
    )
    for _ in range(2):
        answers = run(engine, wanted(PROMPTS))
        assert [token_ids(events) for events in answers] == alone
    # With a small budget few requests run at a time.
    assert engine.load().num_preemptions > 0 or budget == 8
    assert_empty(engine)


@pytest.mark.parametrize("quantize", ["int8", "int4"])
def test_quantized_layers_do_not_depend_on_the_batch(hybrid, make_engine, quantize):
    single = make_engine(hybrid, quantize=quantize, max_num_seqs=1)
    batched = make_engine(hybrid, quantize=quantize, max_num_batched_tokens=24)
    answers = [[token_ids(e) for e in run(engine, wanted(PROMPTS))] for engine in (single, batched)]
    assert answers[0] == answers[1]


def test_cancelled_requests_leave_no_state_behind(hybrid, make_engine, clock):
    engine = make_engine(hybrid, max_num_seqs=3, max_num_batched_tokens=16)
    answers = [token_ids(run(engine, [greedy(prompt, 12)])[0]) for prompt in PROMPTS]
    cancel_at_random(engine, clock, PROMPTS, answers, 12)


def test_a_step_that_fails_once_is_computed_from_the_start(hybrid, make_engine, alone):
    for failing in (2, 5, 9):
        engine = make_engine(hybrid, max_num_batched_tokens=32)
        break_forward(engine, lambda call, failing=failing: call == failing)
        answers = run(engine, wanted(PROMPTS))
        assert [token_ids(events) for events in answers] == alone
        assert_empty(engine)


def test_a_prompt_the_model_fails_for_fails_alone(hybrid, make_engine, alone):
    engine = make_engine(hybrid)
    poison = max({*range(300)}.difference(*PROMPTS, *alone))
    poison_prompt(engine, poison)
    prompts = [*PROMPTS[:3], [*PROMPTS[3], poison], *PROMPTS[4:]]
    answers = run(engine, wanted(prompts))
    assert end(answers[3]).reason is Reason.STEP_FAILED
    others = [token_ids(events) for i, events in enumerate(answers) if i != 3]
    assert others == [tokens for i, tokens in enumerate(alone) if i != 3]
    assert_empty(engine)


def test_steps_that_pass_in_parts_alone_come_to_an_end(hybrid, make_engine, alone):
    engine = make_engine(hybrid)
    forward = engine.runner.model.forward

    def small_only(input_ids, metadata, *args):
        if len(metadata.rows) > 2:
            raise MemoryError
        return forward(input_ids, metadata, *args)

    engine.runner.model.forward = small_only
    answers = run(engine, wanted(PROMPTS[:5]))
    assert {end(events).reason for events in answers} == {Reason.STEP_FAILED}
    assert_empty(engine)
    assert [token_ids(e) for e in run(engine, wanted(PROMPTS[:2]))] == alone[:2]


def test_a_probe_leaves_every_state_as_it_is(hybrid, make_engine, alone):
    engine = make_engine(hybrid)
    request_id = engine.add(wanted(PROMPTS[5:6])[0]).request_id
    got = []
    for _ in range(5):
        got += token_ids(engine.step())
        engine.runner.probe()
    assert got + token_ids(drain(engine)[request_id]) == alone[5]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"drafts": "lookup"}, "drafts: expected off for a model with a recurrent state"),
        ({"swap_memory": 2**20}, "swap_memory: expected off for a model with a recurrent state"),
        ({"max_adapters": 2}, "max_adapters: expected 0 for a model with a recurrent state"),
    ],
)
def test_what_a_state_does_not_support_is_refused_by_name(hybrid, make_engine, setting, message):
    with pytest.raises(ConfigError, match=message):
        make_engine(hybrid, **setting)


def test_snapshots_are_refused_where_no_request_would_begin_with_one(hybrid, tiny, make_engine):
    expected = "state_snapshots: expected 0 without the prefix cache, got 3"
    with pytest.raises(ConfigError, match=expected):
        make_engine(hybrid, prefix_cache=False, state_snapshots=3)
    expected = "state_snapshots: expected none for a model without recurrent states, got 3"
    with pytest.raises(ConfigError, match=expected):
        make_engine(tiny.folder, state_snapshots=3)
    with pytest.raises(ConfigError, match=r"^memory: .*, state_snapshots or max_num"):
        make_engine(hybrid, state_snapshots=10**12)


@pytest.mark.parametrize("steps_in_flight", [1, 2])
@pytest.mark.parametrize("length", [1, 2, 17, 60])
def test_each_of_several_answers_is_what_a_seed_draws_alone(
    hybrid, make_engine, steps_in_flight, length
):
    engine = make_engine(hybrid, max_num_batched_tokens=24, steps_in_flight=steps_in_flight)
    prompt = [7 * i % 300 for i in range(length)]

    def drawn(sampling, *, reads_cache=True):
        stopping = Stopping(max_tokens=NUM_TOKENS, ignore_eos=True)
        cache = PrefixCache(read=reads_cache)
        return run(engine, [Request(prompt, sampling, stopping, prefix_cache=cache)])[0]

    together = drawn(Sampling(temperature=1.0, seed=5, n=4), reads_cache=False)
    answers = [token_ids([e for e in together if e.index == i]) for i in range(4)]
    # A prefix hit changes none of them, and the first is that of a request for one.
    again = drawn(Sampling(temperature=1.0, seed=5, n=4))
    assert [token_ids([e for e in again if e.index == i]) for i in range(4)] == answers
    assert token_ids(drawn(Sampling(temperature=1.0, seed=5))) == answers[0]
    assert len({tuple(answer) for answer in answers}) > 1
    assert_empty(engine)


def cached_tokens(events):
    return end(events).usage.cached_tokens


def test_the_second_turn_of_a_conversation_computes_only_its_new_tokens(hybrid, make_engine):
    cold, engine = make_engine(hybrid, prefix_cache=False), make_engine(hybrid)
    history, num_computed = PROMPTS[5][:70], 0
    for turn in range(4):
        request = wanted([history], 20)
        answer = run(engine, request)[0]
        assert token_ids(answer) == token_ids(run(cold, request)[0])
        assert cached_tokens(answer) == num_computed // 16 * 16
        num_computed = len(history) + 19
        history = [*history, *token_ids(answer), *range(5 * turn, 5 * turn + 5)]
    assert engine.load().num_state_snapshots > 0
    assert cold.load().num_state_snapshots == 0
    assert_empty(engine)


def test_prompts_that_branch_off_begin_at_the_junction(hybrid, make_engine, alone):
    engine = make_engine(hybrid)
    shared = [11 * i % 300 for i in range(50)]
    hits = []
    for own in range(3):
        prompt = [*shared, *(13 * i % 290 + own for i in range(30))]
        hits.append(cached_tokens(run(engine, wanted([prompt]))[0]))
    assert hits == [0, 0, 48]


@pytest.mark.parametrize("num_snapshots", [0, 1, 3, 64])
def test_prefix_hits_preemption_and_few_snapshots_change_no_token(
    hybrid, make_engine, kv_blocks, num_snapshots
):
    shared = PROMPTS[5][:40]
    prompts = [[*shared, *prompt] for prompt in PROMPTS]
    with Engine(hybrid, drafts="off", prefix_cache=False) as cold:
        expected = [token_ids(run(cold, wanted([prompt]))[0]) for prompt in prompts]
    engine = make_engine(
        hybrid,
        max_num_batched_tokens=128,
        kv_cache_memory=kv_blocks(16, hybrid),
        state_snapshots=num_snapshots,
    )
    for _ in range(3):
        answers = run(engine, wanted(prompts))
        assert [token_ids(events) for events in answers] == expected
        assert engine.load().num_state_snapshots <= num_snapshots
    assert engine.load().num_preemptions > 0
    # The one that there is memory for is another prompt's by the time.
    assert (engine.load().num_prefix_hits > 0) == (num_snapshots > 1)
    assert_empty(engine)


def test_a_state_belongs_to_one_tenant(hybrid, make_engine):
    engine = make_engine(hybrid)
    request = wanted([PROMPTS[5][:70]])[0]
    first, other = (
        cached_tokens(run(engine, [replace(request, tenant=tenant)])[0]) for tenant in "ab"
    )
    same = cached_tokens(run(engine, [replace(request, tenant="a")])[0])
    assert (first, other, same) == (0, 0, 64)


def test_the_states_of_all_rows_are_planned_and_allocated(hybrid, make_engine):
    engine = make_engine(hybrid, max_num_seqs=5)
    plan, _ = replan_memory(engine.config, engine.model_config)
    states = engine.runner._states
    allocated = sum(state.nbytes for layer in states for state in layer)
    assert plan.state_bytes == allocated > 0
    num_rows = num_states(5) + plan.num_state_snapshots
    assert plan.num_state_snapshots == engine.num_state_snapshots > 0
    assert plan.state_bytes == state_bytes(ModelConfig.load(hybrid).spec, num_rows)
    assert plan.total_bytes > plan.weight_bytes + plan.kv_cache_bytes + plan.state_bytes
