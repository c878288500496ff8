"""The README and the how-to pages: every command and program runs, and prints what is shown."""

import json
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from tests.cli.conftest import Run
from tests.cli.pages import ROOT, Reader, blocks, prepare

ELSEWHERE = {
    "docs/api.md": "tests/cli/test_api_page.py",
    "docs/batch.md": "tests/cli/test_batch.py",
    "docs/ray.md": "tests/ray/test_settings.py",
}
"""Pages that another test runs."""
MAX_NOT_RUN = 43
DATA = {"json", "toml", "yaml"}


def how_to() -> list[str]:
    """The how-to pages of the site."""
    # The site's file has tags of its builder.
    navigation = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    (section,) = (entry["How to"] for entry in navigation if "How to" in entry)
    return [path for entry in section for path in entry.values()]


PAGES = [ROOT / page for page in ("README.md", *how_to()) if page not in ELSEWHERE]


@pytest.fixture
def reader_folder(tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone, and the files that a reader of these pages has."""
    prepare(tmp_path, monkeypatch)
    texts = ["a lift in the snow", "a ski resort", "an index of tables"]
    (tmp_path / "texts.txt").write_text("\n".join(texts))
    lines = [json.dumps({"id": number, "input": text}) for number, text in enumerate(texts)]
    (tmp_path / "texts.jsonl").write_text("\n".join(lines))
    (tmp_path / "test.txt").write_text("one lift, two slopes, three rides up in the snow. " * 20)
    (tmp_path / "chairlift.toml").write_text("max-num-seqs = 32\n")
    (tmp_path / "my-model").symlink_to(tiny_folder)
    return tmp_path


@pytest.mark.parametrize(
    "page",
    [pytest.param(PAGES[0], marks=pytest.mark.always), *PAGES[1:]],
    ids=lambda page: page.stem,
)
def test_a_page_runs_and_prints_what_it_shows(
    page: Path, chairlift: Run, reader_folder: Path
) -> None:
    names = ("MODEL", "LARGE", "SMALL", "LARGER", "SMALLER")
    stand_ins = dict.fromkeys(names, str(reader_folder / "my-model"))
    stand_ins |= {"FOLDER": str(reader_folder), "ROUTING": "both"}
    stand_ins |= {"N": "2", "RATE": "4", "REQUESTS": "50"}
    with ExitStack() as stack:
        Reader(chairlift, stack, stand_ins=stand_ins).read(blocks(page))


def test_no_more_than_now_does_not_run() -> None:
    found = [block for page in PAGES for block in blocks(page)]
    marked = [block for block in found if block.mark.startswith("not ")]
    others = [command for block in found if block not in marked for command in block.others]
    assert len(marked) + len(others) == MAX_NOT_RUN, "what runs can become what does not"


def test_a_block_is_a_command_a_program_or_data() -> None:
    found = [block for page in PAGES for block in blocks(page)]
    kinds = {block.kind for block in found if not block.mark.startswith("not run: ")}
    assert kinds - {"sh", "python"} <= DATA


def test_a_page_that_another_test_runs_is_named_there() -> None:
    for page, test in ELSEWHERE.items():
        assert Path(page).name in (ROOT / test).read_text(encoding="utf-8")
