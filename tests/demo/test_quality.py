"""The demo model in eight and four bits: what they cost on text that it never saw."""

from tools.train_demo.quality import measure


def test_eight_and_four_bits_predict_nearly_what_sixteen_do():
    none, int8, int4, int8_kv, int8_both = (kind.quality for kind in measure(num_documents=24))
    assert none.num_tokens == int8.num_tokens == int4.num_tokens > 1000
    assert (none.agreement, none.kl) == (1, 0)
    assert int8.perplexity < 1.01 * none.perplexity
    assert int4.perplexity < 1.10 * none.perplexity
    assert 1 > int8.agreement > 0.97
    assert int8.agreement > int4.agreement > 0.88
    assert 0 < int8_kv.kl < int8.kl < int4.kl < 0.05
    assert int8_kv.perplexity < 1.002 * none.perplexity
    assert 1 > int8_kv.agreement > 0.99
    assert int8_both.perplexity < 1.01 * none.perplexity
