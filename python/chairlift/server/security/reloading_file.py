"""A value that is read from files, and read again when they change."""

import logging
import os
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, TypeVar

from chairlift.api.errors import ConfigError

_log = logging.getLogger(__name__)

GRACE_S: Final = 5.0
"""A file may be missing or empty for this long, as it is while some programs replace it."""

_RETRY_S: Final = 1.0
"""Interval at which malformed files are read again, even if none has changed: the cause may be a
folder's mode or a disk."""

_REMIND_S: Final = 60.0
"""Interval at which a lasting error is logged, while the value is in use."""

Value = TypeVar("Value")

_Versions = tuple[tuple[int, ...] | None, ...]


class FileRemovedError(ConfigError):
    """A file is missing or empty: its former content is withdrawn."""


class ReloadingFile(Generic[Value]):
    """The value of the last well-formed files; safe to read from many threads.

    Files are replaced one after the other, so a change that cannot be read may be half a change:
    the old value is kept, a warning is logged at intervals, and the files are tried again. The
    value for missing files replaces the old one `GRACE_S` after they went.
    """

    def __init__(
        self,
        paths: tuple[Path, ...],
        load: Callable[[], Value],
        *,
        if_missing: Value | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Load the value.

        Args:
            paths: The files that `load` reads.
            load: Returns the value; raises `ConfigError` without content of the files in its
                message, and `FileRemovedError` if they are empty.
            if_missing: The value for files that are missing; None keeps the old value.
            clock: Returns seconds on the clock of the file system.

        Raises:
            ConfigError: From `load`.
        """
        self._paths = paths
        self._load = load
        self._if_missing = if_missing
        self._clock = clock
        self._lock = threading.Lock()
        self._error: ConfigError | None = None
        self._missing_since = self._retry_at = self._remind_at = 0.0
        self._versions = self._look()
        self._value = load()

    def current(self) -> Value:
        """Return the value, loaded again if a file has changed since."""
        with self._lock:
            # Compared before they are read: a change during the read is found the next time.
            versions = self._look()
            now = self._clock()
            if versions != self._versions or (self._error and now >= self._retry_at):
                self._versions = versions
                self._reload(now)
            is_missing = isinstance(self._error, FileRemovedError)
            # After a clock was set back, the time since is unknown.
            if is_missing and not 0 <= now - self._missing_since < GRACE_S:
                self._withdraw()
            return self._value

    def _reload(self, now: float) -> None:
        try:
            self._value = self._load()
        except ConfigError as error:
            self._note(error, now)
        else:
            if self._error is not None:
                _log.info("%s: read again", self._paths[0])
            self._error = None

    def _note(self, error: ConfigError, now: float) -> None:
        before, self._error = self._error, error
        self._retry_at = now + _RETRY_S
        if isinstance(error, FileRemovedError) and not isinstance(before, FileRemovedError):
            self._missing_since = min(now, *(_changed_at(path) for path in self._paths))
        if str(error) != str(before) or now >= self._remind_at:
            self._remind_at = now + _REMIND_S
            self._warn()

    def _withdraw(self) -> None:
        if self._if_missing is not None and self._value != self._if_missing:
            self._value = self._if_missing
            self._warn()

    def _warn(self) -> None:
        if self._value == self._if_missing:
            _log.warning("the old file is withdrawn: %s", self._error)
        else:
            _log.warning("the old files stay in use: %s", self._error)

    def _look(self) -> _Versions:
        return tuple(_version(path) for path in self._paths)


def _version(path: Path) -> tuple[int, ...] | None:
    """Return what changes with the file or its mode, or when a symlink names another file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return (
        *(status.st_dev, status.st_ino, status.st_mode, status.st_size),
        *(status.st_mtime_ns, status.st_ctime_ns),
    )


def _changed_at(path: Path) -> float:
    """Return when the file was changed, or, if it is missing, when its folder was."""
    for place in (path, path.parent):
        try:
            return place.stat().st_ctime
        except OSError:
            continue
    return 0.0


def read_file(path: Path, option: str, *, is_secret: bool = False) -> bytes:
    """Read a whole file.

    Args:
        path: Path of the file.
        option: The option's name, for errors.
        is_secret: Only its owner and group may open it.

    Raises:
        FileRemovedError: The file does not exist.
        ConfigError: It cannot be read, or it is a secret that is world-readable.
    """
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            data = file.read()
    except OSError as error:
        reason = (error.strerror or "unknown error").lower()
        message = f"{option}: cannot read {path}: {reason}"
        kind = FileRemovedError if isinstance(error, FileNotFoundError) else ConfigError
        raise kind(message) from None
    if is_secret and stat.S_IMODE(mode) & stat.S_IRWXO:
        message = f"{option}: {path} is open to every user of this machine: chmod o-rwx"
        raise ConfigError(message)
    return data
