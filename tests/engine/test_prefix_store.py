"""KV blocks on disk: the same tokens with and without, whatever happens to the files."""

import dataclasses
import logging
import os
import time
from pathlib import Path

import pytest
from chairlift.api.config import Dtype
from chairlift.api.errors import ConfigError

from tests.engine import tiny_model
from tests.engine.drive import assert_empty, drain, greedy, run, take_time, token_ids
from tests.engine.tiny_model import prompts

LONG = [(7 * place) % 380 + 1 for place in range(160)]
NUM_BLOCKS = (len(LONG) - 1) // 16
"""Blocks of `LONG` that can be loaded."""


def requests(tenant=""):
    asked = [greedy(prompt, 8) for prompt in [LONG, *prompts()]]
    return [dataclasses.replace(request, tenant=tenant) for request in asked]


def answers(engine, asked=None):
    return [token_ids(events) for events in run(engine, asked or requests())]


@pytest.fixture
def settings(store_settings):
    return store_settings


@pytest.fixture
def key(settings):
    return Path(settings["prefix_store_key"])


@pytest.fixture
def folder(settings):
    return Path(settings["prefix_store"])


@pytest.fixture
def stored(make_engine, settings):
    """Answer requests with a store and close it, so that another engine finds the blocks."""

    def store(**changes):
        engine = make_engine(**{**settings, **changes})
        found = answers(engine)
        engine.close()
        return found

    return store


def segments(folder):
    return sorted(Path(folder).glob("*.segment"))


@pytest.mark.parametrize(
    "numbers",
    [{"dtype": Dtype.FLOAT32}, {"dtype": Dtype.BFLOAT16}, {"kv_cache_dtype": "int8"}],
    ids=["float32", "bfloat16", "int8"],
)
def test_prompts_are_loaded_after_a_restart_and_give_the_same_tokens(
    make_engine, settings, stored, numbers
):
    expected = answers(make_engine(**numbers))
    assert stored(**numbers) == expected
    engine = make_engine(**settings, **numbers)
    assert answers(engine) == expected
    assert engine.prefix_store_stats().loaded >= NUM_BLOCKS
    assert engine.load().num_prefix_hits >= NUM_BLOCKS
    assert_empty(engine)


def test_blocks_that_were_evicted_are_loaded(make_engine, settings, kv_blocks):
    expected = answers(make_engine(), [greedy(LONG, 8)])
    engine = make_engine(**settings, kv_cache_memory=kv_blocks(14))
    others = [greedy([300 + index] * 200, 8) for index in range(3)]
    assert answers(engine, [greedy(LONG, 8)]) == expected
    deadline = time.monotonic() + 60
    while engine.prefix_store_stats().written < NUM_BLOCKS:
        assert time.monotonic() < deadline
    answers(engine, others)
    assert answers(engine, [greedy(LONG, 8)]) == expected
    assert engine.prefix_store_stats().loaded == NUM_BLOCKS
    assert_empty(engine)


def test_the_end_of_a_prompt_is_loaded_behind_what_is_cached(make_engine, settings, stored):
    stored()
    engine = make_engine(**settings)
    asked = [greedy(LONG[:81], 1), greedy(LONG, 8)]
    for request in asked:
        answers(engine, [request])
    assert engine.prefix_store_stats().loaded == NUM_BLOCKS, "each block once"


def test_a_tenant_finds_no_block_of_another(make_engine, settings, stored):
    expected = stored()
    engine = make_engine(**settings)
    assert answers(engine, requests("another")) == expected
    assert engine.prefix_store_stats().loaded == 0
    assert answers(engine) == expected
    assert engine.prefix_store_stats().loaded > 0


def test_by_default_a_block_is_written_when_it_is_used_again(make_engine, settings, folder):
    engine = make_engine(**{**settings, "prefix_store_uses": 2})
    answers(engine, [greedy(LONG, 1)])
    answers(engine, [greedy([5] * 100, 1)])
    answers(engine, [greedy(LONG, 1)])
    engine.close()
    engine = make_engine(**settings)
    assert engine.prefix_store_stats().num_blocks == NUM_BLOCKS


def test_what_is_not_written_by_a_request_is_not_stored(make_engine, settings):
    engine = make_engine(**settings)
    private = [
        dataclasses.replace(
            request, prefix_cache=dataclasses.replace(request.prefix_cache, write=False)
        )
        for request in requests()
    ]
    answers(engine, private)
    engine.close()
    assert make_engine(**settings).prefix_store_stats().num_blocks == 0


@pytest.mark.parametrize("place", [70, 200, -1], ids=["name", "block", "end"])
def test_damage_is_a_miss(make_engine, settings, stored, folder, place):
    expected = stored()
    for path in segments(folder):
        data = bytearray(path.read_bytes())
        record = 64 + (2 * 2 * 2 * 16 * 16 * 4)
        for start in range(64, len(data), record):
            data[start + (place - 64 if place > 0 else record - 1)] ^= 1
        path.write_bytes(data)
    engine = make_engine(**settings)
    assert answers(engine) == expected
    stats = engine.prefix_store_stats()
    assert stats.loaded == 0
    assert (stats.corrupt > 0) == (place != 70), "what is named otherwise is not asked for"
    assert_empty(engine)


