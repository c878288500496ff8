"""Loaded kernels: the limits of shared memory, and a second model beside the first."""

from pathlib import Path

import pytest
from chairlift.kernels.cuda.build import Binary
from chairlift.kernels.cuda.launch import SHARED_BYTES, LoadedKernels

from tests.cuda.small_models import make, prompts
from tests.engine.drive import greedy, run, token_ids

NORM, GATE = (Binary(name, name.encode(), Path(name)) for name in ("norm", "gate"))


class Driver:
    """Loads kernels, and keeps the limit of each as a driver does: the last call counts."""

    def __init__(self):
        self.limits = {}
        self.num_loaded = 0

    def load(self, binary):
        self.num_loaded += 1
        kernel = f"{binary.name} {self.num_loaded}"
        self.limits[kernel] = SHARED_BYTES
        return kernel

    def allow(self, kernel, shared_bytes):
        self.limits[kernel] = shared_bytes


@pytest.fixture
def driver():
    return Driver()


@pytest.fixture
def kernels(driver):
    loaded = LoadedKernels(driver.load, driver.allow)
    loaded.add([NORM, GATE])
    return loaded


def test_a_smaller_launch_leaves_room_for_a_larger_one(kernels, driver):
    for size in (100_000, 60_000, 1000, 100_000, 0):
        kernel = kernels.get("norm", size)
        assert driver.limits[kernel] >= size
    assert driver.limits[kernel] == 100_000


def test_a_limit_belongs_to_one_kernel(kernels, driver):
    kernels.get("norm", 100_000)
    assert driver.limits[kernels.get("gate", SHARED_BYTES)] == SHARED_BYTES
    assert driver.limits[kernels.get("gate", 70_000)] == 70_000


def test_a_second_load_keeps_the_kernels_of_the_first(kernels, driver):
    first = kernels.get("norm", 100_000)
    more = Binary("sample", b"sample", Path("sample"))
    kernels.add([NORM, more])
    assert kernels.get("norm", 0) is first
    assert driver.limits[first] == 100_000
    assert kernels.get("sample", 0)
    assert driver.num_loaded == 3


def test_what_a_runner_recorded_is_gone_before_the_next_one_records(llama):
    engine = make(llama[0])
    recording = engine.accelerator.recording
    (prompt,) = prompts(5)
    (before,) = run(engine, [greedy(prompt, 4, ignore_eos=True)])
    stale = engine.runner
    engine.restart()
    assert recording.is_closed
    assert engine.accelerator.recording is not recording
    with pytest.raises(AssertionError, match="runner that is gone"):
        stale.probe()
    (after,) = run(engine, [greedy(prompt, 4, ignore_eos=True)])
    assert token_ids(after) == token_ids(before)
