"""docs/openai.md says what errors and defaults are; `test_how_to.py` runs its commands."""

import json
import re
from pathlib import Path

import pytest
from chairlift.server.config import ServerConfig

PAGE = (Path(__file__).parents[2] / "docs" / "openai.md").read_text(encoding="utf-8")


def test_the_error_on_the_page_is_one_of_the_api() -> None:
    (shown,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    assert json.loads(shown)["error"].keys() == {"message", "type", "param", "code"}


@pytest.mark.parametrize("name", ["http_listen", "http_allowed_host"])
def test_the_port_is_off_unless_asked_for(name: str) -> None:
    assert ServerConfig.model_fields[name].default is None
