"""Layers of different heads, some of which see the keys of others, under swapping and reuse."""

import pytest
from chairlift.api.config import Dtype

from tests.engine import tiny_model
from tests.engine.drive import assert_empty, greedy, run, take_time, token_ids
from tests.model import families

FAMILY = "gemma4, shared keys, inputs of each layer"
NUM_TOKENS = 30


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    families.build(FAMILY).save_pretrained(folder)
    tiny_model.write_tokenizer(folder, families.SIZES["vocab_size"] - 5)
    return folder


@pytest.mark.parametrize(
    "settings",
    [
        {"dtype": "float32"},
        {"dtype": "bfloat16", "quantize": "int8"},
        {"dtype": "bfloat16", "quantize": "int4", "kv_cache_dtype": "int8"},
    ],
    ids=["float32", "int8", "int4 with keys in int8"],
)
def test_swapped_and_cached_blocks_give_the_tokens_of_a_large_pool(
    make_engine, kv_blocks, clock, folder, settings
):
    prompts = tiny_model.prompts(vocab_size=families.SIZES["vocab_size"])
    # The second round finds prompts, past every window, in the prefix cache.
    prompts += [[*prompt, 7, 8] for prompt in prompts]

    def answers(**more):
        engine = make_engine(folder, max_num_batched_tokens=24, **settings, **more)
        take_time(engine, clock)
        found = [
            token_ids(events)
            for half in (prompts[: len(prompts) // 2], prompts[len(prompts) // 2 :])
            for events in run(engine, [greedy(prompt, NUM_TOKENS) for prompt in half])
        ]
        load = engine.load()
        assert_empty(engine)
        return found, load

    expected, _ = answers(prefix_cache=False)
    kind = folder, Dtype(settings["dtype"]), settings.get("kv_cache_dtype", "auto")
    found, load = answers(kv_cache_memory=kv_blocks(34, *kind), swap_memory=kv_blocks(64, *kind))
    assert found == expected
    assert load.num_preemptions > 0
    assert load.num_swapped_tokens > 0
