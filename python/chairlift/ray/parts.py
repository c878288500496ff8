"""A job in parts: ranges of the input, each answered into a file of its own.

A part is written beside its name and renamed when it is whole. So a part that is computed twice,
because a machine was lost or the job runs again, is there once, and one that is there is not
computed again. Every machine has to see the folder of the output, and the input.
"""

import codecs
import json
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from chairlift.api.errors import ChairliftError
from chairlift.cli.batch.entries import Bad, Head, LineError, Task, answer_line, error_line, task_of
from chairlift.cli.batch.journal import file_error
from chairlift.cli.batch.lines import MAX_LINE_BYTES, Source
from chairlift.server.http.errors import HttpError
from chairlift.server.protocols.openai.logprobs import TokenTexts

MAX_LINES: Final = 512
"""Entries of a part."""
MAX_BYTES: Final = 16 * 2**20
"""Bytes of a part's entries; one entry may be longer."""
_REST_BYTES: Final = 2**16


@dataclass(frozen=True, slots=True)
class Part:
    """A range of the input."""

    path: str
    first: int
    """Number of its first entry; lines count from 1, blank ones included."""
    start: int
    """Byte of a text, row of a table."""
    end: int

    @property
    def name(self) -> str:
        """Return the name of its file, without the ending; names are in the order of the input."""
        return f"{self.first:012d}"


@dataclass(frozen=True, slots=True)
class Answered:
    """One entry with its answer."""

    number: int
    id: str
    answer: str
    """The line of `chairlift batch`."""
    is_error: bool


def parts_of(source: Path) -> tuple[str, list[Part]]:
    """Return the digest of an input and its parts.

    Raises:
        ChairliftError: It cannot be read, or has an id twice.
    """
    if source.suffix == ".parquet":
        return _parts_of_table(source)
    with Source(source) as lines:
        scan = lines.scan()
    parts: list[Part] = []
    with source.open("rb") as file:
        first, start = 1, 0
        for number, _ in enumerate(_lines(file, scan.size), 1):
            end = file.tell()
            if number - first + 1 == MAX_LINES or end - start >= MAX_BYTES or end == scan.size:
                parts.append(Part(str(source), first, start, end))
                first, start = number + 1, end
    return scan.digest, parts


def _lines(file: BinaryIO, end: int) -> Iterator[bytes | None]:
    """Yield the lines of a file from here to a byte; None in the place of one that is too long."""
    while file.tell() < end and (data := file.readline(MAX_LINE_BYTES + 1)):
        is_long = len(data) > MAX_LINE_BYTES and not data.endswith(b"\n")
        while is_long and (rest := file.readline(_REST_BYTES)) and not rest.endswith(b"\n"):
            pass
        yield None if is_long else data


