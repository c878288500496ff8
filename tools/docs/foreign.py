"""`make docs`, second part: no page of the site loads anything from another host.

    python -m tools.docs.foreign FOLDER

It prints each address, and ends with 1 if there is one.
"""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Final

LOADED: Final = {
    "script": "src",
    "img": "src",
    "source": "srcset",
    "iframe": "src",
    "link": "href",
    "video": "src",
    "object": "data",
}
"""Attributes whose address a browser loads; a link of `a` is followed by readers alone."""
FOREIGN: Final = re.compile(r"(https?:)?//")


class _Loads(HTMLParser):
    """Collects the addresses on other hosts that a page loads."""

    def __init__(self) -> None:
        super().__init__()
        self.foreign: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what the tag loads."""
        values = dict(attrs)
        # The address of the page itself, for search engines.
        is_canonical = tag == "link" and values.get("rel") in ("canonical", "prev", "next")
        address = values.get(LOADED.get(tag, "")) or ""
        if FOREIGN.match(address) and not is_canonical:
            self.foreign.append(address)


def main() -> int:
    """Print each foreign address, and return the exit status."""
    folder, found = Path(sys.argv[1]), 0
    for path in sorted(folder.rglob("*")):
        if path.suffix == ".html":
            loads = _Loads()
            loads.feed(path.read_text(encoding="utf-8"))
            addresses = loads.foreign
        elif path.suffix == ".css":
            text = path.read_text(encoding="utf-8")
            addresses = re.findall(r"(?:url\(|@import )['\"]?((?:https?:)?//[^)'\"]+)", text)
        else:
            continue
        for address in addresses:
            print(f"{path.relative_to(folder)} loads {address}")
        found += len(addresses)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
