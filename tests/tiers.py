"""Which tests `make test` runs and which only `make slow` does, chosen by time: `slow.txt`.

A line of the list names a test function and how many of its cases `make test` runs, spread evenly
over all; the others have the marker `slow`. A function that the list does not name runs whole, so
that a new test runs until the list is made anew from the times of a run of all tests:

    python -m pytest -n 3 --dist loadfile -m '' --junit-xml times.xml
    python -m tests.tiers times.xml

A test that is marked `always` is in `make test` whatever it costs. The list counts only where all
tests are collected: `pytest tests/engine/test_cancel.py` runs all of that file.
"""

import re
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest

TESTS = Path(__file__).parent
LIST = TESTS / "slow.txt"
TEST_S = 2.0
"""A test that takes longer, on average over its cases, is only in `make slow`."""
CASES_S = 1.0
"""What the cases of one function may take together in `make test`."""
_LONG_FORM = "long form"
"""Property of a test that the code marks `slow`: its time says nothing of the others."""


def quick_cases() -> dict[str, int]:
    """Read the list: `folder/test_file.py::test_name`, to its number of cases in `make test`."""
    lines = LIST.read_text(encoding="utf-8").splitlines()
    return {name: int(number) for name, number in (line.split() for line in lines)}


def mark_slow(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    """Give the marker `slow` to the cases that `make test` leaves out."""
    if [Path(path).resolve() for path in config.args] != [TESTS]:
        return
    cases = defaultdict(list)
    for item in items:
        if item.get_closest_marker("slow"):
            item.user_properties.append((_LONG_FORM, ""))
        else:
            name = item.path.relative_to(TESTS).as_posix()
            cases[f"{name}::{item.originalname}"].append(item)
    for name, number in quick_cases().items():
        found = cases.get(name, [])
        kept = {len(found) * i // number for i in range(number)}
        for i, item in enumerate(found):
            if i not in kept and item.get_closest_marker("always") is None:
                item.add_marker(pytest.mark.slow)


def choose(seconds: dict[str, list[float]]) -> dict[str, int]:
    """Return the functions that `make test` does not run whole, with their quick cases."""
    chosen = {}
    for name, times in seconds.items():
        mean = sum(times) / len(times)
        number = 0 if mean > TEST_S else max(1, round(CASES_S / max(mean, 1e-3)))
        if number < len(times) and sum(times) > CASES_S:
            chosen[name] = number
    return chosen


def times_of(report: Path) -> dict[str, list[float]]:
    """Return the seconds of each case by function, from a report of pytest in JUnit's XML."""
    seconds = defaultdict(list)
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        if case.find(f"properties/property[@name='{_LONG_FORM}']") is not None:
            continue
        module = case.attrib["classname"].removeprefix("tests.").replace(".", "/")
        name = re.sub(r"\[.*", "", case.attrib["name"], flags=re.DOTALL)
        seconds[f"{module}.py::{name}"].append(float(case.attrib["time"]))
    return seconds


if __name__ == "__main__":
    listed = choose(times_of(Path(sys.argv[1])))
    LIST.write_text(
        "".join(f"{name} {listed[name]}\n" for name in sorted(listed)), encoding="utf-8"
    )
