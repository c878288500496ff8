"""How far a measurement is: a bar on a terminal, lines now and then else."""

import io
import os
import pty
import re
from pathlib import Path

import pytest
from chairlift.cli.progress import Progress
from rich.console import Console

from tests.cli.conftest import environment
from tests.forked import Python


def test_without_a_terminal_there_is_a_line_now_and_then() -> None:
    now, file = [0.0], io.StringIO()
    console = Console(file=file, width=40)
    with Progress("requests", 400, console=console, clock=lambda: now[0]) as progress:
        for _ in range(300):
            now[0] += 0.25
            progress.tick()
    lines = file.getvalue().splitlines()
    assert lines[0] == "measuring: 40 of 400 requests, 4/s, 0:10 elapsed, about 1:30 remaining"
    assert lines[-1] == "measuring: 280 of 400 requests, 4/s, 1:10 elapsed, about 0:30 remaining"
    assert len(lines) == 7


def test_units_of_an_earlier_run_are_no_part_of_the_rate() -> None:
    now, file = [0.0], io.StringIO()
    console = Console(file=file, width=80)
    with Progress(
        "lines", 100, doing="batch", num_before=50, console=console, clock=lambda: now[0]
    ) as progress:
        now[0] = 10.0
        progress.tick(25)
    expected = "batch: 75 of 100 lines, 2.5/s, 0:10 elapsed, about 0:10 remaining\n"
    assert file.getvalue() == expected


def test_a_total_may_be_known_later() -> None:
    now, file = [0.0], io.StringIO()
    console = Console(file=file, width=200)
    with Progress("steps", console=console, clock=lambda: now[0]) as progress:
        now[0] = 61.0
        progress.tick()
        progress.expect(2)
        now[0] = 120.0
        progress.tick()
    assert file.getvalue().splitlines() == [
        "measuring: 1 steps, 1:01 elapsed",
        "measuring: 2 of 2 steps, 0.0167/s, 2:00 elapsed, about 0:00 remaining",
    ]


@pytest.mark.parametrize("width", [50, 80])
def test_on_a_terminal_there_is_a_bar_that_leaves_nothing(width: int) -> None:
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=True, color_system=None)
    with Progress("requests", 400, console=console) as progress:
        progress.tick(100)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue())
    frames = [line for line in re.split(r"[\r\n]", plain) if line.strip()]
    assert "100/400" in frames[-1]
    assert "elapsed" in frames[-1]
    assert "left" in frames[-1]
    assert max(map(len, frames)) <= width
    # The last line is erased.
    assert file.getvalue().rstrip().endswith("\x1b[2K")


@pytest.mark.parametrize("is_json", [False, True])
def test_a_bench_shows_its_progress_on_a_terminal_and_results_stay_clean(
    tmp_path: Path, is_json: bool
) -> None:
    master, slave = pty.openpty()
    command = ["-m", "chairlift", "bench", "scheduler", "--running", "64"]
    command += ["--json"] if is_json else []
    results = tmp_path / "results"
    with results.open("w") as file:
        process = Python(*command, stdout=file, stderr=slave, env=environment() | {"TERM": "xterm"})
        os.close(slave)
        seen = b""
        while True:
            try:
                data = os.read(master, 65_536)
            except OSError:  # The other end is closed.
                break
            if not data:
                break
            seen += data
    os.close(master)
    assert process.wait(60) == 0, seen
    assert b"elapsed" in seen
    assert b"/400" in seen
    text = results.read_text()
    assert "\x1b" not in text
    assert "elapsed" not in text
    assert "step_p50_s" in text
