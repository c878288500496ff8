"""docs/openai.md: its program against a server that was started as the page says."""

import json
import re
import shlex
from pathlib import Path

import pytest
from chairlift.server.config import ServerConfig

from tests.cli.conftest import printed_by
from tests.cli.terminal import Terminal

PAGE = (Path(__file__).parents[2] / "docs" / "openai.md").read_text(encoding="utf-8")


def commands() -> list[str]:
    """The lines of the page that a shell takes."""
    blocks = re.findall(r"(?:^    .*\n)+", PAGE, re.MULTILINE)
    return [line.strip() for block in blocks for line in block.replace("\\\n", "").splitlines()]


def test_the_example_answers(tmp_path: Path) -> None:
    (serve,) = (line for line in commands() if "--http-listen 127.0.0.1:8000" in line)
    words = shlex.split(serve)[1:]
    words[words.index("127.0.0.1:8000")] = "127.0.0.1:0"
    with Terminal(*words, "--listen", f"unix:{tmp_path}/s.sock") as server:
        server.until("OpenAI API on ")
        url = server.until("/v1")
        (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
        said = printed_by(program.replace("http://127.0.0.1:8000", url))
        assert said.startswith("The sky is blue because the air scatters blue light")


def test_the_error_on_the_page_is_one_of_the_api() -> None:
    (shown,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    assert json.loads(shown)["error"].keys() == {"message", "type", "param", "code"}


@pytest.mark.parametrize("name", ["http_listen", "http_allowed_host"])
def test_the_port_is_off_unless_asked_for(name: str) -> None:
    assert ServerConfig.model_fields[name].default is None
