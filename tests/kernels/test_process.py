"""The kernels' threads and instruction sets, each in a process of its own."""

import os
import subprocess
import sys

import pytest

THREADS = """
import os, warnings
from concurrent.futures import ThreadPoolExecutor

import torch
from chairlift import _core

warnings.simplefilter("ignore")  # os.fork in a process with threads
_core.set_num_threads(4)
layer = _core.Linear(torch.randn(200, 300))
x, out = torch.randn(50, 300), torch.empty(50, 200)
layer.forward(x, out)

def again(_=None):
    copy = torch.empty_like(out)
    layer.forward(x, copy)
    return torch.equal(copy, out)

child = os.fork()
assert again()
if child == 0:
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
print("forked")
with ThreadPoolExecutor(8) as pool:
    assert all(pool.map(again, range(200)))
print("shared")
"""

MEMORY = """
import resource

import torch
from chairlift import _core

_core.set_num_threads(2)
_core.Linear(torch.ones(64, 64))
weight = torch.zeros(8192, 8192)
used = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmSize"))
most = resource.getrlimit(resource.RLIMIT_AS)[1]
resource.setrlimit(resource.RLIMIT_AS, ((used << 10) + (16 << 20), most))
for quantize in (None, "int8", "int4"):
    try:
        _core.Linear(weight, None, quantize)
    except MemoryError as error:
        print(error)
resource.setrlimit(resource.RLIMIT_AS, (most, most))
layer, out = _core.Linear(torch.eye(64)), torch.zeros(3, 64)
layer.forward(torch.ones(3, 64), out)
print(bool((out == 1).all()))
"""

PORTABLE = """
import sys

import pytest
from chairlift import _core

print(_core.cpu_features())
tests = ["tests/kernels/test_ops.py", "tests/kernels/test_quantized.py", "tests/attention"]
sys.exit(pytest.main(["-q", "-x", "-k", "twin and not shape3", *tests]))
"""


def run(program: str, **environment: str) -> list[str]:
    """Run a program and return the lines that it printed."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_threads_survive_fork_and_many_callers_and_do_not_delay_exit():
    assert run(THREADS) == ["forked", "shared"]


def test_the_twins_hold_on_portable_code():
    assert run(PORTABLE, CHAIRLIFT_CPU="portable")[0] == "portable"


@pytest.mark.skipif(sys.platform != "linux", reason="limits the address space as Linux does")
def test_a_layer_that_memory_has_no_room_for_is_a_memory_error():
    *errors, is_alive = run(MEMORY)
    assert is_alive == "True"
    assert len(errors) == 3
    assert all(error.startswith("out of memory: ") for error in errors)
