"""Draws of rows that ask for more, on the device against those on the CPU: the same tokens."""

import math
from dataclasses import replace

import pytest
import torch
from chairlift import _core
from chairlift.api.sampler_options import SamplerOptions, SamplingParameters
from chairlift.engine.runner.sampler import NoEnd, Sampler
from torch import Tensor

from tests.cuda.conftest import Launch, launch_emulated
from tests.cuda.emulation import guarded, reversed_turns
from tests.cuda.test_sample import SHARED_BYTES, normal

KERNEL = "chairlift::sample_options"
VOCAB_SIZE = 1211
NUM_DRAFTS = 2
TABLE = _core.TokenTable([b"%d " % i for i in range(VOCAB_SIZE)], [])
PLAIN = SamplingParameters(temperature=0.8, top_k=0, top_p=1.0, min_p=0.0, seed=11)
GREEDY = replace(PLAIN, temperature=0.0)
PROMPT = [1, 2, 3, 4, 9, 1, 2, 3, 700, 1, 2]
OUTPUT = [3, 4, 30, 30, 1, 2, 3]


def options(**values: object) -> SamplingParameters:
    return replace(PLAIN, options=SamplerOptions(**values))


def greedy(**values: object) -> SamplingParameters:
    return replace(options(**values), temperature=0.0)


EVERYTHING = replace(
    options(
        allowed_token_ids=(*range(0, VOCAB_SIZE, 2), 1, 3, 9),
        banned_token_ids=(8, 10, 12),
        bad_words=((2, 3, 4), (14,)),
        logit_bias=((3, 2.0), (6, -3.0), (8, 50.0)),
        repetition_penalty=1.3,
        presence_penalty=0.4,
        frequency_penalty=0.3,
        dry_multiplier=0.8,
        top_n_sigma=2.5,
        typical_p=0.95,
        xtc_probability=0.5,
        xtc_threshold=0.05,
        num_candidates=7,
    ),
    top_k=200,
    top_p=0.9,
    min_p=0.02,
)
NEAR = ((3, 20.0), (4, 20.0), (30, 20.0))
"""Tokens of the text that are likely, near to one that is not."""
SAMPLINGS = [
    PLAIN,
    GREEDY,
    options(allowed_token_ids=(3, 9, 17, 40, 1210)),
    greedy(logit_bias=((9, 30.0),), banned_token_ids=tuple(range(0, VOCAB_SIZE, 3))),
    greedy(logit_bias=((4, 30.0),), bad_words=((2, 3, 4), (3, 4, 30), (30, 30, 30))),
    greedy(logit_bias=(*NEAR, (1, -100.0))),
    greedy(logit_bias=(*NEAR, (5, 19.0)), repetition_penalty=1.7),
    options(logit_bias=(*NEAR, (5, 21.0)), repetition_penalty=0.6),
    greedy(logit_bias=(*NEAR, (5, 19.0)), presence_penalty=1.9),
    greedy(logit_bias=(*NEAR, (5, 19.0)), frequency_penalty=1.9),
    greedy(logit_bias=(*NEAR, (5, 20.5)), frequency_penalty=-1.9),
    greedy(logit_bias=(*NEAR, (5, 19.0)), dry_multiplier=1.1, dry_base=2.0),
    options(top_n_sigma=1.0),
    options(top_n_sigma=0.3, banned_token_ids=(5, 6)),
    options(typical_p=0.4),
    replace(options(typical_p=0.3), top_k=60, top_p=0.8, min_p=0.05),
    replace(options(xtc_probability=1.0, xtc_threshold=0.02), top_k=5),
    replace(options(xtc_probability=1.0, xtc_threshold=0.0), top_k=50),
    replace(options(xtc_probability=0.9, xtc_threshold=0.02), top_p=0.9),
    options(num_candidates=20),
    greedy(num_candidates=1),
    EVERYTHING,
]


