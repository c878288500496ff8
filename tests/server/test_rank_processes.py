"""A server whose model several processes compute: what signals and losses make of it."""

import os
import signal
from contextlib import suppress
from pathlib import Path

import grpc
import pytest
from chairlift.v1 import generation_pb2 as pb
from chairlift.v1 import generation_pb2_grpc

from tests.server.connection import next_event, receive, start, until
from tests.server.test_process import PROGRAM, Process

RANKS = PROGRAM.replace("max_num_seqs=4,", "max_num_seqs=4, tensor_parallel=2,")
IMPATIENT = RANKS.replace(
    "folder, address",
    "from chairlift.engine.ranks import lead\nlead.TIMEOUT_S = 1.0\nfolder, address",
    1,
)


@pytest.fixture
def spawn(tiny_folder):
    processes = []

    def run(program=RANKS):
        processes.append(Process(tiny_folder, "127.0.0.1:0", program=program))
        return processes[-1]

    yield run
    for process in processes:
        process.kill()


def children(process_id, module=b"rank_process"):
    """Return the processes of the ranks."""
    found = Path(f"/proc/{process_id}/task").glob("*/children")
    ids = [int(number) for path in found for number in path.read_text().split()]
    return [i for i in ids if module in Path(f"/proc/{i}/cmdline").read_bytes()]


def is_gone(process_id):
    try:
        state = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state == "Z"


def segments(process_id):
    """Return the inodes of the segments of ranks that a process maps."""
    maps = Path(f"/proc/{process_id}/maps").read_text().splitlines()
    return {line.split()[4] for line in maps if "memfd:chairlift-ranks" in line}


def num_holders(segment):
    """Return how many processes of this user map a segment."""
    count = 0
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            count += segment in segments(path.name)
    return count


@pytest.mark.always
async def test_sigterm_to_all_processes_finishes_running_streams_and_leaves_none(spawn):
    process = spawn()
    address = await process.ready()
    (rank,) = children(process.popen.pid)
    async with grpc.aio.insecure_channel(address) as channel:
        call = generation_pb2_grpc.GenerationServiceStub(channel).Generate()
        await call.write(start("a", max_tokens=250))
        await next_event(call, "tokens")
        os.kill(rank, signal.SIGTERM)
        process.signal(signal.SIGTERM)
        received = await receive(call)
        assert received.end("a").finished.reason == pb.FINISH_REASON_LENGTH
    assert await process.end() == (0, "")
    assert is_gone(rank)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_lost_rank_ends_the_streams_as_unavailable_and_is_replaced(spawn, number):
    await assert_a_lost_rank_is_replaced(spawn(IMPATIENT), number)


async def assert_a_lost_rank_is_replaced(process, number, module=b"rank_process"):
    """Send a signal to the rank amid a stream: the stream ends, and another rank serves the next.

    Args:
        process: The server.
        number: The signal.
        module: Name of the module of its rank.
    """
    address = await process.ready()
    (rank,) = children(process.popen.pid, module)
    async with grpc.aio.insecure_channel(address) as channel:
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        call = stub.Generate()
        await call.write(start("a", max_tokens=250))
        await next_event(call, "tokens")
        os.kill(rank, number)
        (failed,) = [e for e in await next_event(call, "failed") if e.HasField("failed")]
        assert failed.failed.error.reason == "ENGINE_DOWN"
        await until(lambda: is_gone(rank) and len(children(process.popen.pid, module)) == 1)

        async def serves():
            again = stub.Generate()
            await again.write(start("b", max_tokens=4))
            await again.done_writing()
            received = await receive(again)
            is_answered = received.status.code is grpc.StatusCode.OK
            return is_answered and received.end("b").HasField("finished")

        await until(serves)
    process.signal(signal.SIGTERM)
    code, _ = await process.end()
    assert code == 0


@pytest.mark.parametrize("number", [signal.SIGCONT, signal.SIGSTOP])
async def test_a_server_that_is_killed_leaves_no_process_and_no_segment(spawn, number):
    process = spawn()
    await process.ready()
    (rank,) = children(process.popen.pid)
    (segment,) = segments(rank)
    assert num_holders(segment) == 2
    # A process that is stopped gets no signal but this one.
    os.kill(rank, number)
    process.signal(signal.SIGKILL)
    await process.end()
    await until(lambda: is_gone(rank))
    assert num_holders(segment) == 0
