"""A server whose model two emulated GPUs compute: what the loss of a process makes of it."""

import signal
from contextlib import suppress
from pathlib import Path

import pytest

from tests.cuda.emulated_device import RANK_MODULE
from tests.cuda.gpu_device import needs_emulation
from tests.server.connection import until
from tests.server.test_process import Process
from tests.server.test_rank_processes import (
    IMPATIENT,
    assert_a_lost_rank_is_replaced,
    children,
    is_gone,
)

pytestmark = [pytest.mark.timeout(600), needs_emulation]
"""The first test compiles the emulation."""

ON_GPUS = IMPATIENT.replace("tensor_parallel=2,", "tensor_parallel=2, device='cuda',")
PROGRAM = ON_GPUS.replace("TIMEOUT_S = 1.0", "TIMEOUT_S = 3.0").replace(
    "folder, address",
    """
from chairlift.engine import engine as module
from tests.cuda.emulated_device import EmulatedEngine
module.Engine = EmulatedEngine
folder, address""",
    1,
)
MODULE = RANK_MODULE.encode()


@pytest.fixture
def process(llama):
    process = Process(llama[0], "127.0.0.1:0", program=PROGRAM)
    yield process
    process.kill()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_lost_rank_ends_the_streams_as_unavailable_and_is_replaced(process, number):
    await assert_a_lost_rank_is_replaced(process, number, MODULE)


def holders(segment):
    """Return how many processes have a segment mapped."""
    count = 0
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with suppress(OSError):
            count += segment in segments(maps)
    return count


def segments(maps):
    """Return the numbers of the files of segments that a process has mapped."""
    lines = [line.split() for line in maps.read_text().splitlines()]
    return {line[4] for line in lines if line[5:6] == ["/memfd:chairlift-ranks"]}


async def test_a_server_that_is_killed_leaves_no_process_and_no_segment(process):
    await process.ready()
    (rank,) = children(process.popen.pid, MODULE)
    (segment,) = segments(Path(f"/proc/{rank}/maps"))
    assert holders(segment) == 2
    process.signal(signal.SIGKILL)
    await process.end()
    await until(lambda: is_gone(rank))
    assert holders(segment) == 0
