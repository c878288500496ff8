"""The live page in a real browser, in short; `make check-page` has all."""

from pathlib import Path

import pytest

from tests.page.__main__ import browse, chromium

FOLDER = Path(__file__).parents[2] / ".tools" / "page"

needs_a_browser = pytest.mark.skipif(
    chromium() is None or not (FOLDER / "bin" / "python").exists(),
    reason="needs Chromium and what `make check-page` installs",
)


@needs_a_browser
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("check", "scene"), [("sends_prompts", "few-rows"), ("shows_markup_as_text", "markup")]
)
def test_the_page_works_in_a_browser(check, scene):
    browse(FOLDER, [check], [scene])
