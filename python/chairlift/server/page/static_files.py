"""The files of the live page, under names that hold a hash of their content.

`index.html` names a file as `{{app.js}}`, a module imports another as `./rows.js`, and a style
sheet an image as `url(./icon.svg)`: each becomes the name with the hash, so that browsers may keep
every file but the page itself for ever.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from starlette.routing import Route

from chairlift.server.http.app import route
from chairlift.server.http.exchange import Exchange

FOLDER: Final = Path(__file__).parent / "static"

_INDEX: Final = "index.html"
_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""Other files of the folder are not served."""

_POLICY: Final = (
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "img-src 'self' data: blob:",
    "connect-src 'self'",
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
    "require-trusted-types-for 'script'",
    "trusted-types 'none'",
)

DATA_HEADERS: Final = (
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-resource-policy", "same-origin"),
)
"""For every response of the page's routes."""

_FILE_HEADERS: Final = (
    *DATA_HEADERS,
    ("cross-origin-opener-policy", "same-origin"),
    ("content-security-policy", "; ".join(_POLICY)),
)

_NAME: Final = r"(?P<name>[\w-]+\.(?:css|js|svg))"
_REFERENCES: Final = {
    ".html": re.compile(r"\{\{" + _NAME + r"\}\}"),
    # A statement begins a line, or ends a list of names over several: types in comments do not.
    ".js": re.compile(r"""(?P<before>^(?:import|export|\})[^"'\n]*["'])\./""" + _NAME, re.M),
    ".css": re.compile(r"""(?P<before>url\(["']?)\./""" + _NAME),
}


@dataclass(frozen=True, slots=True)
class StaticFile:
    """One file, as it is sent."""

    body: bytes
    content_type: str
    is_immutable: bool
    """Whether its path has the hash of its content."""

    async def send(self, exchange: Exchange) -> None:
        """Respond with the file."""
        caching = "public, max-age=31536000, immutable" if self.is_immutable else "no-cache"
        headers = (
            ("content-type", self.content_type),
            ("cache-control", caching),
            *_FILE_HEADERS,
        )
        await exchange.respond(self.body, headers=headers)


def static_files(folder: Path = FOLDER) -> dict[str, StaticFile]:
    """Read the files of a page; return them by path.

    Args:
        folder: Has `index.html`; what it names, and what that names in turn, is beside it.

    Raises:
        ValueError: A file names one that is missing, or files name one another in a circle.
    """
    files = _Files(folder)
    index = files.content(_INDEX, ()).encode()
    sources = sorted(path for path in folder.iterdir() if path.suffix in _TYPES)
    found = {"/": StaticFile(index, "text/html; charset=utf-8", is_immutable=False)}
    for source in sources:
        body = files.content(source.name, ()).encode()
        found[files.path(source.name, ())] = StaticFile(
            body, _TYPES[source.suffix], is_immutable=True
        )
    return found


class _Files:
    """Files with the names in them replaced; each is read once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._contents: dict[str, str] = {}

    def content(self, name: str, within: tuple[str, ...]) -> str:
        """Return a file.

        Args:
            name: In the folder.
            within: The files that are being read, each of which names the next one.
        """
        if name in within:
            message = f"these files name one another in a circle: {', '.join((*within, name))}"
            raise ValueError(message)
        if name not in self._contents:
            path = self._folder / name
            if not path.is_file():
                message = f"{within[-1] if within else self._folder} names {name}, which is missing"
                raise ValueError(message)
            text = path.read_text(encoding="utf-8")
            pattern = _REFERENCES.get(path.suffix)
            if pattern is not None:
                text = pattern.sub(lambda match: self._replaced(match, (*within, name)), text)
            self._contents[name] = text
        return self._contents[name]

    def path(self, name: str, within: tuple[str, ...]) -> str:
        """Return the path at which a file is served."""
        digest = hashlib.sha256(self.content(name, within).encode()).hexdigest()
        stem, _, suffix = name.rpartition(".")
        return f"/page/{stem}.{digest[:8]}.{suffix}"

    def _replaced(self, match: re.Match[str], within: tuple[str, ...]) -> str:
        return match.groupdict().get("before", "") + self.path(match["name"], within)


def routes_of(files: Mapping[str, StaticFile]) -> Iterator[Route]:
    """Yield the routes of files, one for each path."""
    for path, file in files.items():
        yield route(path, "GET", file.send)
