"""A value that is read from files, and read again when they change."""

import logging
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from chairlift.errors import ConfigError

_log = logging.getLogger(__name__)

Value = TypeVar("Value")

_Versions = tuple[tuple[int, int, int] | None, ...]


class Reloaded(Generic[Value]):
    """The value as the files last made sense; safe to ask from many threads.

    Files are replaced one after the other, so a change that cannot be read may be half a change:
    the old value stays, a warning is logged once, and the next change is tried again.
    """

    def __init__(self, paths: tuple[Path, ...], load: Callable[[], Value]) -> None:
        """Loads the value.

        Args:
            paths: The files that `load` reads.
            load: Raises `ConfigError` with a message that holds nothing of what is in them.

        Raises:
            ConfigError: From `load`.
        """
        self._paths = paths
        self._load = load
        self._lock = threading.Lock()
        self._versions = self._look()
        self._value = load()

    def current(self) -> Value:
        """The value, loaded again if a file has changed since."""
        with self._lock:
            # Looked at before they are read: a change during the reading is seen the next time.
            versions = self._look()
            if versions != self._versions:
                self._versions = versions
                try:
                    self._value = self._load()
                except ConfigError as error:
                    _log.warning("the old files stay in use: %s", error)
            return self._value

    def _look(self) -> _Versions:
        return tuple(_version(path) for path in self._paths)


def _version(path: Path) -> tuple[int, int, int] | None:
    """What changes with the file, also where a symlink is turned to another one."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def read_file(path: Path, option: str) -> bytes:
    """Reads a whole file.

    Raises:
        ConfigError: It cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        reason = (error.strerror or "unknown error").lower()
        message = f"{option}: cannot read {path}: {reason}"
        raise ConfigError(message) from None


def read_secret(path: Path, option: str) -> bytes:
    """Reads a file that only its owner and group may open.

    Raises:
        ConfigError: It cannot be read, or everybody may.
    """
    data = read_file(path, option)
    if stat.S_IMODE(path.stat().st_mode) & stat.S_IRWXO:
        message = f"{option}: everybody on this machine may open {path}: chmod o-rwx"
        raise ConfigError(message)
    return data
