"""`Python`: a process that runs a program, forked from one that has imported torch.

To import torch takes an interpreter seconds. Each worker of the tests does it once more, in a
process that does nothing else; a program is a fork of that, with the arguments, the variables, the
folder and the files that it is given. It ends as an interpreter does, and is a child of the worker:
signals, exit codes and times are its own.
"""

import atexit
import ctypes
import fcntl
import gc
import inspect
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import termios
import time
from pathlib import Path

PRELOAD = """
import chairlift.cli.batch.local, chairlift.cli.batch.remote, chairlift.cli.serve
import chairlift.engine.async_engine, chairlift.server.app.run
"""
MAIN = f"{PRELOAD}\nfrom tests.forked import run_jobs\nrun_jobs()"
_PR_SET_CHILD_SUBREAPER = 36


def take_terminal() -> None:
    """Make standard input the terminal of this session."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Python(subprocess.Popen):
    """`python ARGUMENT...` in a process of its own; arguments are `-c PROGRAM` or `-m MODULE`.

    Args:
        arguments: Arguments of the interpreter, then those of the program.
        has_terminal: Standard input is the terminal of a session of its own.
        options: Options of `subprocess.Popen`.
    """

    def __init__(self, *arguments: object, has_terminal: bool = False, **options: object) -> None:
        self._has_terminal = has_terminal
        if has_terminal:
            options |= {"start_new_session": True, "preexec_fn": take_terminal}
        super().__init__([sys.executable, *map(str, arguments)], **options)

    def _execute_child(self, *values: object) -> None:
        if sys.platform != "linux":
            super()._execute_child(*values)
            return
        names = inspect.signature(super()._execute_child).parameters
        given = dict(zip(names, values, strict=True))
        ends = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        files = [given["p2cread"], given["c2pwrite"], given["errwrite"]]
        job = {
            "arguments": given["args"][1:],
            "variables": dict(os.environ if given["env"] is None else given["env"]),
            "folder": str(Path(given["cwd"] or ".").absolute()),
            "parent": os.getpid(),
            "has_terminal": self._has_terminal,
        }
        self.pid = _ask(job, [number if file == -1 else file for number, file in enumerate(files)])
        self._child_created = True
        self._close_pipe_fds(*(given[name] for name in ends))


def run_python(*arguments: object, **options: object) -> subprocess.CompletedProcess:
    """Run a program to its end, as `subprocess.run(..., capture_output=True, text=True)` does."""
    timeout = options.pop("timeout", 100)
    given = options.pop("input", None)
    if given is not None:
        options["stdin"] = subprocess.PIPE
    pipe = subprocess.PIPE
    with Python(*arguments, stdout=pipe, stderr=pipe, text=True, **options) as process:
        try:
            output, errors = process.communicate(given, timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


_control: socket.socket | None = None


def _ask(job: dict[str, object], files: list[int]) -> int:
    """Have a job forked; return its process id."""
    global _control
    if _control is None:
        _control = _start()
    socket.send_fds(_control, [json.dumps(job).encode()], files)
    found = _control.recv(32)
    assert found, "the process that is forked has ended"
    return int(found)


def _start() -> socket.socket:
    """Start the process that is forked, and adopt what it forks."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    process = subprocess.Popen(
        [sys.executable, "-c", MAIN, str(theirs.fileno())],
        cwd=Path(__file__).parents[1],
        stdin=subprocess.DEVNULL,
        pass_fds=[theirs.fileno()],
    )
    theirs.close()

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def run_jobs() -> None:
    """Fork a process for each job until the worker ends; in a fork, run its program."""
    control = socket.socket(fileno=int(sys.argv[1]))
    # The collector would copy each page that it looks at in a fork.
    gc.collect()
    gc.freeze()
    while True:
        message, files, _, _ = socket.recv_fds(control, 2**20, 3)
        if not message:
            return
        read, write = os.pipe()
        between = os.fork()
        if between == 0:
            # The parent of the job ends at once, so that the worker adopts the job.
            pid = os.fork()
            if pid == 0:
                break
            os.write(write, str(pid).encode())
            os._exit(0)
        os.close(write)
        os.waitpid(between, 0)
        control.send(os.read(read, 32))
        for file in (read, *files):
            os.close(file)
    for file in (read, write):
        os.close(file)
    control.close()
    _become(json.loads(message), files)


def _become(job: dict[str, object], files: list[int]) -> None:
    if job["has_terminal"]:
        os.setsid()
    for number, file in enumerate(files):
        os.dup2(file, number)
    for file in files:
        os.close(file)
    if job["has_terminal"]:
        take_terminal()
    # Those of a new interpreter: the worker may have ignored or blocked some when it started this.
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.chdir(job["folder"])
    os.environ.clear()
    os.environ.update(job["variables"])
    until = time.monotonic() + 10
    while os.getppid() != job["parent"]:
        if time.monotonic() > until:
            os._exit(70)
        time.sleep(0.001)
    option, program, *rest = job["arguments"]
    sys.argv = [option, *rest]
    sys.path[0] = "" if option == "-c" else job["folder"]
    if option == "-m":
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    else:
        exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})
