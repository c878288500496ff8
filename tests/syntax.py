"""Syntax trees of sources, parsed once for all tests of a file."""

import ast
import functools
import os
from collections.abc import Iterator
from pathlib import Path


@functools.cache
def parsed(path: Path) -> ast.Module:
    """Parse a source of Python; `parsed.cache_clear()` frees all trees."""
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """Return all nodes of a source; `nodes_of.cache_clear()` frees them."""
    return tuple(ast.walk(parsed(path)))


def forget() -> None:
    """Free all trees: half a million objects, which each collection of garbage would visit."""
    nodes_of.cache_clear()
    parsed.cache_clear()


def paths_below(folder: Path, *, but: set[str]) -> Iterator[Path]:
    """Every file and folder below a folder, without what lies in folders of some names."""
    for name, folders, files in os.walk(folder):
        folders[:] = [inner for inner in folders if inner not in but]
        yield from (Path(name, inner) for inner in (*folders, *files))
