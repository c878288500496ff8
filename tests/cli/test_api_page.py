"""The Python of docs/api.md, run as it stands there."""

import re
import subprocess
import sys
from pathlib import Path

from tests.cli.conftest import environment

API = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", API, re.MULTILINE | re.DOTALL)


def test_the_python_of_the_page_runs(demo: str) -> None:
    assert len(BLOCKS) > 10
    program = "\n".join(BLOCKS).replace("127.0.0.1:50051", demo)
    assert demo in program
    run = subprocess.run(
        [sys.executable, "-c", f"{program}\nclient.close()"],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=100,
        check=False,
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert "The sky is blue because the air scatters blue light" in run.stdout
