"""examples/policies-notebook: its outputs are what its cells print and show."""

from tests.examples import notebook
from tests.examples.conftest import EXAMPLES

PATH = EXAMPLES / "policies-notebook" / "policies.ipynb"


def test_a_notebook_shows_what_its_cells_give():
    found = notebook.read(PATH)
    shown = [cell["outputs"] for cell in notebook.code_cells(found)]
    assert any(shown)
    assert shown == notebook.outputs(found), f"run `python -m tests.examples.notebook {PATH}`"


def test_the_cells_of_a_notebook_were_run_in_order():
    cells = notebook.code_cells(notebook.read(PATH))
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
