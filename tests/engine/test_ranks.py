"""One model on several processes: the bits of one, and an end of all when one is lost."""

import os
import signal
import time
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from chairlift.api.config import Dtype
from chairlift.api.errors import ConfigError, EngineDownError
from chairlift.api.types import Request, Sampling, Stopping
from chairlift.engine.quantizing import quantize_model
from chairlift.engine.ranks import lead
from chairlift.model.config import ModelConfig

from tests.engine import tiny_model
from tests.engine.drive import assert_empty, drain, greedy, run, token_ids
from tests.model import families, family_adapters
from tests.model.hybrid_table import HYBRIDS

NUM_TOKENS = 12
PATIENCE_S = 60.0
ALWAYS = ("llama", "gpt-oss, sinks, windows, clamped gates")
"""Families that `make test` compares, too."""


@pytest.fixture
def make_ranks(make_engine):
    """Build engines that are closed at the end."""
    engines = []

    def make(*arguments, **settings):
        engine = make_engine(*arguments, **settings)
        engines.append(engine)
        return engine

    yield make
    for engine in engines:
        engine.close()


def ranks_of(engine):
    return engine.stepper._loaded.ranks


def watch_logits(engine, seen):
    """Keep the logits of every draw of an engine, by their bits."""
    transformer = engine.stepper._loaded.transformer
    compute = transformer.logits

    def logits(hidden, out=None):
        found = compute(hidden, out)
        seen.append(found.clone().view(torch.int32))
        return found

    transformer.logits = logits


def answers(engine, prompts):
    """Return the tokens of some prompts in one crowded batch, and the logits of all draws.

    Every other one has the adapter, if there is one.
    """
    seen = []
    watch_logits(engine, seen)
    requests = [greedy(prompt, NUM_TOKENS, ignore_eos=True) for prompt in prompts]
    if engine.adapters.names(""):
        requests[::2] = [replace(request, adapter="adapter") for request in requests[::2]]
    events = run(engine, requests)
    assert_empty(engine)
    return list(map(token_ids, events)), seen


def assert_same_draws(found, expected):
    """Compare what `answers` returned: the tokens, and each draw's logits by their bits."""
    (tokens, logits), (expected_tokens, expected_logits) = found, expected
    assert tokens == expected_tokens
    assert len(logits) == len(expected_logits)
    assert all(map(torch.equal, logits, expected_logits))


def is_gone(process_id):
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def wait_until(condition):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.01)


def unsupported(folder, num_ranks):
    """Return why ranks do not compute a model; None if they do."""
    try:
        ModelConfig.load(folder, Dtype.AUTO).of_rank(0, num_ranks)
    except ConfigError as error:
        return str(error)
    return None


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(family, marks=pytest.mark.always if family in ALWAYS else pytest.mark.slow)
        for family in families.FAMILIES
    ],
)
def test_two_and_four_ranks_draw_from_the_bits_of_one_process(make_ranks, tmp_path, family):
    families.save(families.build(family), tmp_path)
    vocab_size = families.SIZES["vocab_size"]
    tiny_model.write_tokenizer(tmp_path, vocab_size - 5)
    prompts = tiny_model.prompts(num=4, vocab_size=vocab_size)
    settings = {"max_num_batched_tokens": 24, "kv_cache_memory": 10**6}
    if family not in HYBRIDS:
        config = ModelConfig.load(tmp_path, Dtype.AUTO)
        family_adapters.write(tmp_path / "adapter", config)
        settings["adapters"] = {"adapter": str(tmp_path / "adapter")}
    expected = answers(make_ranks(tmp_path, **settings), prompts)
    for num_ranks in (2, 4):
        if num_ranks == 4 and (reason := unsupported(tmp_path, num_ranks)) is not None:
            # Some of these models have too few heads.
            assert reason.startswith("tensor_parallel: expected")
            continue
        engine = make_ranks(tmp_path, tensor_parallel=num_ranks, **settings)
        assert_same_draws(answers(engine, prompts), expected)


