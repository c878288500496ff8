"""What requests ask of their draws, against PyTorch twins and `transformers`' processors."""

from dataclasses import asdict, replace

import pytest
import torch
from chairlift import _core
from chairlift.api.sampler_options import SamplerOptions, SamplingParameters
from chairlift.engine.runner.sampler import NoEnd, Sampler, TokenMasks
from transformers import generation

from tests.kernels import reference

VOCAB_SIZE = 61
TEXT = [b"%c" % (97 + i) if i < 26 else b"\n:" if i == 26 else b"<%d>" % i for i in range(61)]
TABLE = _core.TokenTable(TEXT, [])
GREEDY = SamplingParameters(temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, seed=5)
PLAIN = replace(GREEDY, temperature=1.0)


def some_logits(num=1, seed=3):
    return 3 * torch.randn(num, VOCAB_SIZE, generator=torch.Generator().manual_seed(seed))


def draw(logits, sampling, tokens=(), *, output=(), num=1, masks=None, no_end=None):
    """Draw `num` times behind a prompt and an output, with the same logits and other seeds."""
    sampler = Sampler(num)
    prompt = list(tokens)
    for slot in range(num):
        seeded = replace(sampling, seed=sampling.seed + slot)
        sampler.set(slot, seeded, prompt, no_end or NoEnd((), 0), TABLE)
    slots, zeros = torch.arange(num, dtype=torch.int32), torch.zeros(num, dtype=torch.int32)
    rows, tokens = logits.expand(num, -1).contiguous(), prompt + list(output)
    for position in range(len(prompt), len(tokens) + 1):
        # A history grows by a token with each draw; all but the last are not what was drawn.
        last = tokens[position - 1] if position else 0
        drawn = sampler.sample(rows, slots, zeros, zeros + position, zeros + last, masks)
    return drawn


def options(**values):
    return replace(PLAIN, options=SamplerOptions(**values))


def twin(logits, sampling, prompt=(), output=(), *, xtc=False):
    """The distribution of the reference."""
    chosen, prompt, output = sampling.options, list(prompt), list(output)
    changed = logits.double()
    if chosen.dry_multiplier:
        plain = replace(chosen, top_n_sigma=0.0)
        changed = reference.processed(changed, prompt, output, plain)
        changed = reference.dry(changed, prompt + output, TEXT, chosen)
        chosen = SamplerOptions(top_n_sigma=chosen.top_n_sigma)
        prompt, output = [], []
    if prompt or output or chosen != SamplerOptions():
        changed = reference.processed(changed, prompt or [0], output, chosen)
    return reference.probabilities(
        changed,
        sampling.temperature,
        sampling.top_k,
        sampling.top_p,
        sampling.min_p,
        sampling.options.typical_p,
        sampling.options.xtc_threshold if xtc else 1.0,
    )


def chi_squared(tokens, expected):
    """The statistic over tokens that are expected at least five times, and its bound at 1e-4."""
    counts = torch.bincount(tokens, minlength=len(expected)).double()
    assert (counts[expected == 0] == 0).all(), "a token was drawn that has no probability"
    wanted = expected * len(tokens)
    rare = wanted < 5
    wanted = torch.cat([wanted[~rare], wanted[rare].sum().view(1)])
    counts = torch.cat([counts[~rare], counts[rare].sum().view(1)])
    wanted, counts = wanted[wanted > 0], counts[wanted > 0]
    freedom = max(len(wanted) - 1, 1)
    # Wilson and Hilferty's approximation of the quantile.
    bound = freedom * (1 - 2 / (9 * freedom) + 3.72 * (2 / (9 * freedom)) ** 0.5) ** 3
    return float(((counts - wanted) ** 2 / wanted).sum()), bound


PROMPT, OUTPUT = [1, 2, 3, 4, 9, 1, 2], [3, 30, 30, 1, 2]
EVERYTHING = replace(
    options(
        banned_token_ids=(7,),
        bad_words=((1, 2, 8), (11,)),
        logit_bias=((5, 2.0), (6, -3.0)),
        repetition_penalty=1.3,
        presence_penalty=0.4,
        frequency_penalty=0.3,
        dry_multiplier=0.8,
        top_n_sigma=2.0,
        typical_p=0.9,
    ),
    temperature=0.8,
    top_k=30,
    top_p=0.9,
    min_p=0.02,
)


