"""The quick form of every scenario; `make chaos SCENARIO=... SCALE=long` is the long one."""

import importlib

import pytest

from tests.chaos import SCENARIOS
from tests.chaos.figures import Scale


# A storm takes a minute where another test has the other core.
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", SCENARIOS)
async def test_the_server_survives(name, lab):
    scenario = importlib.import_module(f"tests.chaos.{name}")
    figures = await scenario.run(Scale.QUICK, lab)
    assert figures.found
