"""How the next token is drawn: one table of parameters, one kernel call per step."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from chairlift import _core

if TYPE_CHECKING:
    from chairlift.engine.prepare import Drawing

_SEED_MODULUS = 1 << 64
_SEED_SIGN = 1 << 63


@dataclass(frozen=True, slots=True)
class Sampled:
    """What one step drew, or will have drawn when `wait` returns; S sample slots."""

    tokens: Tensor
    """int32 `[S]`"""
    counts: Tensor
    """int32 `[S]`: 1, or -1 where the logits were not finite."""
    logprobs: Tensor
    """float32 `[S]`: log softmax of the raw logits at the token."""
    ranks: Tensor
    """int32 `[S]`: 1 is the likeliest."""

    def wait(self) -> "Sampled":
        """Gives the same once it is known, which on the CPU it is at once."""
        return self

    @classmethod
    def empty(cls, num_samples: int) -> "Sampled":
        """Allocates the arrays of a step; each has its own, because delivery reads them later."""
        return cls(
            tokens=torch.empty(num_samples, dtype=torch.int32),
            counts=torch.empty(num_samples, dtype=torch.int32),
            logprobs=torch.empty(num_samples, dtype=torch.float32),
            ranks=torch.empty(num_samples, dtype=torch.int32),
        )


class Sampler:
    """Sampling parameters of every request by slot, gathered per step for the rows that sample."""

    def __init__(self, num_slots: int) -> None:
        self._temperature = torch.zeros(num_slots, dtype=torch.float32)
        self._top_k = torch.zeros(num_slots, dtype=torch.int32)
        self._top_p = torch.ones(num_slots, dtype=torch.float32)
        self._min_p = torch.zeros(num_slots, dtype=torch.float32)
        self.seed = torch.zeros(num_slots, dtype=torch.int64)
        """`[num_slots]`, the 64 bits of each request's seed."""

    def set(self, slot: int, drawing: "Drawing") -> None:
        """Writes a new request's parameters to its slot."""
        self._temperature[slot] = drawing.temperature
        self._top_k[slot] = drawing.top_k
        self._top_p[slot] = drawing.top_p
        self._min_p[slot] = drawing.min_p
        self.seed[slot] = signed_seed(drawing.seed)

    def sample(self, logits: Tensor, slots: Tensor, index: Tensor, position: Tensor) -> Sampled:
        """Draws one token per row.

        Args:
            logits: float32 `[S, vocab_size]`.
            slots: int32 `[S]`, the request of each row.
            index: int32 `[S]`, which of its n answers.
            position: int32 `[S]`, of the token that is drawn.
        """
        sampled = Sampled.empty(len(slots))
        _core.sample(
            logits,
            *(table.index_select(0, slots) for table in self._tables()),  # type: ignore[call-arg]
            index,
            position,
            sampled.tokens,
            sampled.counts,
            sampled.logprobs,
            sampled.ranks,
        )
        return sampled

    def gather(self, slots: Tensor, *out: Tensor) -> None:
        """Writes temperature, top_k, top_p, min_p and seed of some slots to the front of `out`."""
        for table, parameter in zip(self._tables(), out, strict=True):
            torch.index_select(table, 0, slots, out=parameter[: len(slots)])

    def _tables(self) -> tuple[Tensor, ...]:
        return self._temperature, self._top_k, self._top_p, self._min_p, self.seed


def signed_seed(seed: int) -> int:
    """Gives the int64 with the 64 bits of an unsigned seed."""
    return seed - _SEED_MODULUS if seed >= _SEED_SIGN else seed
