"""A value that is read from files, and read again when they change."""

import logging
import os
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, TypeVar

from chairlift.errors import ConfigError

_log = logging.getLogger(__name__)

GRACE_S: Final = 5.0
"""A file may be missing or empty for so long, as it is while some programs replace it."""

_RETRY_S: Final = 1.0
"""Files that make no sense are read again so often, also if none has changed: the cause may be
elsewhere, a folder's mode or a disk."""

_REMIND_S: Final = 60.0
"""A trouble that lasts is logged so often, while the value is in use."""

Value = TypeVar("Value")

_Versions = tuple[tuple[int, ...] | None, ...]


class Gone(ConfigError):
    """A file is missing or holds nothing: what was in it is withdrawn."""


class Reloaded(Generic[Value]):
    """The value as the files last made sense; safe to ask from many threads.

    Files are replaced one after the other, so a change that cannot be read may be half a change:
    the old value stays, a warning is logged now and then, and the files are tried again. A value
    for files that are gone takes the place of the old one `GRACE_S` after they went.
    """

    def __init__(
        self,
        paths: tuple[Path, ...],
        load: Callable[[], Value],
        *,
        if_gone: Value | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Loads the value.

        Args:
            paths: The files that `load` reads.
            load: Raises `ConfigError` with a message that holds nothing of what is in them, `Gone`
                where they hold nothing.
            if_gone: Takes the place of what is gone; None keeps the old value.
            clock: Seconds, as the file system counts them.

        Raises:
            ConfigError: From `load`.
        """
        self._paths = paths
        self._load = load
        self._if_gone = if_gone
        self._clock = clock
        self._lock = threading.Lock()
        self._error: ConfigError | None = None
        self._gone_since = self._retry_at = self._remind_at = 0.0
        self._versions = self._look()
        self._value = load()

    def current(self) -> Value:
        """Return the value, loaded again if a file has changed since."""
        with self._lock:
            # Looked at before they are read: a change during the reading is seen the next time.
            versions = self._look()
            now = self._clock()
            if versions != self._versions or (self._error and now >= self._retry_at):
                self._versions = versions
                self._reload(now)
            is_gone = isinstance(self._error, Gone)
            # A clock that was set back does not know how much time has passed.
            if is_gone and not 0 <= now - self._gone_since < GRACE_S:
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
        if isinstance(error, Gone) and not isinstance(before, Gone):
            self._gone_since = min(now, *(_changed_at(path) for path in self._paths))
        if str(error) != str(before) or now >= self._remind_at:
            self._remind_at = now + _REMIND_S
            self._warn()

    def _withdraw(self) -> None:
        if self._if_gone is not None and self._value != self._if_gone:
            self._value = self._if_gone
            self._warn()

    def _warn(self) -> None:
        if self._value == self._if_gone:
            _log.warning("nothing of the old file is valid any more: %s", self._error)
        else:
            _log.warning("the old files stay in use: %s", self._error)

    def _look(self) -> _Versions:
        return tuple(_version(path) for path in self._paths)


def _version(path: Path) -> tuple[int, ...] | None:
    """What changes with the file or its mode, also where a symlink is turned to another one."""
    try:
        status = path.stat()
    except OSError:
        return None
    return (
        *(status.st_dev, status.st_ino, status.st_mode, status.st_size),
        *(status.st_mtime_ns, status.st_ctime_ns),
    )


def _changed_at(path: Path) -> float:
    """When the file was changed; of a file that is missing, when its folder was, at the latest."""
    for place in (path, path.parent):
        try:
            return place.stat().st_ctime
        except OSError:
            continue
    return 0.0


def read_file(path: Path, option: str, *, is_secret: bool = False) -> bytes:
    """Read a whole file.

    Args:
        path: Of the file.
        option: Named in errors.
        is_secret: Only its owner and group may open it.

    Raises:
        Gone: There is none.
        ConfigError: It cannot be read, or it is a secret that everybody may read.
    """
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            data = file.read()
    except OSError as error:
        reason = (error.strerror or "unknown error").lower()
        message = f"{option}: cannot read {path}: {reason}"
        raise (Gone if isinstance(error, FileNotFoundError) else ConfigError)(message) from None
    if is_secret and stat.S_IMODE(mode) & stat.S_IRWXO:
        message = f"{option}: everybody on this machine may open {path}: chmod o-rwx"
        raise ConfigError(message)
    return data
