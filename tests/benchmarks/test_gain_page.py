"""The interactive figure of docs/gains.md: its arithmetic, and the file in docs."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks.gain_page import render_gain_page, text_of
from benchmarks.slot_use import gain_of, slot_use

DOCS = Path(__file__).parents[2] / "docs"
GRID = [
    (cv, rows, ratio)
    for cv in (0.05, 0.3, 0.77, 1.0, 1.5)
    for rows in (2, 16, 64)
    for ratio in (1.0, 1.7, 8.0)
]


def test_a_static_batch_of_exponential_lengths_uses_one_over_the_harmonic_number() -> None:
    for rows in (1, 2, 8, 64):
        harmonic = sum(1 / place for place in range(1, rows + 1))
        assert slot_use(1.0, rows) == pytest.approx(1 / harmonic, rel=1e-4)


def test_a_policy_that_wastes_no_slot_gains_nothing_over_one_row() -> None:
    assert gain_of(0.77, 1, 3.0) == pytest.approx(1)


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")
def test_the_page_computes_the_gains_of_the_figures() -> None:
    call = f"console.log(JSON.stringify({json.dumps(GRID)}.map((at) => gainOf(...at).gain)))"
    command = ["node", "--eval", text_of("formula.js") + call]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert found == pytest.approx([gain_of(*at) for at in GRID], rel=1e-9)


def test_the_page_in_docs_is_the_one_that_the_sources_make() -> None:
    assert (DOCS / "figures" / "gain.html").read_text(encoding="utf-8") == render_gain_page()
