"""docs/tutorials/ and docs/explanation/: every command runs, and prints what its page shows."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.cli.pages import ROOT, Reader, blocks, prepare

ELSEWHERE = {"docs/tutorials/two-replicas.md": "tests/ray/test_pages.py"}
"""Pages that another test runs."""
PAGES = sorted(
    page
    for page in (
        ROOT / "docs" / "quickstart.md",
        *(ROOT / "docs" / "tutorials").glob("*.md"),
        *(ROOT / "docs" / "explanation").glob("*.md"),
    )
    if page.relative_to(ROOT).as_posix() not in ELSEWHERE
)
MAX_NOT_RUN = 3


@pytest.mark.parametrize(
    "page",
    [pytest.param(PAGES[0], marks=pytest.mark.always), *PAGES[1:]],
    ids=lambda page: page.stem,
)
def test_a_page_runs_and_prints_what_it_shows(
    page: Path, chairlift: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(tmp_path, monkeypatch)
    with ExitStack() as stack:
        Reader(chairlift, stack).read(blocks(page))


def test_no_more_blocks_than_now_do_not_run() -> None:
    not_run = [b for page in PAGES for b in blocks(page) if "not run: " in b.mark or b.others]
    assert len(not_run) == MAX_NOT_RUN, "a block that runs can become one that does not"


def test_a_page_that_another_test_runs_is_named_there() -> None:
    for page, test in ELSEWHERE.items():
        assert Path(page).name in (ROOT / test).read_text(encoding="utf-8")
