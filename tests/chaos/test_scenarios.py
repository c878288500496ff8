"""The quick form of the scenarios; `make chaos SCENARIO=... SCALE=long` is the long one."""

import importlib

import pytest

from tests.chaos import SCENARIOS
from tests.chaos.figures import Scale

QUICK = ("half_closes", "hostile_constraints", "kill_server", "malformed")
"""Scenarios of seconds that `make test` has; `make slow` has all."""


# A storm takes a minute where another test has the other core.
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.always] * (name in QUICK)) for name in SCENARIOS],
)
async def test_the_server_survives(name, lab):
    scenario = importlib.import_module(f"tests.chaos.{name}")
    try:
        figures = await scenario.run(Scale.QUICK, lab)
    except (EOFError, OSError) as error:
        # A server has ended: why is in its log.
        error.add_note(await lab.autopsy())
        raise
    assert figures.found
