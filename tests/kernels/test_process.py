"""The kernels' threads and instruction sets, each in a process of its own."""

import os
import subprocess
import sys

import pytest

from tests.forked import run_python

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


MISTYPED = """
from chairlift import _core
from chairlift.engine.engine import Engine
from chairlift.api.errors import ConfigError

for _ in range(2):
    print(_core.cpu_features())
try:
    Engine("demo")
except ConfigError as error:
    print(error)
"""

FAR_AWAY = """
from chairlift import _core

with _core.ProcessGuard(70) as guard:
    for seconds in (1e9, 1e18, 1e19, 1e300, float("inf")):
        guard.limit_silence(seconds)
        guard.exit_within(seconds)
        guard.watch_signals(seconds)
    for seconds in (-1.0, float("nan")):
        for method in (guard.limit_silence, guard.exit_within, guard.watch_signals):
            try:
                method(seconds)
            except ValueError as error:
                print(error)
    import os, signal, threading

    signal.signal(signal.SIGTERM, lambda *_: None)
    guard.watch_signals(1e300)
    os.kill(os.getpid(), signal.SIGTERM)
    print("alive", flush=True)
    # The guard looks at the signal before it ends the process.
    guard.exit_within(0.0)
    threading.Event().wait(60)
"""


STARVED = """
import os, subprocess, sys, time
from chairlift import _core

guard = _core.ProcessGuard(70)
# On one processor: the interpreter with the least share, and a process that takes all of it.
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
# It ends with this process, also where the guard ends that.
busy = f"while __import__('os').getppid() == {os.getpid()}: pass"
hog = subprocess.Popen([sys.executable, "-c", busy])
try:
    os.nice(19)
    guard.limit_silence(0.5)
    # The time of a processor that it needs is short, and what passes until it has it is not.
    until = time.thread_time() + 0.02
    while time.thread_time() < until:
        pass
    print("alive")
finally:
    hog.kill()
"""

SILENT = """
import ctypes, threading
from chairlift import _core

guard = _core.ProcessGuard(70)
guard.limit_silence(0.5)
ctypes.PyDLL(None).pause()
"""


def start(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program by an interpreter of its own."""
    return subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def run(program: str, **environment: str) -> list[str]:
    """Run a program and return the lines that it printed."""
    done = run_python("-c", program, env=os.environ | environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_threads_survive_fork_and_many_callers_and_do_not_delay_exit():
    assert run(THREADS) == ["forked", "shared"]


@pytest.mark.skipif(sys.platform != "linux", reason="counts of waits are Linux's")
def test_an_interpreter_that_waits_for_a_processor_is_not_silent():
    done = start(STARVED)
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr


def test_an_interpreter_that_native_code_holds_is_silent():
    done = start(SILENT)
    assert done.returncode == 70
    assert "the interpreter has not run for" in done.stderr


def test_a_mistyped_instruction_set_is_one_warning_and_no_engine_loads_with_it():
    done = run_python("-c", MISTYPED, env=os.environ | {"CHAIRLIFT_CPU": "avx512typo"})
    assert done.returncode == 0, done.stderr
    names = "one of amx, avx512bf16, avx512vnni, avx512, avx2, portable, got"
    first, second, error = done.stdout.splitlines()
    assert first == second
    assert error == f"environment: CHAIRLIFT_CPU: expected {names} 'avx512typo'"
    (warning,) = done.stderr.splitlines()
    assert warning == (
        f"chairlift: CHAIRLIFT_CPU: expected {names} avx512typo; the kernels use {first}"
    )


def test_a_guard_takes_any_time_and_goes_on_to_guard():
    done = start(FAR_AWAY)
    *refused, alive = done.stdout.splitlines()
    assert (len(refused), alive) == (6, "alive"), done.stderr
    assert all("expected a number of seconds, got" in line for line in refused)
    assert done.returncode == 70, done.stderr
    assert "panicked" not in done.stderr


def test_the_twins_hold_on_portable_code():
    done = start(PORTABLE, CHAIRLIFT_CPU="portable")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[0] == "portable"


@pytest.mark.skipif(sys.platform != "linux", reason="limits the address space as Linux does")
def test_a_layer_that_memory_has_no_room_for_is_a_memory_error():
    *errors, is_alive = run(MEMORY)
    assert is_alive == "True"
    assert len(errors) == 3
    assert all(error.startswith("out of memory: ") for error in errors)
