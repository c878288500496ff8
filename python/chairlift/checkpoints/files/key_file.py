"""A file with a secret that processes of one service share."""

import os
import stat
from pathlib import Path
from typing import Final

from chairlift.api.errors import ConfigError, ModelError
from chairlift.checkpoints.files.fields import open_regular

_MIN_BYTES: Final = 32
_MAX_BYTES: Final = 4096


def read_key(setting: str, path: str, *, may_group_read: bool = False) -> bytes:
    """Return the bytes of a key file.

    Args:
        setting: The setting that names the file, for errors.
        path: Path of the file.
        may_group_read: Whether the group of the file may read it: an orchestrator mounts secrets
            so.

    Raises:
        ConfigError: It cannot be read, can be read by others, or is too short or too long.
    """
    try:
        with open_regular(Path(path)) as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            secret = file.read(_MAX_BYTES + 1)
    except OSError as error:
        message = f"{setting}: {path}: {error.strerror}"
        raise ConfigError(message) from None
    except ModelError as error:
        message = f"{setting}: {error}"
        raise ConfigError(message) from None
    expected = None
    group = stat.S_IWGRP | stat.S_IXGRP if may_group_read else stat.S_IRWXG
    if mode & (group | stat.S_IRWXO):
        expected = f"a file that its owner alone can read (chmod 600), got mode {mode:04o}"
    elif not _MIN_BYTES <= len(secret) <= _MAX_BYTES:
        expected = f"{_MIN_BYTES} to {_MAX_BYTES} bytes, got {len(secret)}"
    if expected is not None:
        message = f"{setting}: {path}: expected {expected}"
        raise ConfigError(message)
    return secret
