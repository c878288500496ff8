"""Raises the limit of open files to what the connections need, or lowers that of connections."""

import logging
import resource
from typing import Final

from chairlift.api.errors import ConfigError
from chairlift.api.logs import fields
from chairlift.server.config import ServerConfig

_log = logging.getLogger(__name__)

RESERVE: Final = 256
"""Files beside connections: of the model, adapters, certificates, logs, processes, event loops."""
MAX_SCRAPES: Final = 16
"""Connections of the metrics port."""
_MIN_CONNECTIONS: Final = 16
"""Connections of a port; a server that could have fewer does not start."""


def with_files(config: ServerConfig) -> ServerConfig:
    """Return the settings with as many connections as there are files for.

    The soft limit of open files is raised as far as the hard one lets it. Where that is not enough,
    the server has fewer connections and says so: it would otherwise not start in a container whose
    limit was set without it in mind, and no client may take the file that another part needs.

    Raises:
        ConfigError: There are no files for the least number of connections.
    """
    num_ports = 1 + (config.http_listen is not None)
    reserve = RESERVE + (MAX_SCRAPES if config.metrics_listen is not None else 0)
    needed = num_ports * config.max_connections + reserve
    limit = _raise_limit(needed)
    if needed <= limit:
        return config
    num = (limit - reserve) // num_ports
    if num < min(_MIN_CONNECTIONS, config.max_connections):
        message = (
            f"max_connections: {config.max_connections} on each of {num_ports} ports need {needed}"
            f" open files, and the limit is {limit} (ulimit -n)"
        )
        raise ConfigError(message)
    _log.warning(
        "fewer connections than max_connections: the limit of open files (ulimit -n) is too low",
        extra=fields(max_connections=num, wanted=config.max_connections, files=limit, need=needed),
    )
    return config.model_copy(update={"max_connections": num})


def _raise_limit(needed: int) -> int:
    """Raise the soft limit up to what is needed; return what it is then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return needed
    wanted = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):
        return soft
    return wanted
