"""The folder of an adapter, whose files are opened by descriptor where it must not lead out.

A path that was checked may lead to another file when it is opened, if its folder was replaced by a
link meanwhile. So links are resolved first, and folders are then opened one below the other, by
descriptors that follow no link.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from chairlift.api.errors import ModelError
from chairlift.checkpoints.files.fields import Opener

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class AdapterFolder:
    """Where an adapter lies."""

    path: Path
    root: Path | None = None
    """No file outside of this folder is read, without links in its own path; None reads any."""

    @contextmanager
    def opened(self) -> Iterator[Opener]:
        """Open the folder; yield how to open a file in it, by its path.

        Raises:
            ModelError: It, or a file, leads out of `root`.
            OSError: There is no such folder, or it cannot be opened.
        """
        if self.root is None:
            yield os.open
            return
        with ExitStack() as descriptors:
            root = os.open(self.root, _FOLDER)
            descriptors.callback(os.close, root)
            folder = _open_below(root, self._inside(self.path), _FOLDER)
            descriptors.callback(os.close, folder)

            def open_file(path: str, flags: int) -> int:
                flags |= os.O_NOFOLLOW | os.O_CLOEXEC
                try:
                    return os.open(Path(path).name, flags, dir_fd=folder)
                except OSError as error:
                    if error.errno != errno.ELOOP:
                        raise
                return _open_below(root, self._inside(Path(path)), flags)

            yield open_file

    def _inside(self, path: Path) -> Path:
        """Follow the links of a path, and return it from `root` on."""
        assert self.root is not None, "otherwise no descriptor is needed"
        try:
            return path.resolve().relative_to(self.root)
        except (RuntimeError, ValueError):
            message = f"{path}: expected a path inside of {self.root}, got a link out of it"
            raise ModelError(message) from None


def _open_below(root: int, path: Path, flags: int) -> int:
    """Open a path below a folder, following no link.

    Raises:
        OSError: A part of it is a link by now, is missing, or cannot be opened.
    """
    *folders, last = path.parts or (".",)
    with ExitStack() as descriptors:
        place = root
        for name in folders:
            place = os.open(name, _FOLDER, dir_fd=place)
            descriptors.callback(os.close, place)
        return os.open(last, flags, dir_fd=place)
