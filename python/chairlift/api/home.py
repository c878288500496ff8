"""The folders of this user: `~`, and the cache, also where the user has no home.

A container often runs with a user id that has no name, and a service without `HOME`.
"""

import os
import stat
import tempfile
from pathlib import Path


def expanded(name: str) -> Path:
    """Return a path with `~` as the home; without one, or with an unknown user, as it is."""
    try:
        return Path(os.path.expanduser(name))  # noqa: PTH111, Path's raises without a home
    except ValueError:  # a user's name with a NUL or a lone surrogate
        return Path(name)


def cache_folder(name: str) -> Path:
    """Return a folder below `$XDG_CACHE_HOME/chairlift`, which may not exist yet.

    The default of the variable is `~/.cache`; without a home it is a folder of this user alone in
    the place for temporary files.

    Raises:
        OSError: There is no home, and that folder cannot be made or is another user's.
    """
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else _default_cache()) / "chairlift" / name


def name_hub_cache() -> None:
    """Give the Hugging Face hub a cache where it has none by its variables and there is no home.

    It reads its variables when it is imported, and would make a folder called `~` otherwise.

    Raises:
        OSError: See `cache_folder`.
    """
    if _home() is None and not any(os.environ.get(name) for name in ("HF_HOME", "XDG_CACHE_HOME")):
        os.environ["HF_HOME"] = str(_default_cache() / "huggingface")


def _home() -> Path | None:
    home = expanded("~") if os.environ.get("HOME") != "" else _named_home()
    return home if home is not None and home.is_absolute() else None


def _named_home() -> Path | None:
    """Return the home that the list of users has."""
    import pwd

    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        return None


def _default_cache() -> Path:
    home = _home()
    if home is not None:
        return home / ".cache"
    user = os.geteuid()
    folder = Path(tempfile.gettempdir()) / f"chairlift-{user}"
    folder.mkdir(mode=0o700, exist_ok=True)
    about = folder.lstat()
    # Models and machine code are read from here: another user could have made the folder before.
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != user or about.st_mode & 0o022:
        raise PermissionError(1, "not a folder that only this user writes", str(folder))
    return folder
