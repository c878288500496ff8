"""The file of a report."""

import shlex
import sys
from pathlib import Path

from chairlift.api.errors import ConfigError


def command_line() -> str:
    """Return the command that this process runs, as a shell takes it."""
    return shlex.join(["chairlift", *sys.argv[1:]])


def check_report(path: Path) -> None:
    """Check the folder of a report, before anything is measured.

    Raises:
        ConfigError: There is no such folder, or the path is a folder.
    """
    if not path.parent.is_dir() or path.is_dir():
        reason = "it is a folder" if path.is_dir() else "there is no such folder"
        message = f"report: cannot write {path}: {reason}"
        raise ConfigError(message)


def write_report(path: Path, page: str) -> None:
    """Write a report.

    Raises:
        ConfigError: The file cannot be written.
    """
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        message = f"report: cannot write {path}: {error.strerror}"
        raise ConfigError(message) from None
