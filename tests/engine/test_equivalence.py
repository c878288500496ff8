"""The same tokens whatever the policy, the chunks, the cache and the preemptions."""

from types import SimpleNamespace

import pytest
import torch
from chairlift.api.config import Dtype
from chairlift.engine.engine import Engine

from tests.engine import oracle
from tests.engine.drive import assert_empty, end, greedy, run, token_ids, watch_sampler
from tests.engine.tiny_model import EOS, prompts

NUM_TOKENS = 40
CHUNKED, WHOLE = 12, 512
"""Token budgets: the longest prompt has 137 tokens."""


def assert_same_bits(logits, expected):
    assert logits.keys() == expected.keys()
    assert all(torch.equal(logits[key], expected[key]) for key in expected)


def requests():
    return [greedy(p, NUM_TOKENS, seed=1000 + i) for i, p in enumerate(prompts())]


@pytest.fixture(scope="module")
def alone(tiny):
    """Tokens and logits when every request has the engine for itself."""
    engine = Engine(
        tiny.folder,
        max_num_seqs=8,
        max_num_batched_tokens=WHOLE,
        prefix_cache=False,
        drafts="off",
    )
    logits = watch_sampler(engine)
    answers = [token_ids(run(engine, [request])[0]) for request in requests()]
    return SimpleNamespace(answers=answers, logits=logits)


def test_tokens_are_those_of_transformers(tiny, alone):
    for prompt, answer in zip(prompts(), alone.answers, strict=True):
        assert len(answer) == NUM_TOKENS or answer[-1] == EOS
        assert EOS not in answer[:-1]
        oracle.assert_greedy(tiny.reference, prompt, answer)


@pytest.mark.parametrize("num_blocks", [None, 26], ids=["room", "tight"])
@pytest.mark.parametrize("prefix_cache", [True, False], ids=["cache", "no-cache"])
@pytest.mark.parametrize("budget", [CHUNKED, WHOLE], ids=["chunked", "whole"])
@pytest.mark.parametrize("batching", ["static", "dynamic", "continuous"])
def test_tokens_and_logits_do_not_depend_on_the_batch(
    make_engine, kv_blocks, alone, batching, budget, prefix_cache, num_blocks
):
    engine = make_engine(
        batching=batching,
        max_num_batched_tokens=budget,
        prefix_cache=prefix_cache,
        kv_cache_memory=kv_blocks(num_blocks) if num_blocks else None,
    )
    # The second round reads what the first one left in the prefix cache.
    for _ in range(2):
        logits = watch_sampler(engine)
        answers = run(engine, requests())
        assert [token_ids(events) for events in answers] == alone.answers
        assert_same_bits(logits, alone.logits)
        engine.runner.sampler.__dict__.pop("sample")
    load = engine.load()
    assert (load.num_preemptions > 0) == (num_blocks is not None)
    assert (load.num_prefix_hits > 0) == prefix_cache
    assert_empty(engine)


@pytest.mark.parametrize(
    ("quantize", "kv"),
    [("none", "auto"), ("int8", "auto"), ("int4", "auto"), ("none", "int8"), ("int8", "int8")],
)
def test_bfloat16_bits_do_not_depend_on_the_batch(make_engine, kv_blocks, quantize, kv):
    kind = {"dtype": "bfloat16", "quantize": quantize, "kv_cache_dtype": kv}
    alone = make_engine(**kind, max_num_batched_tokens=WHOLE, prefix_cache=False)
    expected = watch_sampler(alone)
    answers = [token_ids(run(alone, [request])[0]) for request in requests()]
    engine = make_engine(
        **kind,
        max_num_batched_tokens=CHUNKED,
        kv_cache_memory=kv_blocks(20, dtype=Dtype.BFLOAT16, kv=kv),
    )
    logits = watch_sampler(engine)
    assert [token_ids(events) for events in run(engine, requests())] == answers
    assert_same_bits(logits, expected)
    assert engine.load().num_preemptions > 0


def test_answers_say_what_they_cost(make_engine):
    engine = make_engine()
    first = end(run(engine, requests()[7:])[0])
    again = end(run(engine, requests()[7:])[0])
    num_prompt = len(prompts()[7])
    assert (first.usage.prompt_tokens, first.usage.cached_tokens) == (num_prompt, 0)
    assert again.usage.cached_tokens == (num_prompt - 1) // 16 * 16
    assert again.usage.output_tokens == len(token_ids(run(engine, requests()[7:])[0]))


def test_recomputed_tokens_are_told(make_engine, kv_blocks):
    engine = make_engine(kv_cache_memory=kv_blocks(26), prefix_cache=False)
    timelines = [end(events).timeline for events in run(engine, requests())]
    assert sum(t.num_preemptions for t in timelines) == engine.load().num_preemptions > 0
    assert all((t.num_recomputed_tokens > 0) == (t.num_preemptions > 0) for t in timelines)
