"""`make reference`: writes the pages of docs/reference/ from the code.

    python -m tools.reference [--check] [--descriptors FILE]

With `--check` it writes nothing, and ends with 1 if a page differs. The page of the gRPC API needs
the descriptors of `proto/` with their comments, as protoc writes them.
"""

import argparse
import difflib
import sys
from pathlib import Path

from tools.reference.grpc_api import grpc_page
from tools.reference.pages import PAGES

FOLDER = Path(__file__).parents[2] / "docs" / "reference"


def main() -> int:
    """Write or compare the pages, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.reference")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--descriptors", type=Path)
    options = parser.parse_args()
    pages = {name: make() for name, make in PAGES.items()}
    if options.descriptors is not None:
        pages["grpc-api.md"] = grpc_page(options.descriptors.read_bytes())
    status = 0
    for name, text in pages.items():
        path = FOLDER / name
        old = path.read_text(encoding="utf-8") if path.exists() else ""
        if options.check and old != text:
            lines = difflib.unified_diff(old.splitlines(), text.splitlines(), name, "code", n=1)
            print("\n".join(lines))
            print(f"docs/reference/{name} is not what the code says: run `make reference`")
            status = 1
        elif not options.check:
            path.write_text(text, encoding="utf-8")
    return status


if __name__ == "__main__":
    sys.exit(main())