def test_ranks_of_a_stored_model_draw_from_the_bits_of_one_process(make_ranks, tmp_path):
    model, stored = tmp_path / "model", tmp_path / "stored"
    model.mkdir()
    sizes = {"hidden_size": 128, "intermediate_size": 192, "head_dim": 32}
    families.save(families.build("llama", **sizes), model)
    tiny_model.write_tokenizer(model, families.SIZES["vocab_size"] - 5)
    quantize_model(str(model), stored, "int4", num_tokens=64)
    prompts = tiny_model.prompts(num=4, vocab_size=families.SIZES["vocab_size"])
    expected, found = (answers(make_ranks(stored, tensor_parallel=num), prompts) for num in (1, 2))
    assert_same_draws(found, expected)


@pytest.mark.parametrize(
    "settings",
    [
        {"dtype": "bfloat16", "drafts": "lookup"},
        pytest.param({"quantize": "int8", "kv_cache_dtype": "int8"}, marks=pytest.mark.slow),
        pytest.param({}, marks=pytest.mark.slow),
        pytest.param({"quantize": "int4", "dtype": "bfloat16"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_one_two_and_four_ranks_draw_from_the_same_bits(make_ranks, tmp_path, settings):
    reference = families.build("llama", num_key_value_heads=4)
    families.save(reference, tmp_path)
    tiny_model.write_tokenizer(tmp_path, families.SIZES["vocab_size"] - 5)
    prompts = tiny_model.prompts(num=5, vocab_size=families.SIZES["vocab_size"])
    expected, *others = (
        answers(make_ranks(tmp_path, tensor_parallel=num, **settings), prompts) for num in (1, 2, 4)
    )
    for found in others:
        assert_same_draws(found, expected)


def test_answers_that_share_blocks_copy_them_on_every_rank(make_ranks):
    prompt = tiny_model.prompts(num=1)[0]
    each = []
    for num_ranks in (1, 2):
        engine = make_ranks(tensor_parallel=num_ranks)
        sampling, stopping = Sampling(temperature=1.0, seed=5, n=3), Stopping(max_tokens=NUM_TOKENS)
        each.append(token_ids(run(engine, [Request(prompt, sampling, stopping)])[0]))
    assert each[0] == each[1]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_rank_takes_the_engine_down_and_a_restart_serves_again(
    make_ranks, monkeypatch, number
):
    monkeypatch.setattr(lead, "TIMEOUT_S", 0.5)
    engine = make_ranks(tensor_parallel=2)
    prompt = tiny_model.prompts(num=1)[0]
    expected = token_ids(run(engine, [greedy(prompt, NUM_TOKENS, ignore_eos=True)])[0])
    (lost,) = ranks_of(engine).process_ids
    engine.add(greedy(prompt, NUM_TOKENS, ignore_eos=True))
    engine.flush()
    engine.advance()
    os.kill(lost, number)
    with pytest.raises(EngineDownError) as down:
        drain(engine)
    assert "rank 1" in str(down.value) or "rank 1" in str(down.value.__cause__)
    engine.restart()
    wait_until(lambda: is_gone(lost))
    assert token_ids(run(engine, [greedy(prompt, NUM_TOKENS, ignore_eos=True)])[0]) == expected


def test_an_idle_engine_notices_that_a_rank_has_ended(make_ranks):
    engine = make_ranks(tensor_parallel=2)
    os.kill(ranks_of(engine).process_ids[0], signal.SIGKILL)
    wait_until(lambda: ranks_of(engine).fault is not None)
    with pytest.raises(EngineDownError, match="the process of rank 1 ended"):
        engine.advance()


def test_a_fork_of_the_host_program_ends_no_rank(make_ranks):
    engine = make_ranks(tensor_parallel=2)
    with warnings.catch_warnings():
        # Python warns of forks of a process with threads, which host programs do.
        warnings.simplefilter("ignore", DeprecationWarning)
        fork = os.fork()
    if fork == 0:
        ranks_of(engine).close()
        os._exit(0)
    assert os.waitpid(fork, 0)[1] == 0
    assert ranks_of(engine).fault is None
    prompt = tiny_model.prompts(num=1)[0]
    tokens = token_ids(run(engine, [greedy(prompt, NUM_TOKENS, ignore_eos=True)])[0])
    assert len(tokens) == NUM_TOKENS


def test_a_closed_engine_leaves_no_process_and_no_memory(make_ranks):
    engine = make_ranks(tensor_parallel=2)
    process_ids = ranks_of(engine).process_ids
    assert process_ids
    engine.close()
    assert all(map(is_gone, process_ids))
