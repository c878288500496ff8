"""Models with recurrent states on several processes: each rank has the states of its heads."""

import pytest
from chairlift.api.types import Request, Sampling, Stopping

from tests.engine import tiny_model
from tests.engine.drive import assert_empty, drain, greedy, run, token_ids
from tests.engine.test_ranks import answers, assert_same_draws, make_ranks  # noqa: F401, a fixture
from tests.model import families
from tests.model.gguf.converted_files import write_converted

NUM_TOKENS = 16
HYBRIDS = {
    "delta": "qwen3.5, heads that share keys",
    "mamba": "falcon h1, norms behind gates, biases",
    "conv": "lfm2, tied",
}
PROMPTS = tiny_model.prompts(vocab_size=350)


@pytest.fixture(scope="module", params=HYBRIDS)
def hybrid(request, tmp_path_factory):
    """Return the folder of a model; in that of `mamba` both ranks have heads of one group."""
    folder = tmp_path_factory.mktemp("hybrid")
    tiny_model.write_family(folder, HYBRIDS[request.param])
    return folder


def wanted(prompts):
    return [greedy(prompt, NUM_TOKENS, ignore_eos=True) for prompt in prompts]


def test_prefix_hits_and_preemption_change_no_token(hybrid, make_ranks, make_engine, kv_blocks):  # noqa: F811
    prompts = [[*PROMPTS[5][:40], *prompt] for prompt in PROMPTS]
    cold = make_engine(hybrid, prefix_cache=False)
    expected = [token_ids(run(cold, wanted([prompt]))[0]) for prompt in prompts]
    engine = make_ranks(
        hybrid,
        tensor_parallel=2,
        max_num_batched_tokens=128,
        kv_cache_memory=kv_blocks(16, hybrid),
        state_snapshots=5,
    )
    for _ in range(3):
        assert [token_ids(events) for events in run(engine, wanted(prompts))] == expected
    assert engine.load().num_preemptions > 0
    assert engine.load().num_prefix_hits > 0
    assert_empty(engine)


def test_several_answers_begin_with_one_state(hybrid, make_ranks):  # noqa: F811
    sampling, stopping = Sampling(temperature=1.0, seed=5, n=3), Stopping(max_tokens=NUM_TOKENS)
    request = Request(PROMPTS[5], sampling, stopping)
    each = [token_ids(run(make_ranks(hybrid, tensor_parallel=num), [request])[0]) for num in (1, 2)]
    assert each[0] == each[1]


def test_a_probe_leaves_the_states_of_every_rank(hybrid, make_ranks):  # noqa: F811
    expected = token_ids(run(make_ranks(hybrid), wanted(PROMPTS[5:6]))[0])
    engine = make_ranks(hybrid, tensor_parallel=2)
    request_id = engine.add(wanted(PROMPTS[5:6])[0]).request_id
    got = []
    for _ in range(5):
        got += token_ids(engine.step())
        engine.runner.probe()
    assert got + token_ids(drain(engine)[request_id]) == expected


@pytest.mark.parametrize("form", ["F32", "Q8_0"])
def test_heads_in_turn_of_a_gguf_file_keep_their_order(make_ranks, tmp_path, form):  # noqa: F811
    model = families.build("qwen3.5, heads that share keys", intermediate_size=96)
    path = write_converted(tmp_path / "m.gguf", model, form)
    prompts = [[7 * i % 120 for i in range(1, length)] for length in (4, 30, 60)]
    expected, found = (answers(make_ranks(path, tensor_parallel=num), prompts) for num in (1, 2))
    assert_same_draws(found, expected)
