"""A rank on another host than rank 0: it joins, loads its part, and computes with its group."""

import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from chairlift import _core
from chairlift.api.errors import ChairliftError, ConfigError, ModelError
from chairlift.api.logs import fields
from chairlift.api.machine import available_cores
from chairlift.engine.loading.rank_part import load_rank
from chairlift.engine.ranks.facts import Facts
from chairlift.engine.ranks.hosts import REFUSED
from chairlift.engine.ranks.lead import SPIN_S, TIMEOUT_S
from chairlift.engine.ranks.processes import READY, START_S

_PAUSE_S: Final = 1.0
"""Between two attempts to join."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HostRank:
    """What a rank knows before it joins."""

    model: Path
    leader: str
    """Address of rank 0."""
    key: bytes
    rank: int
    num_threads: int

    def join(self) -> _core.RankGroup:
        """Join rank 0, which may not listen yet.

        Raises:
            ConfigError: It has another key, or there is no such rank.
            ModelError: It does not listen in time.
        """
        deadline = time.monotonic() + START_S
        said = ""
        has_cores = self.num_threads <= available_cores()
        limits = SPIN_S if has_cores else 0.0, TIMEOUT_S
        while True:
            try:
                return _core.RankGroup.join(self.leader, self.key, self.rank, START_S, *limits)
            except ValueError as error:
                raise ConfigError(str(error)) from None
            except _core.RankError as error:
                reason = str(error)
            if time.monotonic() >= deadline:
                message = f"leader: {self.leader}: {reason}"
                raise ModelError(message)
            if reason != said:
                _log.info("rank 0 cannot be joined yet: %s", reason, extra=fields(rank=self.rank))
                said = reason
            time.sleep(_PAUSE_S)

    def compute(self, group: _core.RankGroup, on_ready: Callable[[int], None]) -> None:
        """Load the part of this rank, and compute until the group ends.

        Args:
            group: From `join`.
            on_ready: Called with the number of ranks when it takes messages.

        Raises:
            ChairliftError: Rank 0 refuses this rank, or the part cannot be loaded.
        """
        try:
            run = self._load(group, on_ready)
            run()
        except _core.RankError as error:
            _log.warning("the group has ended: %s", error, extra=fields(rank=self.rank))
        except BaseException:
            group.fail(self.rank)
            raise

    def _load(self, group: _core.RankGroup, on_ready: Callable[[int], None]) -> Callable[[], None]:
        group.tell(0, json.dumps(Facts.of(self.model)))
        settings = json.loads(group.hear(0, START_S))
        if REFUSED in settings:
            message = f"refused by rank 0: {settings[REFUSED]}"
            raise ModelError(message)
        settings |= {"model": str(self.model), "num_threads": self.num_threads}
        try:
            run = load_rank(settings, group, None)
        except (ChairliftError, MemoryError, OSError) as error:
            group.tell(0, " ".join(str(error).split()) or type(error).__name__)
            raise
        group.tell(0, READY)
        on_ready(settings["num_ranks"])
        return run