class Sequences:
    """One sequence for each sampling: a draw behind its output, and one behind each draft."""

    def __init__(self, samplings: list[SamplingParameters], no_end: NoEnd | None = None) -> None:
        self.samplings = samplings
        self.no_end = no_end or NoEnd((), 0)
        self.num_draws = 1 + NUM_DRAFTS
        rows = len(samplings) * self.num_draws
        self.slots = torch.arange(rows, dtype=torch.int32) // self.num_draws
        self.index = self.slots % 3
        self.tokens = torch.full((rows,), -9, dtype=torch.int32)
        self.logprobs = torch.full((rows,), math.nan)
        self.ranks = torch.full((rows,), -9, dtype=torch.int32)
        self.rows = rows

    def sampler(self) -> Sampler:
        sampler = Sampler(len(self.samplings))
        for slot, sampling in enumerate(self.samplings):
            seeded = replace(sampling, seed=sampling.seed + 77 * slot)
            sampler.set(slot, seeded, PROMPT, self.no_end, TABLE)
        return sampler

    def steps(self) -> list[tuple[Tensor, Tensor]]:
        """Positions and last tokens: of each output token's draw, then of the step with drafts."""
        known = [*PROMPT, *OUTPUT]
        ends = [*range(len(PROMPT), len(known)), len(known)]
        steps = []
        for end in ends:
            places = torch.arange(end, end + self.num_draws, dtype=torch.int32)
            # Drafts repeat the text from its start.
            drafts = [known[end - 1], *known[:NUM_DRAFTS]]
            last = torch.tensor(drafts, dtype=torch.int32)
            steps.append((places.repeat(len(self.samplings)), last.repeat(len(self.samplings))))
        return steps

    def parameters(self, sampler: Sampler) -> list[Tensor]:
        kinds = (torch.float32, torch.int32, torch.float32, torch.float32, torch.int64)
        out = [torch.zeros(self.rows, dtype=kind) for kind in kinds]
        sampler.gather(self.slots, *out)
        return out

    def on_cpu(self, logits: Tensor) -> tuple[list[Tensor], _core.Candidates | None]:
        sampler = self.sampler()
        for position, last in self.steps():
            drawn = sampler.sample(logits, self.slots, self.index, position, last)
        return [drawn.tokens, drawn.logprobs, drawn.ranks], drawn.candidates

    def on_device(
        self, run: Launch, logits: Tensor, too_complex: int | None = None
    ) -> tuple[list[Tensor], _core.Candidates]:
        sampler = self.sampler()
        for position, last in self.steps():
            draws = sampler.sequences(self.slots, position)
            assert draws is not None
            lists = draws.lists(last, logits.shape[1])
            # What was drawn does not count: the next step says what did.
            draws.record(last)
        sent = torch.zeros(len(lists), dtype=torch.int32)
        lists.write(sent)
        parts = [16 * self.rows, 2 * lists.num_entries, lists.num_mask_words]
        rows, entries, masks = (guarded(part) for part in torch.split(sent, parts))
        if too_complex is not None:
            rows[16 * too_complex] = -2
        width = lists.num_candidates
        ids = guarded(torch.full((self.rows, width), -9, dtype=torch.int32))
        id_logprobs = guarded(torch.full((self.rows, width), math.nan))
        changed = guarded(logits)
        out = [guarded(part) for part in (self.tokens, self.logprobs, self.ranks)]
        saved = guarded(torch.full((lists.num_entries,), math.nan))
        arguments = [changed, *out, ids, id_logprobs, *self.parameters(sampler)]
        arguments += [self.index, position, rows, entries, saved, masks, width]
        arguments += [logits.shape[1], logits.stride(0)]
        run(KERNEL, (self.rows,), 1024, SHARED_BYTES, arguments)
        assert torch.equal(changed.view(torch.int32), logits.view(torch.int32)), "as they were"
        return out, _core.Candidates.of_draws(ids, id_logprobs)

    def check(self, run: Launch, logits: Tensor) -> list[int]:
        """Compare, and return the tokens."""
        found, candidates = self.on_device(run, logits)
        expected, expected_candidates = self.on_cpu(logits)
        assert found[0].tolist() == expected[0].tolist()
        torch.testing.assert_close(found[1], expected[1], rtol=1e-5, atol=1e-5)
        assert torch.equal(found[2], expected[2])
        for row in range(self.rows):
            count = self.samplings[row // self.num_draws].options.num_candidates
            if count:
                assert expected_candidates is not None
                (ids, logprobs) = candidates.of(row, count)
                (expected_ids, expected_logprobs) = expected_candidates.of(row, count)
                assert ids == expected_ids
                assert logprobs == pytest.approx(expected_logprobs, rel=1e-5, abs=1e-5)
        tokens: list[int] = found[0].tolist()
        return tokens


def test_draws_the_tokens_of_the_cpu_in_one_step(run: Launch) -> None:
    sequences = Sequences(SAMPLINGS)
    tokens = sequences.check(run, normal(sequences.rows, VOCAB_SIZE))
    assert len(set(tokens)) > 20


def test_each_option_changes_a_draw(run: Launch) -> None:
    """A row with the same seed, logits and bias draws otherwise without the option."""
    sequences = Sequences(SAMPLINGS)
    logits = normal(1, VOCAB_SIZE, seed=5).expand(sequences.rows, -1).contiguous()
    logits[:, [3, 4, 5, 30]] = torch.tensor([0.25, 0.5, 0.0, 0.0])
    found = sequences.check(run, logits)
    bare = [SamplerOptions(logit_bias=s.options.logit_bias, num_candidates=1) for s in SAMPLINGS]
    plain = [replace(s, options=o) for s, o in zip(SAMPLINGS, bare, strict=True)]
    without = Sequences(plain).check(run, logits)
    pairs = enumerate(zip(found, without, strict=True))
    changed = {row // sequences.num_draws for row, (one, other) in pairs if one != other}
    expected = {
        i
        for i, (s, o) in enumerate(zip(SAMPLINGS, bare, strict=True))
        if replace(s.options, num_candidates=1) != o
    }
    assert changed == expected


@pytest.mark.parametrize("vocab_size", [1, 33, 700])
def test_any_size_of_vocabulary(run: Launch, vocab_size: int) -> None:
    # Ids beyond the vocabulary are ignored.
    sequences = Sequences([greedy(allowed_token_ids=(0, 32, 699)), EVERYTHING])
    sequences.check(run, normal(sequences.rows, vocab_size))


def test_ends_come_late_unless_they_alone_are_left(run: Launch) -> None:
    both = Sequences(
        [greedy(), greedy(allowed_token_ids=(5, 6)), greedy(allowed_token_ids=(5, 7))],
        NoEnd((5, 6), len(OUTPUT) + 2),
    )
    logits = normal(both.rows, VOCAB_SIZE)
    logits[:, 5] = 30
    tokens = both.check(run, logits)
    # The draw behind the last draft comes late enough.
    assert [token == 5 for token in tokens] == [False, False, True, *[True] * 3, False, False, True]


def test_rows_without_a_distribution_and_without_a_token_are_told_apart(run: Launch) -> None:
    nothing = options(allowed_token_ids=(5, 6), banned_token_ids=(5, 6), num_candidates=2)
    sequences = Sequences([nothing, EVERYTHING, PLAIN, EVERYTHING, EVERYTHING])
    logits = normal(sequences.rows, VOCAB_SIZE)
    logits[3, 77] = math.nan
    logits[7, 3] = math.inf
    logits[9] = -math.inf
    logits[12, 50:] = -math.inf
    logits[14, 1:] = -math.inf
    tokens = sequences.check(run, logits)
    assert tokens[:3] == [-2] * 3
    assert [row for row, token in enumerate(tokens) if token == -1] == [3, 7, 9]
    (found, *_), _ = sequences.on_device(run, logits, too_complex=7)
    assert found[7] == -3
    assert [*found[:7], *found[8:]] == [*tokens[:7], *tokens[8:]]


def test_turns_of_the_threads_change_nothing() -> None:
    sequences = Sequences([EVERYTHING, options(typical_p=0.5)])
    logits = normal(sequences.rows, VOCAB_SIZE, seed=2)
    expected, _ = sequences.on_device(launch_emulated, logits)
    with reversed_turns(KERNEL):
        found, _ = sequences.on_device(launch_emulated, logits)
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


def test_candidates_among_equals_go_by_id(run: Launch) -> None:
    sequences = Sequences([options(num_candidates=20)])
    logits = torch.zeros(sequences.rows, 300)
    logits[:, 7] = 1.0
    sequences.check(run, logits)
    _, candidates = sequences.on_device(run, logits)
    assert candidates.of(0, 20)[0] == [7, *range(7), *range(8, 20)]
