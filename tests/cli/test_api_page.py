"""The Python of docs/api.md, run as it stands there."""

import re
from pathlib import Path

from tests.cli.conftest import printed_by

API = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", API, re.MULTILINE | re.DOTALL)


def test_the_python_of_the_page_runs(demo: str) -> None:
    assert len(BLOCKS) > 10
    program = "\n".join(BLOCKS).replace("127.0.0.1:50051", demo)
    assert demo in program
    printed = printed_by(f"{program}\nclient.close()")
    assert "The sky is blue because the air scatters blue light" in printed
