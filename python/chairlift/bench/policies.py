"""The ways of batching that `chairlift bench policies` compares, and the runs of a comparison."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, Final

from chairlift.api.choices import Batching
from chairlift.api.errors import ConfigError

SCHEMA: Final = "chairlift.bench/2"

_WHOLE_PROMPTS: Final = 16_384
"""Tokens of a step that holds whole prompts, unless the longest alone is longer."""


@dataclass(frozen=True, slots=True)
class Policy:
    """One way of batching."""

    name: str
    about: str
    batching: Batching = Batching.CONTINUOUS
    is_single_row: bool = False
    """The batch has one row, whatever the comparison says."""
    has_whole_prompts: bool = False
    """A step has room for all prompts that are there, so that none is cut into chunks."""
    prefix_cache: bool = False
    is_padded: bool = False
    """Every answer is computed to the length of the longest of all."""

    def rows(self, rows: int) -> int:
        """Return the rows of the batch where the comparison has so many."""
        return 1 if self.is_single_row else rows

    def settings(self, rows: int, longest_prompt: int, budget: int) -> dict[str, Any]:
        """Return the settings of an engine.

        Args:
            rows: Rows of the batch.
            longest_prompt: Tokens.
            budget: Tokens of a step under the other policies.
        """
        settings: dict[str, Any] = {
            "batching": self.batching,
            "max_num_seqs": self.rows(rows),
            "prefix_cache": self.prefix_cache,
        }
        if self.has_whole_prompts:
            # Room for a token of every row beside the prompts.
            prompts = min(rows * longest_prompt, max(longest_prompt, _WHOLE_PROMPTS))
            settings["max_num_batched_tokens"] = max(budget, prompts + rows)
        return settings


_ALL: Final = (
    Policy("none", "no batching: one row, one request after the other", is_single_row=True),
    Policy(
        "padded",
        "static, every answer computed to the length of the longest of all",
        Batching.STATIC,
        is_padded=True,
    ),
    Policy("static", "a batch runs until its longest answer has ended", Batching.STATIC),
    Policy("dynamic", "the same, and a batch begins after a short wait", Batching.DYNAMIC),
    Policy(
        "unchunked",
        "continuous: a request joins at every step, its prompt is one step",
        has_whole_prompts=True,
    ),
    Policy("continuous", "a request joins at every step, prompts are cut into chunks"),
    Policy("cached", "continuous, equal beginnings of prompts computed once", prefix_cache=True),
)
POLICIES: Final[Mapping[str, Policy]] = MappingProxyType({p.name: p for p in _ALL})
"""By name, from the simplest to the most capable."""
USUAL: Final = ("none", "static", "dynamic", "unchunked", "continuous", "cached")
"""Those that are compared unless others are named."""


def policies_of(text: str) -> list[Policy]:
    """Return the policies of a list such as `static,continuous`, each once, in the order given.

    Raises:
        ConfigError: A name is unknown.
    """
    names = [name.strip() for name in text.split(",")]
    if unknown := [name for name in names if name not in POLICIES]:
        message = f"policies: expected some of {', '.join(POLICIES)}, got {unknown[0]!r}"
        raise ConfigError(message)
    return [POLICIES[name] for name in dict.fromkeys(names)]


@dataclass(frozen=True, slots=True)
class Case:
    """One run of a comparison."""

    policy: Policy
    rows: int
    """Rows of the batch, under policies of more than one."""
    rate_per_s: float | None
    """Offered requests per second; inf is all at once, None the workload's own times."""
    repeat: int
    """Counts from 1."""

    def key(self, common: Mapping[str, object]) -> str:
        """Return a name of the run for the settings that it was made with.

        Args:
            common: Settings of all runs of the comparison.
        """
        settings = asdict(self.policy) | {
            "rows": self.policy.rows(self.rows),
            "rate_per_s": str(self.rate_per_s),
            "repeat": self.repeat,
        }
        text = json.dumps([SCHEMA, settings, common], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Grid:
    """The runs of a comparison.

    Policies take turns within a repetition, so that what the machine does beside concerns all of
    them alike; runs that need the same engine follow one another.
    """

    policies: Sequence[Policy]
    rows: Sequence[int]
    rates_per_s: Sequence[float | None]
    repeat: int = 1

    def engines(self) -> Iterator[list[Case]]:
        """Yield the runs of each engine, in order."""
        for repeat in range(1, self.repeat + 1):
            for number, rows in enumerate(self.rows):
                for policy in self.policies:
                    # One row is one row in each size of the batch.
                    if not (policy.is_single_row and number):
                        yield [Case(policy, rows, rate, repeat) for rate in self.rates_per_s]

    def __len__(self) -> int:
        return sum(len(cases) for cases in self.engines())
