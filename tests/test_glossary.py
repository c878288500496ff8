"""Retired words of docs/glossary.md stay out of identifiers, each in its scope."""

import functools
import io
import keyword
import re
import tokenize
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

import pytest

pytestmark = pytest.mark.always

ROOT = Path(__file__).parents[1]
GLOSSARY = ROOT / "docs" / "glossary.md"
SOURCES = {"python": (".py", ".pyi"), "tests": (".py",), "rust": (".rs",), "proto": (".proto",)}


# A word of an identifier: `HTTPServer2` is http, server2; `num_spare_rows` is num, spare, rows.
WORD = re.compile(r"[A-Z]+(?![a-z])\d*|[A-Z]?[a-z]+\d*|\d+")
RUST_SILENT = re.compile(
    r'//[^\n]*|/\*.*?\*/|\b[bc]?r(?P<hashes>#*)".*?"(?P=hashes)'
    r"""|"(?:\\.|[^"\\])*"|b?'(?:\\[^\n]*?|[^'\\\n])'""",
    re.DOTALL,
)
"""Comments, strings and characters of Rust; lifetimes have no closing quote and stay."""
PROTO_SILENT = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\])*"', re.DOTALL)


class Retired(NamedTuple):
    """One row of the table."""

    word: str
    scope: tuple[str, ...]


def retired_words() -> list[Retired]:
    _, _, table = GLOSSARY.read_text(encoding="utf-8").partition("## Retired words")
    rows = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("| `")]
    return [
        Retired(word.strip(" `"), tuple(re.findall(r"`([^`]+)`", scope))) for word, _, scope in rows
    ]


@functools.cache
def words_of(identifier: str) -> str:
    """Return the words of an identifier, each between two lines: `_spare_rows_`."""
    return f"_{'_'.join(WORD.findall(identifier)).lower()}_"


def says(identifier: str, word: str) -> bool:
    """Whether the word, or its plural, is among the words of an identifier, in order."""
    has, wanted = words_of(identifier), words_of(word)
    return wanted in has or f"{wanted[:-1]}s_" in has


def blank(match: re.Match[str]) -> str:
    """Line breaks of what is cut out, so that lines keep their numbers."""
    return "\n" * match[0].count("\n") or " "


def identifiers_of(text: str, suffix: str) -> Iterator[tuple[str, int]]:
    """Every identifier of a source outside comments and strings, with its line."""
    if suffix in {".py", ".pyi"}:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.NAME and not keyword.iskeyword(token.string):
                yield token.string, token.start[0]
        return
    silent = RUST_SILENT if suffix == ".rs" else PROTO_SILENT
    for number, line in enumerate(silent.sub(blank, text).splitlines(), start=1):
        for match in re.finditer(r"[A-Za-z_]\w*", line):
            yield match[0], number


@functools.cache
def sources() -> dict[str, dict[str, int]]:
    """Identifiers of every source with the first line of each; the path's own name is line 0."""
    found: dict[str, dict[str, int]] = {}
    for folder, suffixes in SOURCES.items():
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix not in suffixes or not path.is_file() or "target" in path.parts:
                continue
            name = path.relative_to(ROOT)
            lines = {part.removesuffix(path.suffix): 0 for part in name.parts}
            for word, line in identifiers_of(path.read_text(encoding="utf-8"), path.suffix):
                lines.setdefault(word, line)
            found[name.as_posix()] = lines
    return found


def uses(retired: Retired) -> list[str]:
    return [
        f"{path}:{line}: {identifier}"
        for path, identifiers in sources().items()
        if any(fnmatch(path, pattern) for pattern in retired.scope)
        for identifier, line in identifiers.items()
        if says(identifier, retired.word)
    ]


TABLE = retired_words()


@pytest.mark.parametrize("retired", TABLE, ids=[row.word for row in TABLE])
def test_a_retired_word_is_in_no_identifier_of_its_scope(retired: Retired) -> None:
    assert not uses(retired), f"docs/glossary.md has the term for it: {uses(retired)[:20]}"


def test_every_scope_has_files() -> None:
    paths = sources().keys()
    for row in TABLE:
        assert row.scope, row.word
        for pattern in row.scope:
            assert any(fnmatch(path, pattern) for path in paths), (row.word, pattern)


def test_words_are_found_in_every_style_and_not_inside_of_others() -> None:
    assert says("spare_rows", "spare_rows")
    assert says("SpareRows", "spare_rows")
    assert says("NUM_SPARE_ROWS", "spare_rows")
    assert says("Seats", "seat")
    assert says("WATCH_CAUSE_PARKED", "parked")
    assert not says("research", "sea")
    assert not says("spark", "park")
    assert not says("rows_spare", "spare_rows")


def test_comments_and_strings_are_silent() -> None:
    rust = "fn a<'x>(b: &'x str) { /* parked */ let c = \"parked\"; let d = 'p'; } // parked\n"
    rust += 'let e = r#"a "parked" b"#; let f = b\'"\'; let parked_g = "\\"";\n'
    names = {name for name, _ in identifiers_of(rust, ".rs")}
    assert {"a", "x", "b", "str", "c", "d", "e", "f", "parked_g"} <= names
    assert "parked" not in names
    python = 'a = "parked"  # parked\n"""parked"""\n'
    assert [name for name, _ in identifiers_of(python, ".py")] == ["a"]
