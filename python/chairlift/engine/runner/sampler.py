"""From logits to tokens: the parameters of every request by slot, and one kernel call per step.

Parameters that every draw has are in tables, gathered per step. Options that few requests have, and
the tokens that such options look at, are in the core (`_core.SamplerStates`): a row without options
costs nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from chairlift import _core
from chairlift.api.sampler_options import SamplerOptions, SamplingParameters
from chairlift.core.events import PromptScores

_SEED_MODULUS = 1 << 64
_SEED_SIGN = 1 << 63
_NO_OPTIONS = SamplerOptions()


class TokenMasks(NamedTuple):
    """Which tokens the draws of a step may give; a draw without a mask costs nothing."""

    bits: Tensor
    """int32 `[M, ceil(vocab_size / 32)]`: bit i % 32 of number i / 32 allows token i."""
    of_draw: Tensor
    """int32 `[S]`: the line of each draw; -1 is none. Draws may share a line."""


class NoEnd(NamedTuple):
    """Ids that end an answer, which are not drawn before so many tokens of output."""

    end_ids: Sequence[int]
    min_tokens: int


_ALWAYS = NoEnd((), 0)


@dataclass(frozen=True, slots=True)
class Sampled:
    """The draws of one step, known when `wait` returns; S sample slots."""

    tokens: Tensor
    """int32 `[S]`; -1 where the logits were not finite, -2 where no token was left to draw, -3
    where a constraint cannot be computed."""
    logprobs: Tensor
    """float32 `[S]`: log softmax of the raw logits at the token; anything for a request that does
    not ask."""
    ranks: Tensor
    """int32 `[S]`: 1 is the likeliest; anything for a request that does not ask."""
    prompt: PromptScores | None = None
    """Log probabilities of prompts."""
    candidates: _core.Candidates | None = None
    """Candidates of the draws whose requests ask for some."""

    def wait(self) -> "Sampled":
        """Return the same once it is known, which on the CPU it is at once."""
        return self

    @classmethod
    def empty(cls, num_samples: int) -> "Sampled":
        """Allocate the arrays of a step; each has its own, because delivery reads them later."""
        return cls(
            tokens=torch.empty(num_samples, dtype=torch.int32),
            logprobs=torch.empty(num_samples, dtype=torch.float32),
            ranks=torch.empty(num_samples, dtype=torch.int32),
        )


class Sampler:
    """Sampling parameters of every request by slot, gathered per step for the rows that sample."""

    def __init__(self, num_slots: int, *, has_idle_cores: bool = False) -> None:
        """Let every slot draw without options.

        Args:
            num_slots: Slots of sequences.
            has_idle_cores: The kernels of a step leave cores to what is computed beside them.
        """
        self._temperature = torch.zeros(num_slots, dtype=torch.float32)
        self._top_k = torch.zeros(num_slots, dtype=torch.int32)
        self._top_p = torch.ones(num_slots, dtype=torch.float32)
        self._min_p = torch.zeros(num_slots, dtype=torch.float32)
        self.seed = torch.zeros(num_slots, dtype=torch.int64)
        """`[num_slots]`, the 64 bits of each request's seed."""
        self._scored = torch.ones(num_slots, dtype=torch.int32)
        self._states = _core.SamplerStates(num_slots)
        self.constraints = _core.Constraints(num_slots, has_idle_cores=has_idle_cores)
        """Matchers of the sequences that have a constraint."""
        self._prompt_lens = np.zeros(num_slots, dtype=np.int64)
        self._prompt_candidates = np.zeros(num_slots, dtype=np.int64)

    def set(
        self,
        slot: int,
        sampling: SamplingParameters,
        prompt: Sequence[int] = (),
        no_end: NoEnd = _ALWAYS,
        token_table: _core.TokenTable | None = None,
        num_prompt_candidates: int = 0,
        *,
        scored: bool = True,
    ) -> None:
        """Begin a sequence in a slot.

        Args:
            slot: The scheduler's; what it held before is forgotten.
            sampling: Parameters of the request.
            prompt: Its tokens.
            no_end: Ids that are not drawn at first.
            token_table: The model's tokens; needed for DRY alone.
            num_prompt_candidates: The likeliest tokens that come with a prompt's log probabilities.
            scored: Whether the log probabilities and ranks of its tokens are wanted.
        """
        self.constraints.clear(slot)
        self._prompt_lens[slot] = len(prompt)
        self._prompt_candidates[slot] = num_prompt_candidates
        self._temperature[slot] = sampling.temperature
        self._top_k[slot] = sampling.top_k
        self._top_p[slot] = sampling.top_p
        self._min_p[slot] = sampling.min_p
        self.seed[slot] = signed_seed(sampling.seed)
        self._scored[slot] = int(scored)
        options = sampling.options
        if options == _NO_OPTIONS and no_end.min_tokens == 0:
            self._states.clear(slot)
            return
        self._states.set(
            slot,
            prompt,
            allowed_ids=options.allowed_token_ids,
            banned_ids=options.banned_token_ids,
            bad_words=options.bad_words,
            end_ids=no_end.end_ids,
            no_end_before=len(prompt) + no_end.min_tokens if no_end.min_tokens else 0,
            logit_bias=options.logit_bias,
            repetition_penalty=options.repetition_penalty,
            presence_penalty=options.presence_penalty,
            frequency_penalty=options.frequency_penalty,
            dry_multiplier=options.dry_multiplier,
            dry_base=options.dry_base,
            dry_allowed_length=options.dry_allowed_length,
            dry_last_n=options.dry_penalty_last_n,
            dry_breakers=options.dry_sequence_breakers,
            top_n_sigma=options.top_n_sigma,
            typical_p=options.typical_p,
            xtc_probability=options.xtc_probability,
            xtc_threshold=options.xtc_threshold,
            num_candidates=options.num_candidates,
            token_table=token_table if options.dry_multiplier else None,
        )

    def set_no_end(self, slots: Sequence[int], no_end: NoEnd, ends_early: bool = True) -> None:
        """Replace what the sequences of these slots draw at their ends.

        Args:
            slots: The scheduler's slots.
            no_end: Ids that are not drawn at first.
            ends_early: Whether a sequence with a constraint may end where this may, and not only
                where it must.
        """
        for slot in slots:
            self.constraints.set_ends_early(slot, ends_early)
            before = int(self._prompt_lens[slot]) + no_end.min_tokens if no_end.min_tokens else 0
            self._states.set_no_end(slot, no_end.end_ids, before)

    def sample(
        self,
        logits: Tensor,
        slots: Tensor,
        index: Tensor,
        position: Tensor,
        last_tokens: Tensor,
        masks: TokenMasks | None = None,
        constraints: _core.ConstraintMasks | None = None,
    ) -> Sampled:
        """Draw one token per row.

        Draws of one sequence stand in the order of their positions: one behind its last token, and
        one behind each draft, which takes the draft and those before it as accepted.

        Args:
            logits: float32 `[S, vocab_size]`.
            slots: int32 `[S]`, the request of each row.
            index: int32 `[S]`, which of its n answers.
            position: int32 `[S]`, of the token that is drawn.
            last_tokens: int32 `[S]`, the token before it: the last, or a draft.
            masks: Which tokens each draw may give.
            constraints: The masks of constraints, in place of `masks`; `sample` waits for them.
        """
        sampled = Sampled.empty(len(slots))
        temperature, top_k, top_p, min_p, seed = (
            table.index_select(0, slots) for table in self._tables()
        )
        candidates = _core.sample(
            logits,
            temperature,
            top_k,
            top_p,
            min_p,
            seed,
            index,
            position,
            sampled.tokens,
            sampled.logprobs,
            sampled.ranks,
            scored=self._scored.index_select(0, slots),
            states=self._states,
            slots=slots,
            last_tokens=last_tokens,
            mask=None if masks is None else masks.bits,
            mask_of_draw=None if masks is None else masks.of_draw,
            constraints=constraints,
        )
        return sampled if candidates is None else replace(sampled, candidates=candidates)

    def sequences(self, slots: Tensor, position: Tensor) -> _core.SequenceDraws | None:
        """Return what draws ask for beside what `gather` gives; None where none does.

        Args:
            slots: int32 `[S]`.
            position: int32 `[S]`, of the tokens that are drawn.
        """
        return _core.SequenceDraws.of(self._states, self.constraints, slots, position)

    def max_prompt_candidates(self, slots: Tensor) -> int:
        """Return the most candidates that the prompts of the slots, int32 `[S]`, ask for."""
        return int(self._prompt_candidates[slots.numpy()].max(initial=0))

    def gather(self, slots: Tensor, *out: Tensor) -> None:
        """Write the parameters of some slots to the front of tensors.

        Args:
            slots: int32 `[S]`.
            *out: Temperature, top_k, top_p, min_p and seed, each `[S]` or longer.
        """
        for table, parameter in zip(self._tables(), out, strict=True):
            torch.index_select(table, 0, slots, out=parameter[: len(slots)])

    def _tables(self) -> tuple[Tensor, ...]:
        return self._temperature, self._top_k, self._top_p, self._min_p, self.seed


def signed_seed(seed: int) -> int:
    """Return the int64 with the 64 bits of an unsigned seed."""
    return seed - _SEED_MODULUS if seed >= _SEED_SIGN else seed
