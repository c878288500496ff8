"""Links between the pages of the repository, and the paths that pages name."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "python").rglob("*.md"),
        *ROOT.glob("clients/README.md"),
        *ROOT.glob("clients/*/README.md"),
        *(ROOT / "examples").rglob("*.md"),
    ]
)
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]

MAX_WORDS = 1600
"""Write at most 1,500: a page that is at the limit cannot be corrected."""
LONG_PAGES = {
    "docs/api.md": "a task after the other, each with its program",
    "docs/families.md": "a table of all families",
    "docs/glossary.md": "a table of all terms",
    "docs/openai.md": "what each field does",
    "docs/security.md": "all that makes a port safe",
    "docs/internals/cuda.md": "for builders",
    "docs/internals/kernels.md": "for builders",
    "docs/internals/planted-bugs.md": "a table that is generated",
    "docs/internals/robustness.md": "for builders",
    "docs/internals/scheduler.md": "for builders",
    "docs/internals/service-faults.md": "for builders",
}
"""Pages over the limit, and why; pages of docs/reference/ are generated."""

SOURCES = [
    path.relative_to(ROOT).as_posix()
    for folder in (
        *("benchmarks", "cuda", "deploy", "examples", "proto", "python", "rust"),
        *("tests", "third_party", "tools", ".cargo"),
    )
    for path in (ROOT / folder).rglob("*.*")
]


def text_of(page: Path) -> str:
    """Return a page without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)


def anchors_of(page: Path) -> set[str]:
    """Return the names that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", text_of(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-") for h in headings}


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_a_link_leads_to_a_page_and_a_heading(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", text_of(page)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors_of(target), link


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_a_page_in_docs_that_is_named_exists(page: Path) -> None:
    named = re.findall(r"`(docs/[\w./-]+\.\w+)`", text_of(page))
    assert not [path for path in named if not (ROOT / path).exists()]


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_a_source_that_is_named_exists(page: Path) -> None:
    named = re.findall(r"`([\w./-]+\.(?:py|pyi|rs|cu|cuh|proto|toml))`", text_of(page))
    files = [f"/{path}" for path in SOURCES]
    # A file of the user.
    theirs = {"chairlift.toml"}
    missing = {name for name in named if not any(file.endswith(f"/{name}") for file in files)}
    assert missing <= theirs


def test_a_page_that_a_source_names_exists() -> None:
    for name in SOURCES:
        if name.endswith((".py", ".pyi", ".rs", ".cu", ".cuh", ".proto")):
            text = (ROOT / name).read_text(encoding="utf-8")
            for page in set(re.findall(r"\bdocs/[\w/-]+\.md\b", text)):
                assert (ROOT / page).exists(), f"{name}: {page}"


def test_a_page_is_short() -> None:
    pages = [name for name in NAMES if name.startswith("docs/")]
    words = {name: len((ROOT / name).read_text(encoding="utf-8").split()) for name in pages}
    long = {name for name, number in words.items() if number > MAX_WORDS}
    generated = {name for name in long if name.startswith("docs/reference/")}
    assert long - generated <= set(LONG_PAGES)


def test_every_page_is_in_the_list_of_pages() -> None:
    listed = re.findall(r"\]\(([\w./-]+\.md)\)", text_of(ROOT / "docs" / "README.md"))
    pages = {str(p.relative_to(ROOT / "docs")) for p in (ROOT / "docs").rglob("*.md")}
    assert pages - {"README.md"} <= set(listed)
