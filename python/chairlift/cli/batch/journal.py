r"""The journal beside the output: what is answered survives a crash at any point.

Its first line is a header that names the work: the digest of the input, the model and the settings
that an answer depends on. Each further line holds one answer and is whole or is not counted:

    NUMBER MARK CHECKSUM ANSWER\n

NUMBER is that of the input's line, MARK is `a` for an answer and `e` for an error, CHECKSUM is the
CRC-32 of the answer. A file that was cut short ends before its first line that is not whole.
"""

import fcntl
import json
import os
import time
import zlib
from array import array
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final, Self

import numpy as np

from chairlift.api.errors import ChairliftError

FORMAT: Final = 1

SYNC_EVERY_S: Final = 5.0
"""Most seconds of work that a loss of power costs; a crash of the process costs none."""


class Journal:
    """The answers so far; a context that closes the file and keeps it.

    Attributes:
        num_answered: Lines of the input that have a line here.
        num_errors: Those of them that are errors.
    """

    def __init__(
        self,
        path: Path,
        header: Mapping[str, Any],
        num_lines: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin a journal, or continue one of the same work.

        Args:
            path: Path of the journal.
            header: Names the work.
            num_lines: Lines of the input.
            clock: Returns seconds.

        Raises:
            ChairliftError: It is of other work or in use, or cannot be read or written.
        """
        self.path = path
        self.num_answered = self.num_errors = 0
        self._places = array("Q", bytes(8 * (num_lines + 1)))
        """Where in the file the answer of each line begins; 0 is none."""
        self._clock = clock
        try:
            self._file: BinaryIO = path.open("ab+", buffering=0)
        except OSError as error:
            raise file_error(self.path, error) from None
        try:
            self._lock()
            self._size = self._load(dict(header, format=FORMAT))
        except BaseException:
            self._file.close()
            raise
        self._synced = clock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._file.close()

    def has(self, number: int) -> bool:
        """Return whether a line of the input is answered."""
        return self._places[number] != 0

    def append(self, number: int, answer: bytes, *, is_error: bool = False) -> None:
        """Write the answer of a line, which has none.

        Raises:
            ChairliftError: The disk is full, or cannot be written.
        """
        assert not self.has(number), number
        head = b"%d %c %08x " % (number, b"e"[0] if is_error else b"a"[0], zlib.crc32(answer))
        self._write(head + answer + b"\n")
        self._count(number, self._size + len(head), is_error=is_error)
        self._size += len(head) + len(answer) + 1
        now = self._clock()
        if now - self._synced >= SYNC_EVERY_S:
            os.fsync(self._file.fileno())
            self._synced = now

    def finish(self, output: Path, *, in_order: bool) -> None:
        """Make the output of the answers, and remove the journal.

        Args:
            output: Which does not exist.
            in_order: In the order of the input; else in that of completion.

        Raises:
            ChairliftError: The output exists, or cannot be written.
        """
        part = output.with_name(f"{output.name}.part")
        try:
            with part.open("wb") as file:
                file.writelines(self._answers(in_order=in_order))
                file.flush()
                os.fsync(file.fileno())
            if output.exists():
                raise file_error(output, f"it exists by now; the answers are in {self.path}")
            part.replace(output)
            _sync_folder(output.parent)
            self.path.unlink()
        except OSError as error:
            raise file_error(part, f"{_reason(error)}; {self._kept()}") from None
        finally:
            part.unlink(missing_ok=True)

    def end_finished(self, output: Path) -> bool:
        """Remove the journal if the output was made of it; return whether it was."""
        num_bytes = sum(len(answer) for answer in self._answers(in_order=False))
        if output.stat().st_size != num_bytes:
            return False
        self.path.unlink()
        return True

    def _answers(self, *, in_order: bool) -> Iterator[bytes]:
        """Yield the answers with their ends."""
        with self.path.open("rb") as file:
            places = np.frombuffer(self._places, np.uint64)
            places = places[places > 0]
            for place in places if in_order else np.sort(places):
                file.seek(int(place))
                yield file.readline()

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise file_error(self.path, "another process writes it") from None

    def _load(self, header: dict[str, Any]) -> int:
        """Read what is there, cut off what is not whole, and return the size of the rest."""
        encoded = json.dumps(header, sort_keys=True).encode() + b"\n"
        try:
            self._file.seek(0)
            with os.fdopen(os.dup(self._file.fileno()), "rb") as file:
                first = file.readline()
                if encoded.startswith(first) and first != encoded:
                    # It was begun, and not more.
                    self._file.truncate(0)
                    self._write(encoded)
                    _sync_folder(self.path.parent)
                    return len(encoded)
                self._check_header(first, header)
                size = len(first)
                for line in file:
                    if not self._take(line, size):
                        break
                    size += len(line)
            self._file.truncate(size)
        except OSError as error:
            raise file_error(self.path, error) from None
        return size

    def _take(self, line: bytes, place: int) -> bool:
        """Count a line; return whether it is whole."""
        parts = line.split(b" ", 3)
        if len(parts) < 4 or not line.endswith(b"\n") or not parts[0].isdigit():
            return False
        number, mark, checksum, answer = int(parts[0]), *parts[1:]
        if b"%08x" % zlib.crc32(answer[:-1]) != checksum or number >= len(self._places):
            return False
        if not self.has(number):
            self._count(number, place + len(line) - len(answer), is_error=mark == b"e")
        return True

    def _count(self, number: int, place: int, *, is_error: bool) -> None:
        self._places[number] = place
        self.num_answered += 1
        self.num_errors += is_error

    def _check_header(self, first: bytes, header: dict[str, Any]) -> None:
        try:
            found = json.loads(first)
        except ValueError:
            found = None
        if not isinstance(found, dict) or "format" not in found:
            raise file_error(self.path, "this file is no journal of `chairlift batch`")
        differing = [name for name in header if found.get(name) != header[name]]
        if not differing:
            return
        begin = "remove it to begin anew"
        if "input" in differing:
            raise file_error(self.path, f"the input has changed since it was begun; {begin}")
        name = differing[0]
        message = f"{name} was {found.get(name)!r} when it was begun, now it is {header[name]!r}"
        raise file_error(self.path, f"{message}; {begin}")

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[self._file.write(view) :]
        except OSError as error:
            raise file_error(self.path, error) from None

    def _kept(self) -> str:
        return f"{self.num_answered} answers are kept: the same command goes on"


def file_error(path: Path, why: OSError | str) -> ChairliftError:
    """Return the error of a file, as one line."""
    return ChairliftError(f"{path}: {why if isinstance(why, str) else _reason(why)}")


def _reason(error: OSError) -> str:
    return (error.strerror or "cannot be read or written").lower()


def _sync_folder(folder: Path) -> None:
    """Make the names in a folder outlive a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
