"""Text that streams to a terminal, broken between words."""

import shutil
import sys
import unicodedata
from collections.abc import Callable

from rich.cells import cell_len

_TAB = "    "


class WordWrap:
    """Breaks lines at a width; a word is held back until it is complete.

    Only a word wider than the terminal is broken itself, and scripts that are written without
    spaces between any two of their (wide) characters. Control characters are dropped: the output of
    a model must not move the cursor.
    """

    def __init__(self, width: Callable[[], int]) -> None:
        """Begin at the start of a line.

        Args:
            width: Returns the columns of the terminal, which may change.
        """
        self._width = width
        self._column = 0
        self._gap = ""
        self._word = ""

    def feed(self, text: str) -> str:
        """Take a piece of text and return what can be written now."""
        return "".join(map(self._take, text))

    def end(self) -> str:
        """Return what was held back."""
        return self._flush()

    def _take(self, char: str) -> str:
        if char == "\n":
            written = self._flush()
            self._gap, self._column = "", 0
            return written + char
        if char.isspace():
            written = self._flush()
            self._gap += _TAB if char == "\t" else " " * (char not in "\r\v\f")
            return written
        if unicodedata.category(char) == "Cc":
            return ""
        if cell_len(char) > 1:
            before = self._flush()
            self._word = char
            return before + self._flush()
        self._word += char
        return self._flush() if cell_len(self._word) >= self._width() else ""

    def _flush(self) -> str:
        if not self._word:
            return ""
        written = self._gap + self._word
        if self._column and self._column + cell_len(written) > self._width():
            self._column, written = 0, self._word
            line_end = "\n"
        else:
            line_end = ""
        self._column += cell_len(written)
        self._gap = self._word = ""
        return line_end + written


class Printer:
    """Writes an answer: to a terminal between words of its width, else as it comes.

    Attributes:
        text: Text of the answer so far.
    """

    def __init__(self) -> None:
        self.text = ""
        self._wrap = WordWrap(_columns) if sys.stdout.isatty() else None
        self._has_written = False

    def write(self, text: str) -> None:
        """Write a piece, as far as its last word is complete."""
        self._put(text if self._wrap is None else self._wrap.feed(text))

    def end(self) -> None:
        """Write what was held back, and end the line."""
        self._put("" if self._wrap is None else self._wrap.end())
        if self._has_written:
            self._put("\n")

    def _put(self, text: str) -> None:
        if text:
            self._has_written = True
            sys.stdout.write(text)
            sys.stdout.flush()


def _columns() -> int:
    return max(shutil.get_terminal_size().columns, 1)
