"""Pages of docs/reference/ say what the code says."""

from pathlib import Path

import pytest

from tools.reference.pages import PAGES

FOLDER = Path(__file__).parents[1] / "docs" / "reference"


@pytest.mark.parametrize("name", PAGES)
def test_a_page_of_the_reference_is_what_the_code_says(name: str) -> None:
    page = (FOLDER / name).read_text(encoding="utf-8")
    assert page == PAGES[name](), "run `make reference`"
