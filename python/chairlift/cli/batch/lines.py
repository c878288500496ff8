"""The lines of an input file: read once for their number and ids, once for the work, never held."""

import codecs
import hashlib
import os
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from chairlift.cli.batch.entries import LineError, id_of
from chairlift.cli.batch.journal import file_error
from chairlift.server.http.errors import HttpError
from chairlift.server.http.json_body import decode

MAX_LINE_BYTES: Final = 16 * 2**20
"""A longer line is an error line of the output, and is not kept."""

_BOM: Final = codecs.BOM_UTF8
"""Programs of Windows begin a file with it."""
_REST: Final = 2**16
_HASH_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class Line:
    """A line that is not blank."""

    number: int
    """From 1."""
    data: bytes | None
    """None of a line that is too long."""


@dataclass(frozen=True, slots=True)
class Scan:
    """What the first reading of a file finds."""

    digest: str
    num_lines: int
    """Blank ones included."""
    num_requests: int
    """Lines that are not blank."""
    size: int
    """Bytes."""


class Source:
    """An input file, which must stay as it is while it is read; a context that closes it."""

    def __init__(self, path: Path) -> None:
        """Open the file.

        Raises:
            ChairliftError: It cannot be read, or is no regular file.
        """
        self.path = path
        try:
            # A pipe would wait here for its writer.
            if not path.is_file():
                raise file_error(path, "not a regular file" if path.exists() else "no such file")
            self._file: BinaryIO = path.open("rb")
        except OSError as error:
            raise file_error(path, error) from None
        self._state = self._stat()

    def __enter__(self) -> "Source":
        return self

    def __exit__(self, *_error: object) -> None:
        self._file.close()

    def scan(self) -> Scan:
        """Read the file once: its digest, and whether each id is there once.

        Memory grows by 24 bytes per line.

        Raises:
            ChairliftError: An id is there twice, or the file cannot be read.
        """
        digest = hashlib.blake2b(digest_size=20)
        hashes, numbers = bytearray(), array("q")
        num_lines = num_requests = 0
        for num_lines, line in self._read(digest):
            if line is None:
                continue
            num_requests += 1
            identity = _identity(line)
            if identity is not None:
                hashes += hashlib.blake2b(identity, digest_size=_HASH_BYTES).digest()
                numbers.append(num_lines)
        self._check_ids(hashes, np.frombuffer(numbers, np.int64))
        return Scan(digest.hexdigest(), num_lines, num_requests, self._state[0])

    def lines(self) -> Iterator[Line]:
        """Yield the lines that are not blank.

        Raises:
            ChairliftError: The file cannot be read.
        """
        for _, line in self._read(None):
            if line is not None:
                yield line

    def check_unchanged(self) -> None:
        """Check that the file is as it was when it was opened.

        Raises:
            ChairliftError: It was written meanwhile.
        """
        if self._stat() != self._state:
            raise file_error(self.path, "the file has changed while it was read")

    def _stat(self) -> tuple[int, int]:
        found = os.fstat(self._file.fileno())
        return found.st_size, found.st_mtime_ns

    def _read(self, digest: "hashlib.blake2b | None") -> Iterator[tuple[int, Line | None]]:
        """Yield the number of each line, and the line unless it is blank."""
        number = 0
        try:
            self._file.seek(0)
            while data := self._file.readline(MAX_LINE_BYTES + 1):
                number += 1
                if number == 1 and data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                    raise file_error(self.path, "expected UTF-8, got UTF-16")
                is_whole = data.endswith(b"\n") or len(data) <= MAX_LINE_BYTES
                if digest is not None:
                    digest.update(data)
                if not is_whole:
                    self._skip_rest(digest)
                    yield number, Line(number, None)
                elif (line := data.removeprefix(_BOM) if number == 1 else data).strip():
                    yield number, Line(number, line)
                else:
                    yield number, None
        except OSError as error:
            raise file_error(self.path, error) from None

    def _skip_rest(self, digest: "hashlib.blake2b | None") -> None:
        while piece := self._file.readline(_REST):
            if digest is not None:
                digest.update(piece)
            if piece.endswith(b"\n"):
                return

    def _check_ids(self, hashes: bytearray, numbers: NDArray[np.int64]) -> None:
        halves = np.frombuffer(hashes, np.uint64).reshape(-1, 2)
        order = np.lexsort((numbers, halves[:, 1], halves[:, 0]))
        ordered = halves[order]
        same = np.flatnonzero((ordered[1:] == ordered[:-1]).all(axis=1))
        if not len(same):
            return
        # Of all that are there again, the first of the file.
        place = min(same, key=lambda place: numbers[order[place + 1]])
        first, again = numbers[order[place]], numbers[order[place + 1]]
        message = f"line {again} has the id of line {first}: an id names one line"
        raise file_error(self.path, message)


def _identity(line: Line) -> bytes | None:
    """Return the id of a line with its type; None of a line that has none."""
    if line.data is None:
        return None
    try:
        found = id_of(decode(line.data))
    except (LineError, HttpError):
        return None
    return f"{type(found).__name__}:{found}".encode(errors="replace")
