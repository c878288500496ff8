"""Puts a GGUF file together whose parts lie in several packages, without importing them."""

import hashlib
import re
import tempfile
from collections.abc import Sequence
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Final, NoReturn

from chairlift.api.errors import ModelError
from chairlift.api.home import cache_folder

_PART: Final = re.compile(r"(?P<file>.+\.gguf)\.part\d+")
_REQUIREMENT: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_CHECKSUMS: Final = "SHA256SUMS"
_MAX_CHECKSUM_BYTES: Final = 1 << 16
_STEP: Final = 1 << 20


def joined_model(name: str, found: Distribution) -> Path | None:
    """Return the GGUF file whose parts the requirements of a package hold; None without parts.

    It is put together once, in the cache, and its checksum is compared.

    Args:
        name: Name of the model, for messages.
        found: The package, which holds the checksum.

    Raises:
        ModelError: A part is not installed, or damaged.
    """
    parts = _parts(name, found)
    return _joined(name, found, parts) if parts else None


def _files(found: Distribution) -> list[Path]:
    return [Path(str(file.locate())) for file in found.files or ()]


def _parts(name: str, found: Distribution) -> list[Path]:
    """Return the parts that the requirements of a package hold, in their order."""
    parts: list[Path] = []
    for requirement in found.requires or ():
        match = _REQUIREMENT.match(requirement)
        if match is None or ";" in requirement:
            continue
        try:
            package = distribution(match[0])
        except PackageNotFoundError:
            _fail(name, f"a part is not installed here: pip install {match[0]}")
        parts.extend(path for path in _files(package) if _PART.fullmatch(path.name))
    return sorted(parts, key=lambda path: path.name)


def _joined(name: str, found: Distribution, parts: Sequence[Path]) -> Path:
    """Return the file that parts make, in the cache."""
    match = _PART.fullmatch(parts[0].name)
    assert match is not None, "only parts were taken"
    expected = _checksum(name, found, match["file"])
    whole = Path(f"{expected[:16]}-{match['file']}")
    try:
        whole = cache_folder("models") / whole
        if whole.is_file() and whole.stat().st_size == sum(part.stat().st_size for part in parts):
            return whole
        whole.parent.mkdir(parents=True, exist_ok=True)
        _join(name, parts, whole, expected)
    except OSError as error:
        reason = (error.strerror or "cannot be written").lower()
        _fail(name, f"{error.filename or whole}: {reason} (XDG_CACHE_HOME names another folder)")
    return whole


def _join(name: str, parts: Sequence[Path], whole: Path, expected: str) -> None:
    """Write the parts one after the other; the file has its name once its checksum is right."""
    digest = hashlib.sha256()
    with tempfile.NamedTemporaryFile(dir=whole.parent, suffix=".tmp", delete=False) as file:
        try:
            for part in parts:
                with part.open("rb") as source:
                    while block := source.read(_STEP):
                        digest.update(block)
                        file.write(block)
            if digest.hexdigest() != expected:
                found = digest.hexdigest()
                _fail(name, f"its parts are damaged: expected SHA-256 {expected}, got {found}")
            file.close()
            Path(file.name).replace(whole)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise


def _checksum(name: str, found: Distribution, file: str) -> str:
    """Return the checksum that a package has for a file."""
    for path in _files(found):
        if path.name == _CHECKSUMS and path.is_file():
            with path.open("rb") as source:
                lines = source.read(_MAX_CHECKSUM_BYTES).decode(errors="replace").splitlines()
            pairs = (line.split() for line in lines)
            sums = {pair[1]: pair[0] for pair in pairs if len(pair) == 2}
            if re.fullmatch(r"[0-9a-f]{64}", sums.get(file, "")):
                return sums[file]
    _fail(name, f"no {_CHECKSUMS} beside the parts has a SHA-256 of {file}")


def _fail(name: str, problem: str) -> NoReturn:
    message = f"{name}: {problem}"
    raise ModelError(message)