@pytest.mark.parametrize(
    "sampling",
    [
        options(allowed_token_ids=(3, 9, 17, 40)),
        options(repetition_penalty=1.7),
        options(repetition_penalty=0.6),
        options(presence_penalty=1.5),
        options(frequency_penalty=-1.2),
        options(dry_multiplier=1.1, dry_base=2.0),
        options(dry_multiplier=1.1, dry_sequence_breakers=(b"c",)),
        options(top_n_sigma=1.0),
        options(typical_p=0.4),
        replace(options(typical_p=0.7), top_k=12, top_p=0.8, min_p=0.1),
        EVERYTHING,
    ],
)
def test_draws_follow_the_distribution_of_the_twins(sampling):
    logits = some_logits()[0]
    tokens = draw(logits, sampling, PROMPT, output=OUTPUT, num=2000).tokens
    found, bound = chi_squared(tokens, twin(logits, sampling, PROMPT, OUTPUT))
    assert found < bound


def test_excluding_top_choices_happens_as_often_as_it_should():
    logits = torch.zeros(VOCAB_SIZE)
    logits[:4] = torch.tensor([4.0, 3.5, 3.0, 2.5])
    sampling = options(xtc_probability=0.3, xtc_threshold=0.1)
    tokens = draw(logits, sampling, num=4000).tokens
    on, off = twin(logits, sampling, xtc=True), twin(logits, sampling)
    assert on[0] == 0 < on[2]
    found, bound = chi_squared(tokens, 0.3 * on + 0.7 * off)
    assert found < bound


WARPERS = {
    "typical_p": lambda p: generation.TypicalLogitsWarper(p),
    "repetition_penalty": lambda p: generation.RepetitionPenaltyLogitsProcessor(p),
    "bad_words": lambda w: generation.NoBadWordsLogitsProcessor([list(ids) for ids in w]),
    "banned_token_ids": lambda ids: generation.SuppressTokensLogitsProcessor(ids, device="cpu"),
    "logit_bias": lambda b: generation.SequenceBiasLogitsProcessor({(i,): v for i, v in b}),
}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("typical_p", 0.3),
        ("typical_p", 0.95),
        ("repetition_penalty", 2.5),
        ("bad_words", ((30, 1, 2, 5), (2, 6), (8, 9))),
        ("banned_token_ids", (1, 4, 60)),
        ("logit_bias", ((4, 3.0), (5, -100.0))),
    ],
)
def test_an_option_is_that_of_transformers(name, value):
    logits = some_logits(seed=8)
    tokens = torch.tensor([PROMPT + OUTPUT])
    expected = WARPERS[name](value)(tokens, logits.clone())[0].double().softmax(0)
    drawn = draw(logits, options(**{name: value}), PROMPT, output=OUTPUT, num=2000).tokens
    found, bound = chi_squared(drawn, expected)
    assert found < bound


@pytest.mark.parametrize("top_p", [0.2, 0.95])
def test_top_p_and_min_p_are_those_of_transformers_behind_another_filter(top_p):
    logits, tokens = some_logits(seed=9), torch.tensor([PROMPT])
    scores = logits.clone()
    warpers = (
        generation.TemperatureLogitsWarper(0.7),
        generation.TopKLogitsWarper(20),
        generation.TypicalLogitsWarper(0.9),
        generation.TopPLogitsWarper(top_p),
        generation.MinPLogitsWarper(0.05),
    )
    for warper in warpers:
        scores = warper(tokens, scores)
    sampling = replace(options(typical_p=0.9), temperature=0.7, top_k=20, top_p=top_p, min_p=0.05)
    drawn = draw(logits, sampling, PROMPT, num=2000).tokens
    found, bound = chi_squared(drawn, scores[0].double().softmax(0))
    assert found < bound


