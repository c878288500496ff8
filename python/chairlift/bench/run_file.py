"""A file of finished runs, one line of JSON each: what is there is not measured again."""

import fcntl
import json
import os
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from chairlift.api.errors import ConfigError

NAME: Final = "runs.jsonl"


class RunFile:
    """`runs.jsonl` of a folder; a context manager that holds it for this process.

    Attributes:
        runs: Runs that the file had when it was opened, by key.
    """

    def __init__(self, folder: Path) -> None:
        """Open or create the file.

        Raises:
            ConfigError: It cannot be written, is no such file, or another process writes it.
        """
        self._path = folder / NAME
        self.runs: dict[str, dict[str, Any]] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("a+b")
        except OSError as error:
            message = f"into: cannot write {self._path}: {error.strerror}"
            raise ConfigError(message) from None
        try:
            self._lock()
            self._load()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def add(self, run: dict[str, Any]) -> None:
        """Append a finished run, which has a `key`; it is on the disk when this returns."""
        self._file.write(json.dumps(run).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            message = f"into: another process writes {self._path}"
            raise ConfigError(message) from None

    def _load(self) -> None:
        self._file.seek(0)
        size = 0
        for number, line in enumerate(self._file, start=1):
            if not line.endswith(b"\n"):
                # A run that was cut off, by a crash or a full disk, is measured again.
                self._file.truncate(size)
                break
            size += len(line)
            try:
                run = json.loads(line)
                self.runs[run["key"]] = run
            except (ValueError, KeyError, TypeError):
                message = f"into: {self._path}:{number}: expected a finished run"
                raise ConfigError(message) from None
