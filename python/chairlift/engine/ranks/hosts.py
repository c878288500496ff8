"""Ranks on other hosts: rank 0 listens, and each of them joins it with the same key.

```text
rank 0                              another rank (`chairlift rank`)
listen, wait for all        <-      join
compare                     <-      facts: version, kernels, model
settings, or a refusal      ->      load its part
wait                        <-      ready, or what is wrong
messages and parts of steps <->     until the group ends
```
"""

import json
import logging
import os
from typing import Any, Final

from chairlift import _core
from chairlift.api.addresses import rank_address
from chairlift.api.config import EngineConfig
from chairlift.api.errors import ModelError
from chairlift.api.logs import fields
from chairlift.checkpoints.files.key_file import read_key
from chairlift.engine.ranks.adapter_socket import LeadEnd
from chairlift.engine.ranks.facts import Facts
from chairlift.engine.ranks.processes import READY, START_S

REFUSED: Final = "refused"
"""The name under which rank 0 says why it does not take a rank."""

_FACTS_S: Final = 60.0
"""How long a rank may take to read what it says of itself."""
_log = logging.getLogger(__name__)


class RemoteRanks:
    """Ranks 1, 2, ... of one group, each on another host."""

    def __init__(self, config: EngineConfig, facts: Facts, spin_s: float, timeout_s: float) -> None:
        """Wait until all have joined.

        Args:
            config: Its settings name the address and the key.
            facts: Those that the others have to share.
            spin_s: How long this rank waits before it sleeps.
            timeout_s: How long it waits for a rank that computes.

        Raises:
            ConfigError: The key cannot be read.
            ModelError: The address is taken, or a rank does not join or is refused.
        """
        self._num_ranks = config.tensor_parallel
        self._owner = os.getpid()
        self.process_ids: list[int] = []
        self.adapters: list[LeadEnd] = []
        """None: adapters are not supported on several hosts."""
        address = rank_address(str(config.rank_listen), "rank_listen")
        key = read_key("rank_key", str(config.rank_key), may_group_read=True)
        try:
            listener = _core.RankListener(address, key)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            message = f"rank_listen: {address}: {reason}"
            raise ModelError(message) from None
        details = fields(address=listener.address, ranks=self._num_ranks)
        _log.info("waiting for the other ranks", extra=details)
        try:
            self.group = listener.meet(self._num_ranks, START_S, spin_s, timeout_s)
            self._compare(facts)
        except _core.RankError as error:
            message = f"rank_listen: {error}"
            raise ModelError(message) from None

    @property
    def is_owner(self) -> bool:
        """Whether this process met them; a fork of it did not."""
        return os.getpid() == self._owner

    def close(self) -> None:
        """Do nothing: the ranks see the end of the group, and join again."""

    @property
    def _others(self) -> range:
        return range(1, self._num_ranks)

    def _compare(self, facts: Facts) -> None:
        for rank in self._others:
            difference = facts.difference(Facts.of_text(self.group.hear(rank, _FACTS_S)))
            if difference is not None:
                self.group.tell(rank, json.dumps({REFUSED: difference}))
                self.group.close()
                message = f"rank {rank}: {difference}"
                raise ModelError(message)

    def tell(self, settings: dict[str, Any]) -> None:
        """Tell each rank what it needs to load its part.

        Raises:
            ModelError: The group has ended.
        """
        try:
            for rank in self._others:
                self.group.tell(rank, json.dumps({**settings, "rank": rank}))
        except _core.RankError as error:
            message = f"rank_listen: {error}"
            raise ModelError(message) from None

    def wait_until_ready(self) -> None:
        """Wait until every rank has its weights.

        Raises:
            ModelError: One cannot load its part, has ended, or takes too long.
        """
        for rank in self._others:
            try:
                text = self.group.hear(rank, START_S)
            except _core.RankError as error:
                message = f"rank {rank}: {error}"
                raise ModelError(message) from None
            if text != READY:
                message = f"rank {rank}: {text}"
                raise ModelError(message)
