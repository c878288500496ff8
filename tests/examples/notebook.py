"""Runs the cells of a notebook without Jupyter, and writes their outputs into it.

python -m tests.examples.notebook FILE.ipynb
"""

import ast
import io
import json
import sys
from contextlib import redirect_stdout
from pathlib import Path


def read(path):
    """Return a notebook."""
    return json.loads(path.read_text(encoding="utf-8"))


def code_cells(notebook):
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def outputs(notebook):
    """Run the cells in order; return the outputs of each, in the notebook format."""
    names = {"__name__": "__main__"}
    cells = enumerate(code_cells(notebook), start=1)
    return [_outputs("".join(cell["source"]), number, names) for number, cell in cells]


def _outputs(source, number, names):
    tree = ast.parse(source)
    shown = None
    with redirect_stdout(io.StringIO()) as printed:
        if tree.body and isinstance(tree.body[-1], ast.Expr):
            last = ast.Expression(tree.body.pop().value)
            exec(compile(tree, "<cell>", "exec"), names)
            shown = eval(compile(last, "<cell>", "eval"), names)
        else:
            exec(compile(tree, "<cell>", "exec"), names)
    found = []
    if text := printed.getvalue():
        found.append({"name": "stdout", "output_type": "stream", "text": _lines(text)})
    if shown is not None:
        found.append(
            {
                "data": _data(shown),
                "execution_count": number,
                "metadata": {},
                "output_type": "execute_result",
            }
        )
    return found


def _data(value):
    """Return what Jupyter shows of a value."""
    if hasattr(value, "_repr_svg_"):
        return {"image/svg+xml": _lines(value._repr_svg_())}
    return {"text/plain": _lines(repr(value))}


def _lines(text):
    return text.splitlines(keepends=True)


def main():
    path = Path(sys.argv[1])
    notebook = read(path)
    for number, (cell, found) in enumerate(
        zip(code_cells(notebook), outputs(notebook), strict=True), start=1
    ):
        cell |= {"outputs": found, "execution_count": number}
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