def test_no_end_is_drawn_before_its_time_unless_it_is_all_that_is_left():
    logits = torch.zeros(VOCAB_SIZE)
    logits[7], logits[8] = 9.0, 8.0
    before = generation.MinNewTokensLengthLogitsProcessor(2, 3, [7], device="cpu")
    for output in ([], [1], [1, 1], [1, 1, 1]):
        tokens = torch.tensor([[5, 5, *output]])
        expected = int(before(tokens, logits.view(1, -1)).argmax())
        drawn = draw(logits, GREEDY, [5, 5], output=output, no_end=NoEnd((7,), 3)).tokens
        assert drawn.tolist() == [expected]
    only = replace(GREEDY, options=SamplerOptions(allowed_token_ids=(7,)))
    assert draw(logits, only, [5, 5], no_end=NoEnd((7,), 3)).tokens.tolist() == [7]


def test_a_mask_allows_its_tokens_and_reaches_no_other_row():
    logits = some_logits(4)
    bits = torch.zeros(2, 2, dtype=torch.int32)
    bits[0, 1], bits[1, 0] = 1 << 20, -(1 << 31)
    lines = torch.tensor([-1, 0, 1, -1], dtype=torch.int32)
    sampler, zeros = Sampler(4), torch.zeros(4, dtype=torch.int32)
    for slot in range(4):
        sampler.set(slot, GREEDY)
    places = (torch.arange(4, dtype=torch.int32), zeros, zeros, zeros)
    drawn = sampler.sample(logits, *places, TokenMasks(bits, lines))
    best = logits.argmax(1).tolist()
    assert drawn.tokens.tolist() == [best[0], 52, 31, best[3]]
    expected = logits.log_softmax(1)[range(4), drawn.tokens.tolist()]
    torch.testing.assert_close(drawn.logprobs, expected, rtol=0, atol=1e-5)
    assert drawn.ranks.tolist()[0] == 1 < drawn.ranks.tolist()[1]


def test_a_row_of_which_nothing_is_left_fails_alone():
    logits = some_logits(2)
    masks = TokenMasks(torch.zeros(1, 2, dtype=torch.int32), torch.tensor([-1, 0]).int())
    drawn = draw(logits[0], GREEDY, num=2, masks=masks)
    assert drawn.tokens.tolist() == [int(logits[0].argmax()), -2]


@pytest.mark.parametrize(
    ("masks", "message"),
    [
        ((torch.zeros(1, 3), torch.zeros(1)), "^mask: expected columns: 2, got 3$"),
        ((torch.zeros(1, 2), torch.zeros(2)), "^mask_of_draw: expected one per row: 1, got 2$"),
        ((torch.zeros(1, 2), torch.ones(1)), "^mask_of_draw: expected lines below 1, or -1, got 1"),
    ],
)
def test_masks_that_do_not_fit_are_refused(masks, message):
    with pytest.raises(ValueError, match=message):
        draw(some_logits()[0], GREEDY, masks=TokenMasks(*(part.int() for part in masks)))


def test_drafts_are_seen_as_accepted_and_forgotten_where_they_were_wrong():
    logits = some_logits(seed=4)[0]
    frequent = replace(GREEDY, options=SamplerOptions(frequency_penalty=2.0))
    sampler, prompt = Sampler(1), [1, 2]
    sampler.set(0, frequent, prompt)

    def step(position, tokens):
        """A row whose last token and drafts are these."""
        num, zeros = len(tokens), torch.zeros(len(tokens), dtype=torch.int32)
        places = torch.arange(position, position + num, dtype=torch.int32)
        last = torch.tensor(tokens, dtype=torch.int32)
        rows = logits.expand(num, -1).contiguous()
        return sampler.sample(rows, zeros, zeros, places, last).tokens.tolist()

    def expected(output):
        changed = reference.processed(logits, prompt, output, frequent.options)
        return int(changed.argmax())

    best = expected([])
    assert step(2, [2]) == [best]
    drafts = [best, best, 7]
    together = step(3, drafts)
    assert together == [expected(drafts[: i + 1]) for i in range(3)]
    # The first draft was wrong: the sequence goes on from what was drawn in its place.
    right = [best, together[0]]
    assert step(4, [together[0]]) == [expected(right)]
    # A preemption, or a failed step: the same positions are drawn again.
    assert step(3, [best]) == [expected([best])]


