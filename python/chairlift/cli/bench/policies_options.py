"""Options of `chairlift bench policies` whose values are lists, and those that go together."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from chairlift.api.errors import ConfigError
from chairlift.bench.sources import (
    Offered,
    Source,
    chat_source,
    prompts_source,
    recipe_source,
    trace_source,
)

_REQUESTS: Final = 96


@dataclass(frozen=True, slots=True)
class Work:
    """The options that choose the requests."""

    requests: int | None
    max_tokens: int
    seed: int
    recipe: str | None = None
    scale: float | None = None
    trace: Path | None = None
    prompts: Path | None = None


@dataclass(frozen=True, slots=True)
class Arrival:
    """The options that say when requests arrive."""

    rates_per_s: Sequence[float] | None
    burstiness: float | None
    concurrency: int | None

    def rates_of(self, source: Source) -> Sequence[float | None]:
        """Return the offered rates; None is the source's own times.

        Raises:
            ConfigError: Two options contradict each other.
        """
        if self.concurrency is not None and (self.rates_per_s or self.burstiness):
            message = "concurrency: expected no --rates and no --burstiness beside it"
            raise ConfigError(message)
        if self.burstiness is not None and not self.rates_per_s:
            message = "burstiness: expected --rates beside it"
            raise ConfigError(message)
        if self.concurrency is not None:
            return [math.inf]
        return self.rates_per_s or [None if source.has_times else math.inf]


def source_of(work: Work) -> Source:
    """Return where the requests come from.

    Raises:
        ConfigError: Two options contradict each other, or a file cannot be read.
    """
    given = [name for name in ("recipe", "trace", "prompts") if getattr(work, name) is not None]
    if len(given) > 1:
        message = f"{given[0]}: expected no --{given[1]} beside it"
        raise ConfigError(message)
    if work.scale is not None and work.recipe is None:
        message = "scale: expected --recipe beside it"
        raise ConfigError(message)
    if work.recipe is not None:
        return recipe_source(work.recipe, work.requests, work.scale or 1.0, work.seed)
    if work.trace is not None:
        return trace_source(work.trace, work.requests, work.seed)
    if work.prompts is not None:
        return prompts_source(work.prompts, work.requests, work.max_tokens, work.seed)
    return chat_source(work.requests or _REQUESTS, work.max_tokens, work.seed)


def offered_of(arrival: Arrival) -> Offered:
    """Return how requests arrive at each rate."""
    burstiness = 1.0 if arrival.burstiness is None else arrival.burstiness
    return Offered(burstiness, arrival.concurrency)


def sizes_of(text: str | None) -> list[int]:
    """Return the numbers of rows of a list such as `1,2,4,8`, each once; none for None.

    Raises:
        ConfigError: It is no such list.
    """
    found = []
    for part in text.split(",") if text is not None else ():
        if not (part.strip().isdecimal() and 0 < int(part) <= _MAX_ROWS):
            message = f"batch_sizes: expected rows such as 1,2,4,8, got {part!r}"
            raise ConfigError(message)
        found.append(int(part))
    return list(dict.fromkeys(found))


_MAX_ROWS: Final = 65_536
