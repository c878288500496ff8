"""examples/semantic-search with a real encoder."""

from tests.examples.conftest import EXAMPLES, served, shown
from tests.minilm import needs_minilm


@needs_minilm
def test_the_nearest_line_is_the_one_that_the_page_shows(run, tmp_path):
    readme = (EXAMPLES / "semantic-search" / "README.md").read_text(encoding="utf-8")
    lines = readme.partition("```text\n")[2].partition("```")[0]
    (tmp_path / "lines.txt").write_text(lines)
    query = "how do I get up the mountain"
    with served("minilm") as server:
        words = (tmp_path / "lines.txt", query, "--target", server.address)
        printed = run("semantic-search/search.py", *words)
    assert printed == shown("semantic-search/search.py")
