"""Processes of the peers, and what is said when one fails."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path


class PeerError(Exception):
    """A peer cannot be installed or run; the message is one line."""


def call(
    command: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    variables: Mapping[str, str] | None = None,
) -> str:
    """Run a command, with environment variables beside those of this process; return its output.

    Raises:
        PeerError: It failed; the message is the last line that it wrote.
    """
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            env=os.environ | (variables or {}),
            check=False,
            capture_output=True,
            text=True,
        )
    except OSError as error:
        message = f"{command[0]}: {error.strerror}"
        raise PeerError(message) from None
    if done.returncode != 0:
        lines = (done.stdout + done.stderr).strip().splitlines() or ["no output"]
        message = f"{Path(command[0]).name} ended with {done.returncode}: {lines[-1].strip()}"
        raise PeerError(message)
    return done.stdout
