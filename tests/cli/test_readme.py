"""The examples of the README that a newcomer tries first, run as they stand there."""

import re
import shlex
from pathlib import Path

from tests.cli.conftest import Run, printed_by
from tests.clients.console import assert_shown, examples

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def test_generate_prints_what_the_readme_shows(chairlift: Run, demo: str) -> None:
    shown = examples(README, "generate")
    assert len(shown) == 2
    for example in shown:
        program, *words = shlex.split(example.command)
        assert program == "chairlift"
        run = chairlift(*words, "--target", demo, "--temperature", "0")
        assert (run.returncode, run.stderr) == (0, "")
        assert_shown(example.shown, run.stdout)


def python_examples() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def test_the_python_examples_answer(demo: str) -> None:
    program = "\n".join(python_examples()).replace("127.0.0.1:50051", demo)
    assert demo in program
    assert "Engine(" in program
    assert "The sky is blue because the air scatters blue light" in printed_by(program)
