"""Every model family in a crowded batch: chunked prompts, several KV groups, preemption."""

import pytest
from chairlift.model.config import ModelConfig

from tests.engine import oracle, tiny_model
from tests.engine.drive import assert_empty, greedy, run, token_ids
from tests.model import families

NUM_TOKENS = 30


@pytest.mark.parametrize("family", families.FAMILIES)
def test_a_crowded_batch_gives_the_tokens_of_transformers(make_engine, kv_blocks, tmp_path, family):
    reference = families.build(family)
    families.save(reference, tmp_path)
    vocab_size = families.SIZES["vocab_size"]
    tiny_model.write_tokenizer(tmp_path, vocab_size - 5)
    # A group with a window gives blocks back while requests run.
    windows = ModelConfig.load(tmp_path).spec.kv_windows
    num_blocks = sum(22 if window is None else 12 for window in windows)
    engine = make_engine(
        tmp_path, max_num_batched_tokens=24, kv_cache_memory=kv_blocks(num_blocks, tmp_path)
    )
    prompts = tiny_model.prompts(vocab_size=vocab_size)
    if "past its original length" in family:
        # LongRoPE has one table for all sequences; `transformers` takes another for short ones.
        prompts = [prompt if len(prompt) > 2 else prompt * 3 for prompt in prompts]
    answers = run(engine, [greedy(prompt, NUM_TOKENS, ignore_eos=True) for prompt in prompts])
    for prompt, events in zip(prompts, answers, strict=True):
        answer = token_ids(events)
        assert len(answer) == NUM_TOKENS
        oracle.assert_greedy(reference, prompt, answer)
    assert engine.load().num_preemptions > 0
    assert_empty(engine)
