"""`python -m tests.chaos SCENARIO --scale long`: one scenario, its progress and its figures."""

import argparse
import asyncio
import importlib
import os
import tempfile
import time
from pathlib import Path
from types import ModuleType

from tests.chaos import SCENARIOS
from tests.chaos.figures import Figures, Scale
from tests.chaos.lab import Lab


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("scenario", nargs="+", choices=[*SCENARIOS, "all"])
    parser.add_argument("--scale", type=Scale, choices=list(Scale), default=Scale.MEDIUM)
    arguments = parser.parse_args()
    names = SCENARIOS if "all" in arguments.scenario else arguments.scenario
    # Here, because every server process imports this file again, and does not need `transformers`.
    from tests.engine import tiny_model

    with tempfile.TemporaryDirectory(prefix="chairlift-chaos-") as scratch:
        os.environ["TQDM_DISABLE"] = "1"
        tiny_model.write(Path(scratch) / "model")
        rows = []
        for name in names:
            rows.append(run(name, arguments.scale, Path(scratch)))
            print(rows[-1], flush=True)


def run(name: str, scale: Scale, scratch: Path) -> str:
    """Run a scenario on servers of its own; return its row of the table."""
    folder = scratch / name
    folder.mkdir()
    lab = Lab(scratch / "model", folder, is_talking=True)
    scenario = importlib.import_module(f"tests.chaos.{name}")
    began = time.monotonic()
    try:
        figures = asyncio.run(judged(scenario, scale, lab))
    finally:
        print(f"\r\033[K{name}: {time.monotonic() - began:.0f} s")
    lab.close()
    return figures.row()


async def judged(scenario: ModuleType, scale: Scale, lab: Lab) -> Figures:
    """Run it; if it fails, add the logs and the waiting tasks of its servers to the error."""
    try:
        return await scenario.run(scale, lab)
    except (AssertionError, TimeoutError):
        print(f"\n{await lab.autopsy()}", flush=True)
        raise


if __name__ == "__main__":
    main()
