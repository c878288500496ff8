"""`chairlift serve --supervise`: kills, faults and mistakes, with the processes that people run."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from chairlift.v1 import generation_pb2_grpc

from tests.cli.conftest import environment
from tests.server.connection import receive, start, until


class Supervised:
    """A supervisor, and the lines that its servers print."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def serving(self) -> str:
        """Wait until a server says that it serves; return its address."""
        assert self.process.stdout is not None
        while line := (await self.process.stdout.readline()).decode():
            if line.startswith("serving on "):
                return line.split()[2]
        message = "the supervisor ended"
        raise AssertionError(message)

    def child(self) -> int:
        """Process id of the server."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        (child,) = children.read_text().split()
        return int(child)


@asynccontextmanager
async def supervised(
    *arguments: object, program: tuple[str, ...] = ("-m", "chairlift")
) -> AsyncIterator[Supervised]:
    words = ["serve", *map(str, arguments), "--max-num-seqs", "4", "--supervise"]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *program,
        *words,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    try:
        yield Supervised(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def gone(pid: int) -> None:
    """Wait until a process is no more; one that is no child of this has no event for that."""
    status = Path(f"/proc/{pid}/status")
    await until(lambda: not status.exists() or "(zombie)" in status.read_text())


async def finishes(address: str) -> bool:
    async with grpc.aio.insecure_channel(address) as channel:
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        received = await receive(stub.Generate(iter([start("a")]), wait_for_ready=True))
        return bool(received.end("a").HasField("finished"))


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
async def test_a_killed_server_serves_again_on_its_port(tiny_folder: Path, free_port: int) -> None:
    address = f"127.0.0.1:{free_port}"
    async with supervised(tiny_folder, "--listen", address) as run:
        assert await run.serving() == address
        killed = run.child()
        os.kill(killed, signal.SIGKILL)
        assert await run.serving() == address
        assert await finishes(address)
        assert run.child() != killed
        run.process.terminate()
        assert await run.process.wait() == 0


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
async def test_a_killed_supervisor_takes_its_server_along(
    tiny_folder: Path, free_port: int
) -> None:
    async with supervised(tiny_folder, "--listen", f"127.0.0.1:{free_port}") as run:
        await run.serving()
        child = run.child()
        run.process.kill()
        await gone(child)


SUPERVISOR = """
import sys
from chairlift.cli.supervisor import run_supervised
sys.exit(run_supervised([sys.executable, "-c", sys.argv[1]]))
"""


async def supervise(child: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", SUPERVISOR, child), stdout=subprocess.PIPE
    )


async def test_both_signals_reach_the_server_and_its_exit_code_comes_back() -> None:
    run = await supervise("""
import signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGINT])
for _ in range(2):
    print("ready", flush=True)
    print(signal.sigwait([signal.SIGTERM, signal.SIGINT]).name, flush=True)
sys.exit(5)
""")
    assert run.stdout is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        assert await run.stdout.readline() == b"ready\n"
        run.send_signal(number)
        assert await run.stdout.readline() == number.name.encode() + b"\n"
    assert await run.wait() == 5


@pytest.mark.parametrize(
    ("end", "num_starts", "code"),
    [("sys.exit(70)", 4, 70), ("sys.exit(1)", 1, 1), ("os.abort()", 1, 134), ("", 1, 0)],
    ids=["fault", "mistake", "killed while loading", "success"],
)
async def test_only_faults_start_a_server_again(end: str, num_starts: int, code: int) -> None:
    run = await supervise(f"import os, sys; print('start', flush=True); {end}")
    output, _ = await run.communicate()
    assert (output.count(b"start"), run.returncode) == (num_starts, code)


@pytest.mark.parametrize(
    ("arguments", "words", "code"),
    [
        (("--listen", "nonsense"), "--listen: expected", 2),
        (("--no-such-option",), "no such option", 2),
    ],
)
async def test_a_wrong_setting_is_reported_once(
    tiny_folder: Path, arguments: tuple[str, ...], words: str, code: int
) -> None:
    async with supervised(tiny_folder, *arguments) as run:
        _, errors = await run.process.communicate()
        assert run.process.returncode == code
        assert errors.decode().count(words) == 1
        assert "again" not in errors.decode()


async def test_the_supervisor_knows_no_torch() -> None:
    program = (
        "import sys, chairlift.cli.supervisor, chairlift.cli.serve; print('torch' in sys.modules)"
    )
    run = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdout=subprocess.PIPE
    )
    assert (await run.communicate())[0] == b"False\n"


# The served model keeps the interpreter's lock for ever in the step that computes position 20.
HOLDING_THE_LOCK = """
import ctypes, sys
from chairlift.cli import app
from chairlift.model.forward.transformer import Transformer
forward = Transformer.forward
def hold(self, input_ids, metadata, *args):
    if 20 in metadata.positions.tolist():
        ctypes.PyDLL(None).pause()
    return forward(self, input_ids, metadata, *args)
Transformer.forward = hold
sys.argv = ["chairlift", "serve", "{folder}", "--listen", "{address}", "--max-num-seqs", "4"]
app()
"""


async def test_a_server_whose_interpreter_is_stuck_is_replaced(
    tiny_folder: Path, free_port: int
) -> None:
    address = f"127.0.0.1:{free_port}"
    run = Supervised(await supervise(HOLDING_THE_LOCK.format(folder=tiny_folder, address=address)))
    assert await run.serving() == address
    async with grpc.aio.insecure_channel(address) as channel:
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        received = await receive(stub.Generate(iter([start("a", max_tokens=100)])))
    assert received.status.code is grpc.StatusCode.UNAVAILABLE
    assert await run.serving() == address
    assert await finishes(address)
    run.process.terminate()
    assert await run.process.wait() == 0
