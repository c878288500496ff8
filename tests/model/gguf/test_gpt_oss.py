"""What the metadata of a gpt-oss file says, and what it may not say."""

import math

import pytest
from chairlift.model.specs.rope import Rope, YarnScaling

from tests.model.gguf.headers import F32, I32, STRING, U32, array, value
from tests.model.gguf.test_gguf_config import CONTROL, NORMAL, failure, load


@pytest.fixture
def path(tmp_path):
    return tmp_path / "m.gguf"


def test_the_end_of_a_message_is_none_of_an_answer_where_others_end_it(path):
    changes = [
        value("tokenizer.ggml.eos_token_id", U32, 2),
        array("tokenizer.ggml.tokens", STRING, ["a", "<|end|>", "<|return|>", "<|call|>"]),
        array("tokenizer.ggml.token_type", I32, [NORMAL, *[CONTROL] * 3]),
    ]
    assert load(path, *changes).eos_token_ids == (2, 3)
    changes[1] = array("tokenizer.ggml.tokens", STRING, ["a", "<|end|>", "<|return|>", "b"])
    assert load(path, *changes).eos_token_ids == (2, 1)


GPT_OSS = {
    "expert_count": (U32, 4),
    "expert_used_count": (U32, 2),
    "expert_feed_forward_length": (U32, 48),
    "attention.sliding_window": (U32, 20),
    "rope.freq_base": (F32, 150_000.0),
    "rope.scaling.type": (STRING, "yarn"),
    "rope.scaling.factor": (F32, 32.0),
    "rope.scaling.original_context_length": (U32, 64),
}


def gpt_oss(**changes):
    """Return the metadata of gpt-oss; None takes a key out."""
    values = {**GPT_OSS, **{key.replace("__", "."): own for key, own in changes.items()}}
    return [value(f"gpt-oss.{key}", *own) for key, own in values.items() if own is not None]


def test_gpt_oss_is_read(path):
    spec = load(path, *gpt_oss(), kind="gpt-oss").spec
    assert spec.kv_windows == (20, None)
    experts, own = spec.layers[0].feed_forward, spec.layers[0].attention
    assert (experts.num, experts.top_k, experts.intermediate_size) == (4, 2, 48)
    assert (experts.limit, experts.alpha, own.has_sinks) == (7.0, 1.702, True)
    scaling = YarnScaling(32.0, 64, pytest.approx(1 + 0.1 * math.log(32)), 32.0, 1.0, False)
    assert spec.ropes == (Rope(150_000.0, scaling),)
    wide = load(path, *gpt_oss(attention__sliding_window=(U32, 256)), kind="gpt-oss").spec
    assert wide.kv_windows == (None,)


@pytest.mark.parametrize(
    ("key", "wrong", "expected"),
    [
        ("rope.scaling.original_context_length", None, "an integer, got nothing"),
        ("rope.scaling.yarn_attn_factor", (F32, 2.0), "1: it is not supported, got 2.0"),
        ("rope.scaling.yarn_ext_factor", (F32, 0.5), "1: it is not supported, got 0.5"),
        ("expert_feed_forward_length", None, "an integer, got nothing"),
    ],
)
def test_what_gpt_oss_may_not_say_is_named(path, key, wrong, expected):
    changes = gpt_oss(**{key.replace(".", "__"): wrong})
    assert failure(path, *changes, kind="gpt-oss") == f"gpt-oss.{key}: expected {expected}"