def _parts_of_table(source: Path) -> tuple[str, list[Part]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(source) as file:
            num_rows = file.metadata.num_rows
        found = source.stat()
    except OSError as error:
        raise file_error(source, error) from None
    except pa.ArrowException:
        raise file_error(source, "expected a file of Parquet") from None
    digest = f"{num_rows} rows, {found.st_size} bytes, {found.st_mtime_ns}"
    starts = range(0, num_rows, MAX_LINES)
    return digest, [Part(str(source), n + 1, n, min(n + MAX_LINES, num_rows)) for n in starts]


def entries_of(part: Part) -> Iterator[tuple[int, bytes | None]]:
    """Yield the number and the text of each entry of a part; None of a line that is too long."""
    if part.path.endswith(".parquet"):
        yield from _rows(part)
        return
    with Path(part.path).open("rb") as file:
        file.seek(part.start)
        for number, data in enumerate(_lines(file, part.end), part.first):
            line = data.removeprefix(codecs.BOM_UTF8) if data and number == 1 else data
            if line is None or line.strip():
                yield number, line


def _rows(part: Part) -> Iterator[tuple[int, bytes | None]]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(part.path) as file:
        groups, place = _row_groups(file.metadata, part)
        for batch in file.iter_batches(batch_size=MAX_LINES, row_groups=groups):
            if place + batch.num_rows > part.start and place < part.end:
                low, high = max(part.start - place, 0), part.end - place
                for offset, row in enumerate(batch.slice(low, high - low).to_pylist()):
                    yield part.first + offset + max(place - part.start, 0), _text_of(row)
            place += batch.num_rows
            if place >= part.end:
                return


def _row_groups(metadata: Any, part: Part) -> tuple[list[int], int]:
    """Return the row groups that have rows of a part, and the first row of the first of them."""
    groups: list[int] = []
    first = row = 0
    for index in range(metadata.num_row_groups):
        end = row + metadata.row_group(index).num_rows
        if row < part.end and end > part.start:
            first = first if groups else row
            groups.append(index)
        row = end
    return groups, first


def _text_of(row: dict[str, Any]) -> bytes | None:
    """Return a row as a line: its only column `entry`, or its columns that are not null."""
    if list(row) == ["entry"] and isinstance(row["entry"], str):
        data = row["entry"].encode(errors="replace")
    else:
        data = json.dumps(_without_nulls(row), ensure_ascii=False, default=str).encode()
    return data if len(data) <= MAX_LINE_BYTES else None


def _without_nulls(value: Any) -> Any:
    # A table has every field in every row.
    if isinstance(value, dict):
        return {k: _without_nulls(v) for k, v in value.items() if v is not None}
    return [_without_nulls(v) for v in value] if isinstance(value, list) else value


def answer(
    part: Part,
    run: Callable[[Iterator[Task]], Iterator[tuple[Task, Any]]],
    served: Sequence[str],
    texts: TokenTexts,
) -> list[Answered]:
    """Answer the entries of a part, in order.

    Args:
        part: The range.
        run: From tasks to their results, as `LocalRunner.run`.
        served: Names of the model.
        texts: Texts of single tokens, for log probabilities.
    """
    found: dict[int, Answered] = {}

    def tasks() -> Iterator[Task]:
        for number, data in entries_of(part):
            if data is None:
                error = LineError(f"expected at most {MAX_LINE_BYTES} bytes", "line_too_long")
                task: Task | Bad = Bad(Head(number), error)
            else:
                task = task_of(number, data, served, texts)
            if isinstance(task, Bad):
                line = error_line(task.head, task.error)
                found[number] = _answered(task.head, line, is_error=True)
            else:
                yield task

    for task, result in run(tasks()):
        is_error = isinstance(result, HttpError)
        line = error_line(task.head, result) if is_error else answer_line(task.head, result)
        found[task.head.number] = _answered(task.head, line, is_error=is_error)
    return [found[number] for number in sorted(found)]


def _answered(head: Head, line: bytes, *, is_error: bool) -> Answered:
    return Answered(head.number, "" if head.id is None else str(head.id), line.decode(), is_error)


class Output:
    """The file or folder of answers: JSONL, or with `.parquet` a folder of tables."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._is_table = path.suffix == ".parquet"
        # Tables stay in parts; lines are put together.
        self.folder = path if self._is_table else path.with_name(f"{path.name}.parts")
        self._ending = ".parquet" if self._is_table else ".jsonl"

    def begin(self, job: dict[str, str]) -> None:
        """Begin a job, or go on with the same one.

        Args:
            job: What the answers depend on.

        Raises:
            ChairliftError: There are answers of another job, or the folder cannot be made.
        """
        header = self.folder / "_job.json"
        if not self._is_table and self.path.exists():
            raise file_error(self.path, "it exists; remove it or choose another name")
        try:
            self.folder.mkdir(exist_ok=True)
            if header.exists():
                if json.loads(header.read_bytes()) != job:
                    raise file_error(self.folder, "it has the answers of another job")
            elif any(
                not path.name.startswith(f"_{header.name}.") for path in self.folder.iterdir()
            ):
                raise file_error(self.folder, "it exists, and is of no job")
            else:
                self._write(header, json.dumps(job).encode())
        except OSError as error:
            raise file_error(self.folder, error) from None

    def file_of(self, part: Part) -> Path:
        """Return the file of a part."""
        return self.folder / f"{part.name}{self._ending}"

    def write(self, part: Part, answers: Sequence[Answered]) -> None:
        """Write a part, whole or not at all."""
        if self._is_table:
            import pyarrow as pa
            import pyarrow.parquet as pq

            sink = pa.BufferOutputStream()
            pq.write_table(pa.Table.from_pylist([asdict(a) for a in answers], _schema()), sink)
            self._write(self.file_of(part), sink.getvalue().to_pybytes())
        else:
            lines = "".join(f"{a.answer}\n" for a in answers)
            self._write(self.file_of(part), lines.encode())

    def finish(self, parts: Sequence[Part]) -> None:
        """Put lines together, in the order of the input, when every part is there.

        Raises:
            ChairliftError: A part is missing, or the file cannot be written.
        """
        missing = [part.name for part in parts if not self.file_of(part).exists()]
        if missing:
            message = f"{self.folder}: {len(missing)} parts are missing, {missing[0]} first"
            raise ChairliftError(message)
        if self._is_table:
            return
        private = self.path.with_name(f".{self.path.name}.{secrets.token_hex(4)}")
        try:
            with private.open("wb") as file:
                for part in parts:
                    file.write(self.file_of(part).read_bytes())
                file.flush()
                os.fsync(file.fileno())
            private.rename(self.path)
            self._remove(parts)
        except OSError as error:
            raise file_error(self.path, error) from None

    def _remove(self, parts: Sequence[Part]) -> None:
        # With what a process that was killed amid a part has left.
        for path in (*map(self.file_of, parts), *self.folder.glob("_*")):
            path.unlink(missing_ok=True)
        # A machine that was given up may still write there: the answers are whole all the same.
        with suppress(OSError):
            self.folder.rmdir()

    def _write(self, path: Path, data: bytes) -> None:
        # A part that two machines compute is written twice, under two names until it is whole.
        private = path.with_name(f"_{path.name}.{secrets.token_hex(4)}")
        try:
            with private.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            private.rename(path)
        except BaseException:
            private.unlink(missing_ok=True)
            raise


def _is_begun(path: Path, whole: Path) -> bool:
    """Whether a file is what a killed process wrote of another one."""
    return path.name.startswith(f"_{whole.name}.")


def _schema() -> Any:
    import pyarrow as pa

    names = {"number": pa.int64(), "id": pa.string(), "answer": pa.string(), "is_error": pa.bool_()}
    return pa.schema(list(names.items()))