def test_a_file_that_is_cut_while_it_serves_is_a_miss(make_engine, settings, stored, folder):
    expected = stored()
    engine = make_engine(**settings)
    for path in segments(folder):
        os.truncate(path, path.stat().st_size // 2)
    assert answers(engine) == expected
    assert engine.prefix_store_stats().corrupt > 0


def test_blocks_of_other_weights_are_not_used(make_engine, settings, stored, tmp_path):
    stored()
    other = tmp_path / "other"
    tiny_model.write(other, seed=1)
    expected = answers(make_engine(other))
    engine = make_engine(other, **settings)
    assert answers(engine) == expected
    stats = engine.prefix_store_stats()
    assert (stats.loaded, stats.num_foreign) == (0, 1)


def test_blocks_of_another_key_or_dtype_are_not_used(make_engine, settings, stored, tmp_path):
    expected = stored()
    other = tmp_path / "other-key"
    other.write_bytes(b"\1" * 32)
    other.chmod(0o600)
    for changes in ({"prefix_store_key": str(other)}, {"kv_cache_dtype": "int8"}):
        engine = make_engine(**{**settings, **changes})
        found = answers(engine)
        assert engine.prefix_store_stats().loaded == 0
        assert found == expected or "kv_cache_dtype" in changes
        engine.close()


def test_a_second_server_of_a_folder_serves_without_the_store(make_engine, settings, caplog):
    first = make_engine(**settings)
    with caplog.at_level(logging.ERROR):
        second = make_engine(**settings)
    assert "is used by another server" in caplog.text
    assert second.prefix_store_stats() is None
    assert answers(second) == answers(first)
    first.close()
    assert make_engine(**settings).prefix_store_stats() is not None


def test_a_place_that_is_no_folder_is_served_without(make_engine, settings, folder, caplog):
    folder.write_text("")
    engine = make_engine(**settings)
    assert engine.prefix_store_stats() is None
    assert "serving without the prefix store" in caplog.text
    assert answers(engine) == answers(make_engine())


def test_a_disk_that_takes_no_more_costs_no_answer(make_engine, settings, folder):
    engine = make_engine(**settings)
    # The next segment has the name of a folder.
    (folder / f"{0:016}.segment").mkdir()
    assert answers(engine) == answers(make_engine())
    engine.close()
    assert make_engine(**settings).prefix_store_stats() is not None


def test_a_load_that_would_be_slower_than_computing_is_declined(
    make_engine, settings, stored, clock
):
    expected = stored()
    engine = make_engine(**settings)
    take_time(engine, clock, seconds_per_token=1e-9)
    assert answers(engine, [greedy([9] * 50, 1)])
    assert answers(engine) == expected
    stats = engine.prefix_store_stats()
    assert stats.declined > 0
    assert stats.loaded == 0


def test_a_request_that_waits_for_blocks_can_be_cancelled(make_engine, settings, stored):
    expected = stored()
    engine = make_engine(**settings)
    for _ in range(3):
        accepted = engine.add(greedy(LONG, 8))
        assert engine.is_loading
        assert engine.abort(accepted.request_id)
        drain(engine)
    assert answers(engine) == expected
    assert not engine.is_loading
    assert_empty(engine)


def test_a_load_that_is_late_gives_way_to_computing(make_engine, settings, stored, clock):
    expected = stored()
    engine = make_engine(**settings)
    accepted = engine.add(greedy(LONG, 8))
    clock.advance(6)
    assert token_ids(drain(engine)[accepted.request_id]) == expected[0]
    assert engine.load().num_prefix_hits == 0


def test_a_restart_in_place_forgets_loads_and_keeps_the_store(make_engine, settings, stored):
    expected = stored()
    engine = make_engine(**settings)
    engine.add(greedy(LONG, 8))
    engine.restart()
    assert not engine.is_loading
    assert answers(engine) == expected
    assert engine.prefix_store_stats().loaded >= NUM_BLOCKS


@pytest.mark.parametrize(
    ("mode", "content", "expected"),
    [
        (0o640, b"1" * 32, r"a file that its owner alone can read \(chmod 600\), got mode 0640"),
        (0o604, b"1" * 32, "a file that its owner alone can read"),
        (0o600, b"1" * 31, "32 to 4096 bytes, got 31"),
        (0o600, b"1" * 4097, "32 to 4096 bytes, got 4097"),
    ],
)
def test_a_key_that_others_can_read_or_guess_is_refused(
    make_engine, settings, key, mode, content, expected
):
    key.write_bytes(content)
    key.chmod(mode)
    with pytest.raises(ConfigError, match=f"^prefix_store_key: .*: expected {expected}"):
        make_engine(**settings)


def test_a_key_that_is_a_pipe_is_refused_and_not_waited_for(make_engine, settings, key):
    key.unlink()
    os.mkfifo(key, mode=0o600)
    with pytest.raises(ConfigError, match=r"^prefix_store_key: .*: not a regular file"):
        make_engine(**settings)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"prefix_store_key": None}, "prefix_store_key: expected a value beside prefix_store"),
        ({"prefix_store_bytes": None}, "prefix_store_bytes: expected a value beside"),
        ({"prefix_store_key": "/no/such"}, "prefix_store_key: /no/such: No such file"),
        ({"prefix_store_bytes": 1000}, r"prefix_store_bytes: expected at least \d+ bytes, got"),
        ({"prefix_cache": False}, "prefix_cache: expected on with prefix_store, got False"),
        ({"tensor_parallel": 2}, "tensor_parallel: expected 1 with prefix_store, got 2"),
        ({"prefix_store": None}, "prefix_store_bytes: expected none without prefix_store"),
        ({"prefix_store_uses": 3}, "prefix_store_uses: .* got 3"),
    ],
)
def test_settings_that_do_not_fit_are_refused_by_name(make_engine, settings, changes, expected):
    with pytest.raises(ConfigError, match=f"^{expected}"):
        make_engine(**{**settings, **changes})
