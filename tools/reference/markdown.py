"""Pieces of Markdown."""

from collections.abc import Iterable, Sequence

NOTE = "*`make reference` makes this page from the code, and a test compares both.*"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; lines and bars in a cell do not end it."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(cell, line)) + " |" for line in lines)


def cell(text: str) -> str:
    """Return a text as it can be in a table."""
    return " ".join(text.replace("|", "\\|").split())


def page(title: str, *parts: str) -> str:
    """Return a page of a title, the note above and parts."""
    return "\n\n".join([f"# {title}", *(part.strip("\n") for part in parts), NOTE]) + "\n"
