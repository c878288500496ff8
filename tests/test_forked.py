"""A program that is forked behaves as one that an interpreter of its own runs."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forked import Python, run_python

PROGRAMS = {
    "arguments": "import sys; print(sys.argv, sys.path[0], __name__)",
    "variables and folder": "import os; print(dict(os.environ), os.getcwd(), len(os.listdir('.')))",
    "standard input": "import sys; print(sys.stdin.read()); print('error', file=sys.stderr)",
    "an exit code": "import sys; sys.exit(70)",
    "a message": "import sys; sys.exit('out of chairs')",
    "a signal": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "an interrupt": "import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(9)",
    "threads and handlers at exit": (
        "import atexit, threading, time\n"
        "atexit.register(print, 'exit')\n"
        "threading.Thread(target=lambda: (time.sleep(0.01), print('thread'))).start()"
    ),
    "open files": "import os; print(sorted(os.listdir('/proc/self/fd'))[:3], os.isatty(0))",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_it_ends_and_prints_as_an_interpreter_does(name, tmp_path):
    arguments = ["-c", PROGRAMS[name], "a", "b c"]
    given = {"cwd": tmp_path, "env": {"LC_ALL": "C.UTF-8", "COLOUR": "größe"}, "input": "one\n"}
    forked = run_python(*arguments, **given)
    real = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        # A run of the tests that a shell has put in the background ignores interrupts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        **given,
    )
    assert (forked.returncode, forked.stdout) == (real.returncode, real.stdout)
    assert forked.stderr.splitlines()[-1:] == real.stderr.splitlines()[-1:]


def test_a_program_has_its_signals_whatever_the_worker_does_with_them():
    worker = """
import signal
from tests.forked import run_python
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
print(run_python("-c", PROGRAM).returncode)
"""
    root = Path(__file__).parents[1]
    for name in ("SIGINT", "SIGTERM"):
        program = f"import os, signal, time; os.kill(os.getpid(), signal.{name}); time.sleep(9)"
        run = subprocess.run(
            [sys.executable, "-c", f"PROGRAM = {program!r}\n{worker}"],
            cwd=root,
            capture_output=True,
            text=True,
            check=True,
        )
        assert int(run.stdout) != 0


def test_signals_reach_the_program_and_its_parent_is_the_test():
    program = "import os, time; print(os.getppid(), flush=True); time.sleep(99)"
    with Python("-c", program, stdout=subprocess.PIPE, text=True) as process:
        assert int(process.stdout.readline()) == os.getpid()
        process.terminate()
        assert process.wait(30) == -15


def test_torch_is_there_and_nothing_has_used_the_kernels():
    program = "import sys, threading; print('torch' in sys.modules, threading.active_count())"
    assert run_python("-c", program).stdout == "True 1\n"
