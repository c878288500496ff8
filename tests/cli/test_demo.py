"""`chairlift demo` from end to end: a server process, seven prompts, the picture."""

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from chairlift.cli.demo import PROMPTS

from tests.cli.conftest import Run

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize(
    "batching", [pytest.param("continuous", marks=pytest.mark.always), "static"]
)
def test_seven_prompts_share_four_rows(chairlift: Run, tmp_path: Path, batching: str) -> None:
    picture = tmp_path / "demo.svg"
    run = chairlift("demo", "--picture", picture, "--batching", batching)
    assert run.returncode == 0, run
    for prompt, _ in PROMPTS:
        assert prompt in run.stdout
    assert "row 3" in run.stdout
    assert "row 4" not in run.stdout
    root = ElementTree.fromstring(picture.read_text(encoding="utf-8"))
    runs = [group.findtext(f"{SVG}title", "") for group in root.iter(f"{SVG}g")]
    # No request is preempted: each has one row from its first step to its last.
    assert len(runs) == len(PROMPTS)
    for prompt, _ in PROMPTS:
        assert sum(title.startswith(prompt) for title in runs) == 1


def test_no_prompt_mark_follows_the_first_token(chairlift: Run, tmp_path: Path) -> None:
    run = chairlift("demo", "--picture", tmp_path / "demo.svg")
    rows = [line.split(" ", 2)[2] for line in run.stdout.splitlines() if line.startswith("row ")]
    assert len(rows) == 4
    # A number begins a request; without a preemption its prompt is one stretch at its start.
    requests = [request for row in rows for request in re.findall(r"\d[^\d·]*", row)]
    assert len(requests) == len(PROMPTS)
    assert all(re.fullmatch(r"\d╱*[─═]*●", request) for request in requests), rows
    assert any("═" in request for request in requests)
