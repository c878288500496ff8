"""Which settings an engine needs whose blocks are moved; without torch, for a quick start."""

from chairlift.api.config import EngineConfig
from chairlift.api.errors import ConfigError
from chairlift.engine.loading.requirement import Requirement, unmet


def check_settings(config: EngineConfig, option: str) -> None:
    """Check the settings of an engine whose blocks are moved.

    Args:
        config: Settings of the engine.
        option: The setting that moves blocks, for errors.

    Raises:
        ConfigError: They do not allow it.
    """
    num_ranks = config.tensor_parallel
    requirements = (
        Requirement("prefix_cache", "on", config.prefix_cache, config.prefix_cache),
        # A rank has the keys and values of its heads alone.
        Requirement("tensor_parallel", "1", num_ranks, num_ranks == 1),
    )
    if (reason := unmet(requirements, f"with {option}")) is not None:
        raise ConfigError(reason)
