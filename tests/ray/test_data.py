"""Jobs of Ray Data on a local Ray; skipped where Ray is not installed (`make check-ray`)."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.ray.cluster import SLOW_MACHINE, processes

pytestmark = [
    # Ray waits for none of the processes that it starts.
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed"),
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("ray"),
]

ROOT = Path(__file__).parents[2]
NUM_LINES = 4 * 512
WAIT_S = 300.0


class Job:
    """A job that runs."""

    def __init__(self, process, mark, output):
        self.process = process
        self.mark = mark
        self.parts = output.with_name(f"{output.name}.parts")

    def engines(self):
        """Process numbers of its engines."""
        found = processes(self.mark).items()
        return [pid for pid, (_, command) in found if "Answering" in command]

    def until_parts(self, num):
        """Wait until so many parts are answered, and more are not."""
        until = time.monotonic() + WAIT_S
        while len(list(self.parts.glob("[0-9]*.jsonl"))) < num or len(self.engines()) < 2:
            assert self.process.poll() is None, self.process.stdout.read()
            assert time.monotonic() < until
            time.sleep(0.02)

    def outcome(self):
        """Wait for its end."""
        text, _ = self.process.communicate(timeout=WAIT_S)
        assert self.process.returncode == 0, text
        # Ray writes there, too.
        (line,) = [line for line in text.splitlines() if line.startswith("{")]
        return json.loads(line)

    def kill(self):
        """Kill all of it."""
        for pid in processes(self.mark):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(30)


@contextmanager
def running(source, output):
    mark = f"{os.getpid()}-{time.monotonic_ns()}"
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.ray.data_job", str(source), str(output)],
        env={**os.environ, **SLOW_MACHINE, "CHECK_RAY": mark},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
    )
    job = Job(process, mark, output)
    try:
        yield job
    finally:
        job.kill()
        process.stdout.close()


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "in.jsonl"
    entries = (
        {"id": number, "prompt": f"{number} foxes", "max_tokens": 8, "temperature": 0}
        for number in range(NUM_LINES)
    )
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return path


def check_answers(output):
    """Each line has one answer, in order, and no part of it is left."""
    answers = [json.loads(line) for line in output.read_text().splitlines()]
    assert [answer["id"] for answer in answers] == list(range(NUM_LINES))
    assert not any("error" in answer for answer in answers)
    assert sorted(path.name for path in output.parent.iterdir()) == ["in.jsonl", output.name]
    return answers


def test_a_killed_engine_loses_no_answer_and_doubles_none(source, tmp_path):
    output = tmp_path / "out.jsonl"
    with running(source, output) as job:
        job.until_parts(1)
        before = job.engines()
        os.kill(before[0], signal.SIGKILL)
        outcome = job.outcome()
    assert outcome["lines"] == NUM_LINES
    assert outcome["parts"] == 4
    assert outcome["errors"] == outcome["earlier"] == 0
    check_answers(output)


def test_a_job_that_was_killed_goes_on_with_the_parts_that_are_missing(source, tmp_path):
    output = tmp_path / "out.jsonl"
    with running(source, output) as job:
        job.until_parts(1)
        job.kill()
    num_parts = len(list(job.parts.glob("[0-9]*.jsonl")))
    assert 1 <= num_parts < 4
    with running(source, output) as job:
        outcome = job.outcome()
    assert outcome["earlier"] == num_parts
    assert outcome["lines"] == NUM_LINES - 512 * num_parts
    check_answers(output)
