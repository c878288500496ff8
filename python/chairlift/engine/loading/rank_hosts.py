"""Settings of ranks on several hosts; without torch, for a quick start."""

import os
from typing import Final

from chairlift.api.addresses import rank_address
from chairlift.api.config import EngineConfig
from chairlift.api.errors import ConfigError
from chairlift.engine.loading.requirement import Requirement, unmet

_GROUP_SIZE: Final = "LWS_GROUP_SIZE"
"""Pods of a group of a LeaderWorkerSet, in the environment of each."""


def check_hosts(settings: EngineConfig) -> None:
    """Check the settings of ranks on several hosts.

    Raises:
        ConfigError: They do not fit each other, the key cannot be read, or a LeaderWorkerSet has
            another number of pods.
    """
    num_ranks, listen, key = settings.tensor_parallel, settings.rank_listen, settings.rank_key
    if listen is None:
        if key is not None:
            message = "rank_key: expected none without rank_listen"
            raise ConfigError(message)
        return
    num_slots = settings.num_adapter_slots
    requirements = (
        Requirement("rank_key", "a file", key, key is not None),
        Requirement("tensor_parallel", "2 or more", num_ranks, num_ranks > 1),
        Requirement("max_adapters", "none", num_slots, num_slots == 0),
    )
    if (unmet_one := unmet(requirements, "with rank_listen")) is not None:
        raise ConfigError(unmet_one)
    rank_address(listen, "rank_listen")
    if (size := os.environ.get(_GROUP_SIZE)) is not None and size != str(num_ranks):
        message = f"tensor_parallel: expected {size}, which is {_GROUP_SIZE}, got {num_ranks}"
        raise ConfigError(message)
