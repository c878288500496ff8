"""A command in a pseudo-terminal, as a person sees it."""

import codecs
import fcntl
import os
import pty
import re
import select
import struct
import termios
import time

from tests.forked import Python

LIMIT_S = 60.0
"""How long anything is waited for."""

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """A `chairlift` command whose input and output are a terminal of this size."""

    def __init__(self, *arguments, columns=80, rows=24):
        self._fd, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        fixed = ("CHAIRLIFT_", "COLUMNS", "LINES")
        settings = {k: v for k, v in os.environ.items() if not k.startswith(fixed)}
        self._process = Python(
            *("-m", "chairlift", *arguments),
            has_terminal=True,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**settings, "NO_COLOR": "1", "TERM": "xterm", "INPUTRC": "/dev/null"},
        )
        os.close(theirs)
        self._unread = ""
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.wait(LIMIT_S)
        os.close(self._fd)

    def type(self, keys):
        """Presses keys."""
        os.write(self._fd, keys.encode())

    def until(self, text):
        """Wait for a text; return what was printed before it since the last call."""
        deadline = time.monotonic() + LIMIT_S
        while text not in self._unread:
            assert self._read(deadline), f"{text!r} did not come: {self._unread!r}"
        before, _, self._unread = self._unread.partition(text)
        return before

    def press_until(self, key, text):
        """Presses a key, and again after each silent second, until a text comes.

        The readline module loses a Ctrl-C that comes just before it begins to wait for keys.
        """
        deadline = time.monotonic() + LIMIT_S
        self.type(key)
        while text not in self._unread:
            if not self._read(time.monotonic() + 1):
                assert time.monotonic() < deadline, f"{text!r} did not come: {self._unread!r}"
                self.type(key)
        return self.until(text)

    def end(self):
        """Wait for the end of the process; return its exit status."""
        deadline = time.monotonic() + LIMIT_S
        while self._read(deadline):
            pass
        return self._process.wait(LIMIT_S)

    def _read(self, deadline):
        """Add what is printed next to what is unread; return whether more may follow."""
        ready, _, _ = select.select([self._fd], [], [], max(0.0, deadline - time.monotonic()))
        try:
            data = os.read(self._fd, 65_536) if ready else b""
        except OSError:  # Linux: the other end was closed
            data = b""
        # An escape sequence that is cut in two goes when its second half has come.
        text = self._unread + self._decode(data).replace("\r", "")
        self._unread = _ESCAPES.sub("", text)
        return bool(data)
