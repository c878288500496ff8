"""The folder of an adapter, whose files are opened by descriptor where it must not lead out.

A path that was checked may lead to another file when it is opened, if its folder was replaced by a
link meanwhile. So links are resolved first, and folders are then opened one below the other, by
descriptors that follow no link.
"""

import errno
import os
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from chairlift.api.errors import ModelError
from chairlift.checkpoints.files.fields import Opener
from chairlift.model.lora.config import check_folder

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
            ModelError: There is no folder, or it or a file leads out of `root`.
            OSError: It cannot be opened.
        """
        check_folder(self.path)
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


class OpenAdapter:
    """The files of an adapter, which are open: they stay the same whatever is put in their place.

    Attributes:
        path: Its folder, for messages.
        descriptors: Those of the files, by name.
    """

    def __init__(self, path: Path, descriptors: Mapping[str, int]) -> None:
        """Take open files; they are closed with the value."""
        self.path = path
        self.descriptors = dict(descriptors)
        self._end = weakref.finalize(self, _close, tuple(self.descriptors.values()))

    @classmethod
    def of(cls, folder: AdapterFolder, names: Sequence[str]) -> "OpenAdapter":
        """Open those files of a folder that are there; see `AdapterFolder.opened`."""
        descriptors: dict[str, int] = {}
        try:
            with folder.opened() as open_file:
                for name in names:
                    with suppress(FileNotFoundError):
                        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
                        descriptors[name] = open_file(str(folder.path / name), flags)
        except BaseException:
            _close(descriptors.values())
            raise
        return cls(folder.path, descriptors)

    @contextmanager
    def opened(self) -> Iterator[Opener]:
        """Yield how to open a file again, by its path; see `AdapterFolder.opened`."""

        def open_file(path: str, flags: int) -> int:
            descriptor = self.descriptors.get(Path(path).name)
            if descriptor is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            # A descriptor of its own: several readers share no place in the file.
            return os.open(f"/proc/self/fd/{descriptor}", flags & ~os.O_NOFOLLOW)

        yield open_file


def _close(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


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
