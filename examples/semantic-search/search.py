"""Find the lines of a file whose meaning is nearest to a query.

Run `python search.py FILE QUERY [--target ADDRESS]`.
"""

import argparse
from pathlib import Path

from chairlift.client import connect

NUM_SHOWN = 3
MAX_INPUTS = 2048
"""Inputs of one call."""


def main(path: Path, query: str, target: str) -> None:
    """Print the best lines with their cosine, the best first."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    with connect(target) as client:
        vectors = []
        for first in range(0, len(lines), MAX_INPUTS):
            part = lines[first : first + MAX_INPUTS]
            vectors += [found.values for found in client.embed(part, truncate_end=True)]
        (asked,) = client.embed([query])
    # Vectors have length 1, so that their product is the cosine.
    cosines = [sum(a * b for a, b in zip(asked.values, v, strict=True)) for v in vectors]
    for cosine, line in sorted(zip(cosines, lines, strict=True), reverse=True)[:NUM_SHOWN]:
        print(f"{cosine:.2f}  {line}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("query")
    parser.add_argument("--target", default="127.0.0.1:50051")
    options = parser.parse_args()
    main(options.file, options.query, options.target)
