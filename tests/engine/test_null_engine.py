"""The engine of `chairlift bench serve --engine null`, whose model computes nothing."""

import pytest
from chairlift import Sampling, Stopping
from chairlift.bench.null_engine import NullEngine

SENTENCE = (
    "A chairlift never stops: each rider steps off at the top, and the other riders stay on. "
)


@pytest.mark.parametrize("drafts", ["off", "lookup", None])
def test_every_request_has_all_its_tokens_while_its_words_repeat(drafts):
    """Its words are a sentence that repeats: with drafts a step samples more tokens than rows."""
    with NullEngine(max_num_seqs=16, drafts=drafts) as engine:
        answers = engine.generate([SENTENCE * 4] * 16, Sampling(), Stopping(max_tokens=300))
    assert [len(answer.token_ids) for answer in answers] == [300] * 16