def test_a_history_with_a_gap_is_refused():
    sampler = Sampler(1)
    sampler.set(0, options(presence_penalty=1.0), [1, 2])
    one = torch.ones(1, dtype=torch.int32)
    message = "^position: expected one behind the tokens that are known, got 9$"
    with pytest.raises(ValueError, match=message):
        sampler.sample(some_logits(), 0 * one, 0 * one, 9 * one, one)


def test_a_slot_forgets_the_options_of_the_sequence_before():
    sampler, zero = Sampler(1), torch.zeros(1, dtype=torch.int32)
    logits = some_logits()
    best = int(logits.argmax())
    sampler.set(0, replace(GREEDY, options=SamplerOptions(banned_token_ids=(best,))))
    assert sampler.sample(logits, zero, zero, zero, zero).tokens.tolist() != [best]
    sampler.set(0, GREEDY)
    assert sampler.sample(logits, zero, zero, zero, zero).tokens.tolist() == [best]


def test_draws_with_every_option_do_not_depend_on_the_batch():
    logits = some_logits(12)
    alone, together = [], Sampler(12)
    zero, places = torch.zeros(1, dtype=torch.int32), torch.arange(12, dtype=torch.int32)
    for row in range(12):
        sampling = replace(EVERYTHING, seed=row)
        together.set(row, sampling, [row, 1, 2], token_table=TABLE)
        single = Sampler(1)
        single.set(0, sampling, [row, 1, 2], token_table=TABLE)
        alone += single.sample(logits[row : row + 1], zero, zero, zero + 3, zero + 2).tokens
    threes = torch.full((12,), 3, dtype=torch.int32)
    drawn = together.sample(logits, places, 0 * places, threes, threes - 1)
    assert drawn.tokens.tolist() == [int(token) for token in alone]


def test_candidates_are_the_likeliest_of_the_raw_logits():
    logits = some_logits(3)
    sampler, places = Sampler(3), torch.arange(3, dtype=torch.int32)
    wanted = {0: 0, 1: 4, 2: 20}
    for slot, count in wanted.items():
        asked = SamplerOptions(num_candidates=count, banned_token_ids=(int(logits[slot].argmax()),))
        sampler.set(slot, replace(PLAIN, options=asked))
    drawn = sampler.sample(logits, places, 0 * places, 0 * places, 0 * places)
    for slot, count in wanted.items():
        ids, logprobs = drawn.candidates.of(slot, count)
        expected = logits[slot].log_softmax(0).topk(count)
        assert ids == expected.indices.tolist()
        torch.testing.assert_close(torch.tensor(logprobs), expected.values, rtol=0, atol=1e-5)


DRY = {"dry_multiplier": 2.0}
CHANGES = {
    "allowed_token_ids": ({}, (1, 2)),
    "banned_token_ids": ({}, (25, 30)),
    "bad_words": ({}, ((2, 30),)),
    "logit_bias": ({}, ((30, -5.0),)),
    "repetition_penalty": ({}, 2.0),
    "presence_penalty": ({}, 2.0),
    "frequency_penalty": ({}, 2.0),
    "dry_multiplier": ({}, 3.0),
    "dry_base": (DRY, 4.0),
    "dry_allowed_length": (DRY, 3),
    "dry_penalty_last_n": (DRY, 3),
    "dry_sequence_breakers": (DRY, (b"b",)),
    "top_n_sigma": ({}, 1.0),
    "typical_p": ({}, 0.5),
    "xtc_probability": ({}, 0.7),
    "xtc_threshold": ({"xtc_probability": 1.0}, 0.3),
    "num_candidates": ({}, 0),
}
"""Of each option: what else is on, and a value that changes what is drawn behind `REPEATED`."""

REPEATED = [9, 1, 2, 30, 4, 25, 9, 1, 2]


@pytest.mark.parametrize("name", list(asdict(SamplerOptions())))
def test_every_option_changes_some_draw(name):
    """A field that the sampler does not read would pass all other tests of it."""
    others, value = CHANGES[name]
    logits = some_logits()[0]
    before = draw(logits, options(**others), [1], output=REPEATED, num=100)
    after = draw(logits, options(**others | {name: value}), [1], output=REPEATED, num=100)
    assert torch.equal(before.tokens, after.tokens) == (name == "num_candidates")
