"""Forward passes that are recorded once and run again give what Python's calls give."""

import pytest
from chairlift.attention.cpu import CpuBackend
from chairlift.model.forward import transformer

from tests.engine.drive import assert_empty, greedy, run, token_ids

NUM_REQUESTS = 20


@pytest.mark.parametrize("kv_cache_dtype", ["auto", "int8"])
def test_answers_do_not_depend_on_what_is_recorded(make_engine, monkeypatch, kv_cache_dtype):
    # More batch sizes than are kept: some are recorded again when they come back.
    monkeypatch.setattr(transformer, "MAX_RECORDED", NUM_REQUESTS - 4)
    requests = [
        greedy([5 + index, 7, 9], 2 + 2 * index, ignore_eos=True) for index in range(NUM_REQUESTS)
    ]

    def answers():
        engine = make_engine(max_num_seqs=NUM_REQUESTS, kv_cache_dtype=kv_cache_dtype)
        waves = [[token_ids(events) for events in run(engine, requests)] for _ in range(2)]
        assert_empty(engine)
        return waves

    recorded = answers()
    monkeypatch.setattr(CpuBackend, "records", False)
    assert answers() == recorded


def test_a_restarted_engine_reads_its_own_tables(make_engine):
    first = [greedy([5 + index, 7], 6, ignore_eos=True) for index in range(4)]
    others = [greedy([40 + index, 9, 11], 6, ignore_eos=True) for index in range(4)]
    expected = [token_ids(events) for events in run(make_engine(max_num_seqs=4), others)]
    engine = make_engine(max_num_seqs=4)
    run(engine, first)
    engine.restart()
    assert [token_ids(events) for events in run(engine, others)] == expected


@pytest.fixture
def attended(monkeypatch):
    """Return the numbers of tokens for which Python called attention."""
    calls = []
    attend = CpuBackend.attend

    def counted(self, query, *args, **kwargs):
        calls.append(len(query))
        return attend(self, query, *args, **kwargs)

    monkeypatch.setattr(CpuBackend, "attend", counted)
    return calls


def test_a_batch_of_known_views_asks_python_for_nothing(make_engine, attended):
    engine = make_engine(max_num_seqs=4)
    requests = [greedy([5 + index, 7], 6, ignore_eos=True) for index in range(4)]
    expected = [token_ids(events) for events in run(engine, requests)]
    attended.clear()
    assert [token_ids(events) for events in run(engine, requests)] == expected
    # The prompts' step is another each time; the five of a token each are known.
    num_layers = len(engine.runner.model.layers)
    assert attended == [8] * num_layers


def test_the_passes_that_were_used_last_are_kept(make_engine, monkeypatch, attended):
    monkeypatch.setattr(transformer, "MAX_RECORDED", 2)
    engine = make_engine(max_num_seqs=4)
    requests = [greedy([5 + index, 7], 6, ignore_eos=True) for index in range(4)]
    for num_rows in (2, 1, 2, 4):
        run(engine, requests[:num_rows])
    num_layers = len(engine.runner.model.layers)
    attended.clear()
    run(engine, requests[:2])
    assert attended == [4] * num_layers
    attended.clear()
    run(engine, requests[:1])
    assert attended == [2] * num_layers + [1] * num_layers
