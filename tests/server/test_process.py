"""`run_server` as a process: what signals and errors make of it."""

import asyncio
import os
import signal
import socket
import subprocess
import threading
from contextlib import closing, suppress

import grpc
import pytest
from chairlift.api.config import engine_config
from chairlift.api.types import Request
from chairlift.engine.engine import Engine
from chairlift.server.app.loading import load_engine
from chairlift.server.app.run import run_server
from chairlift.server.config import ServerConfig
from chairlift.server.ops.watchdog import Watchdog
from chairlift.v1 import generation_pb2 as pb
from chairlift.v1 import generation_pb2_grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.forked import Python
from tests.server.connection import next_event, receive, start, until

PROGRAM = """
import asyncio, sys
from chairlift.api.config import engine_config
from chairlift.api.errors import ChairliftError
from chairlift.server.config import ServerConfig
from chairlift.server.app.run import run_server
from chairlift.api.types import Request

folder, address, grace = sys.argv[1:]
config = ServerConfig(model=folder, listen=address, drain_grace_s=float(grace))
engine = engine_config(max_num_seqs=4, max_num_batched_tokens=64)
try:
    code = asyncio.run(run_server(engine, config, lambda ready: print(ready, flush=True)))
except ChairliftError as error:
    sys.exit(str(error))
sys.exit(code)
"""

# The engine thread stays for ever in the step that computes the token at position 20.
HANGING = PROGRAM.replace("drain_grace_s=float(grace)", "step_timeout_s=1").replace(
    "try:",
    """
import threading
from chairlift.model.forward.transformer import Transformer
forward = Transformer.forward
def hang(self, input_ids, metadata, *args):
    if 20 in metadata.positions.tolist():
        threading.Event().wait()
    return forward(self, input_ids, metadata, *args)
Transformer.forward = hang
try:""",
    1,
)


# The same in the very first step, which the server runs by itself.
HANGING_AT_ONCE = HANGING.replace("20 in", "0 in")

# Every step takes its time, so that no request ends before the signals come.
SLOW = PROGRAM.replace(
    "try:",
    """
import time
from chairlift.model.forward.transformer import Transformer
forward = Transformer.forward
def slow(*args):
    time.sleep(0.05)
    return forward(*args)
Transformer.forward = slow
try:""",
    1,
)

# A dead disk, whose reads never return; the timeout of a second is longer than the imports.
IMPATIENT = """
import threading
import chairlift.engine.async_engine
from chairlift.checkpoints.safetensors import StoredTensor
StoredTensor.read = lambda *_: threading.Event().wait()
""" + PROGRAM.replace("drain_grace_s=float(grace)", "load_timeout_s=1")

# At any moment a step is under way, and none may take longer than a second.
STEP_OF_A_SECOND = SLOW.replace("drain_grace_s=float(grace)", "drain_grace_s=0, step_timeout_s=1")

# What is to end the engine never does.
STUCK = PROGRAM.replace(
    "try:",
    """
from chairlift.engine.async_engine import AsyncEngine
from chairlift.server.app import run
async def stop(self, grace_s):
    await asyncio.Event().wait()
AsyncEngine.stop = stop
run._EXIT_S = 1
try:""",
    1,
)


# In the step of position 20 native code takes the interpreter's lock and never releases it.
HOLDING_THE_LOCK = (
    HANGING.replace("step_timeout_s=1", "step_timeout_s=1000")
    .replace("threading.Event().wait()", "ctypes.PyDLL(None).pause()")
    .replace("import threading", "import ctypes")
)

# The same while the model loads.
HOLDING_THE_LOCK_AT_ONCE = HOLDING_THE_LOCK.replace("20 in", "0 in").replace(
    "ctypes.PyDLL", "print('holding', flush=True); ctypes.PyDLL"
)

# A thread that no process waits out: Python joins it before it ends.
UNENDING_THREAD = PROGRAM.replace(
    "try:",
    """
import threading
from chairlift import _core
from chairlift.server.app import run
run._EXIT_S = 1
guard = _core.ProcessGuard(70)
threading.Thread(target=threading.Event().wait).start()
try:""",
    1,
).replace("flush=True))", "flush=True), guard=guard)")


class Process:
    """`run_server` in a process of its own."""

    def __init__(self, folder, address, grace_s=30, program=PROGRAM, stderr=subprocess.PIPE):
        self.popen = Python(
            *("-c", program, folder, address, grace_s),
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )

    async def ready(self):
        """The address it serves on."""
        return (await asyncio.to_thread(self.popen.stdout.readline)).strip()

    async def end(self):
        """Exit code and standard error."""
        try:
            _, errors = await asyncio.to_thread(self.popen.communicate, timeout=100)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        return self.popen.returncode, errors

    def signal(self, number):
        self.popen.send_signal(number)

    def kill(self):
        if self.popen.poll() is None:
            self.popen.kill()
            self.popen.communicate()


@pytest.fixture
def spawn(tiny_folder):
    processes = []

    def run(address, **options):
        processes.append(Process(tiny_folder, address, **options))
        return processes[-1]

    yield run
    for process in processes:
        process.kill()


@pytest.mark.always
async def test_sigterm_finishes_running_streams_and_exits_0(spawn):
    process = spawn("127.0.0.1:0")
    address = await process.ready()
    async with grpc.aio.insecure_channel(address) as channel:
        call = generation_pb2_grpc.GenerationServiceStub(channel).Generate()
        await call.write(start("a", max_tokens=250))
        await next_event(call, "tokens")
        process.signal(signal.SIGTERM)
        received = await receive(call)
        assert received.end("a").finished.reason == pb.FINISH_REASON_LENGTH
        assert received.status.code is grpc.StatusCode.OK
    assert await process.end() == (0, "")


async def test_a_signal_while_the_model_loads_ends_the_server(spawn, tmp_path):
    address = f"unix:{tmp_path}/lift.sock"
    process = spawn(address)
    await until((tmp_path / "lift.sock").exists)
    process.signal(signal.SIGINT)
    assert await process.end() == (0, "")


async def test_a_load_that_is_cancelled_reads_no_further_tensor(tiny_folder):
    loop = asyncio.get_running_loop()
    has_read, may_go_on = asyncio.Event(), threading.Event()
    reads = []

    def on_progress(done, _total):
        reads.append(done)
        loop.call_soon_threadsafe(has_read.set)
        may_go_on.wait()

    watchdog = Watchdog(loop_timeout_s=60)
    load = asyncio.create_task(
        load_engine(str(tiny_folder), engine_config(), on_progress, watchdog=watchdog, timeout_s=60)
    )
    await has_read.wait()
    load.cancel()
    loop.call_soon(may_go_on.set)  # Behind the cancellation.
    with pytest.raises(asyncio.CancelledError):
        await load
    for thread in threading.enumerate():
        if thread.name == "chairlift-load":
            thread.join()
    assert len(reads) == 1


async def test_a_port_in_use_is_one_line_and_an_error(spawn):
    with closing(socket.create_server(("127.0.0.1", 0))) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        code, errors = await spawn(address).end()
    assert code == 1
    assert errors == f"listen: cannot listen on {address}: address already in use\n"


async def test_a_model_that_cannot_be_loaded_is_one_line_and_an_error(spawn, tmp_path):
    process = Process(tmp_path / "nothing", "127.0.0.1:0")
    code, errors = await process.end()
    assert code == 1
    assert errors.count("\n") == 1
    assert "nothing" in errors


async def test_an_engine_that_keeps_dying_ends_the_server_with_70(
    tiny_folder, tmp_path, monkeypatch
):
    ready = asyncio.Event()
    config = ServerConfig(model=str(tiny_folder), listen=f"unix:{tmp_path}/lift.sock")
    running = asyncio.create_task(run_server(engine_config(), config, lambda _: ready.set()))
    await ready.wait()

    def break_down(*_):
        message = "out of everything"
        raise MemoryError(message)

    monkeypatch.setattr(Engine, "advance", break_down)
    assert await running == 70


async def test_a_server_that_lost_blocks_says_so_and_ends_with_3(
    tiny_folder, tmp_path, monkeypatch, caplog
):
    ready = asyncio.Event()
    config = ServerConfig(model=str(tiny_folder), listen=f"unix:{tmp_path}/lift.sock")
    running = asyncio.create_task(run_server(engine_config(), config, lambda _: ready.set()))
    await ready.wait()
    check = Engine.check_invariants

    def after_a_leak(engine):
        # A request that no client has sent, so that no client ends it.
        if not engine.load().num_running:
            engine.add(Request(prompt=[1, 2, 3]))
            engine.advance()
        check(engine)

    monkeypatch.setattr(Engine, "check_invariants", after_a_leak)
    os.kill(os.getpid(), signal.SIGTERM)
    assert await running == 3
    assert "1 KV blocks and 1 rows leaked" in caplog.text


async def test_a_model_that_cannot_be_read_to_its_end_ends_the_process_with_70(tiny_folder):
    process = Process(tiny_folder, "127.0.0.1:0", program=IMPATIENT)
    code, errors = await process.end()
    assert code == 70
    assert "nothing of the model was loaded for 1" in errors


async def test_a_step_that_hangs_fails_every_stream_and_ends_the_process_with_70(spawn):
    process = spawn("127.0.0.1:0", program=HANGING)
    address = await process.ready()
    async with grpc.aio.insecure_channel(address) as channel:
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        running, late, idle = stub.Generate(), stub.Generate(), stub.Generate()
        await running.write(start("a", max_tokens=100))
        await next_event(running, "tokens")
        await late.write(start("b", max_tokens=100))
        received = [await receive(call) for call in (running, late)]
        assert received[0].end("a").failed.error.reason == "ENGINE_DOWN"
        # Refused, or failed if the thread had taken it before it hung.
        last = received[1].of("b")[-1]
        assert (last.rejected if last.HasField("rejected") else last.failed).error.reason == (
            "ENGINE_DOWN"
        )
        assert [h.status.code for h in received] == [grpc.StatusCode.UNAVAILABLE] * 2
        assert (await receive(idle)).status.code is grpc.StatusCode.UNAVAILABLE
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
    code, _ = await process.end()
    assert code == 70


async def test_a_model_that_hangs_in_its_first_step_ends_the_process_with_70(spawn):
    code, errors = await spawn("127.0.0.1:0", program=HANGING_AT_ONCE).end()
    assert code == 70
    assert "a step has taken 1" in errors


async def test_a_second_signal_ends_what_runs(spawn):
    process = spawn("127.0.0.1:0", grace_s=3600, program=SLOW)
    address = await process.ready()
    async with grpc.aio.insecure_channel(address) as channel:
        call = generation_pb2_grpc.GenerationServiceStub(channel).Generate()
        health = health_pb2_grpc.HealthStub(channel)
        await call.write(start("a", max_tokens=250))
        await next_event(call, "tokens")
        watch = health.Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        process.signal(signal.SIGTERM)
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        process.signal(signal.SIGTERM)
        received = await receive(call)
        assert received.end("a").failed.error.reason == "DRAINING"
    assert (await process.end())[0] == 0


async def test_a_drain_that_is_stuck_ends_with_70_soon_after_a_second_signal(spawn):
    process = spawn("127.0.0.1:0", grace_s=3600, program=STUCK)
    async with grpc.aio.insecure_channel(await process.ready()) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        process.signal(signal.SIGTERM)
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        process.signal(signal.SIGTERM)
        code, _ = await process.end()
    assert code == 70


async def hold_the_lock(process):
    """Run into the step that takes the interpreter's lock."""
    async with grpc.aio.insecure_channel(await process.ready()) as channel:
        call = generation_pb2_grpc.GenerationServiceStub(channel).Generate()
        await call.write(start("a", max_tokens=100))
        received = await receive(call)
    assert received.status.code is grpc.StatusCode.UNAVAILABLE


async def test_native_code_that_keeps_the_interpreters_lock_ends_the_process_with_70(spawn):
    process = spawn("127.0.0.1:0", program=HOLDING_THE_LOCK)
    await hold_the_lock(process)
    code, errors = await process.end()
    assert code == 70
    assert "the interpreter has not run for 5." in errors


@pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "full"])
async def test_it_ends_with_70_also_where_standard_error_takes_nothing(spawn, is_closed):
    read, write = os.pipe()
    if is_closed:
        os.close(read)
    else:
        os.set_blocking(write, False)
        with suppress(BlockingIOError):
            while True:
                os.write(write, bytes(2**16))
        os.set_blocking(write, True)
    process = spawn("127.0.0.1:0", program=HOLDING_THE_LOCK, stderr=write)
    os.close(write)
    await hold_the_lock(process)
    code, _ = await process.end()
    assert code == 70
    if not is_closed:
        os.close(read)


async def test_a_signal_ends_a_load_that_keeps_the_interpreters_lock(spawn):
    process = spawn("127.0.0.1:0", program=HOLDING_THE_LOCK_AT_ONCE)
    assert await process.ready() == "holding"
    process.signal(signal.SIGTERM)
    code, errors = await process.end()
    assert code == 70
    assert "the interpreter has not run" in errors


async def test_a_thread_that_never_ends_does_not_keep_a_process_that_has_drained(spawn):
    process = spawn("127.0.0.1:0", grace_s=0, program=UNENDING_THREAD)
    await process.ready()
    process.signal(signal.SIGTERM)
    code, errors = await process.end()
    assert code == 70
    assert "the shutdown took too long" in errors


async def test_a_process_that_was_stopped_for_longer_than_a_step_may_take_goes_on(spawn):
    process = spawn("127.0.0.1:0", program=STEP_OF_A_SECOND)
    async with grpc.aio.insecure_channel(await process.ready()) as channel:
        call = generation_pb2_grpc.GenerationServiceStub(channel).Generate()
        await call.write(start("a", max_tokens=250))
        await next_event(call, "tokens")
        for _ in range(3):
            process.signal(signal.SIGSTOP)
            await asyncio.sleep(1.5)
            process.signal(signal.SIGCONT)
            await next_event(call, "tokens")
        process.signal(signal.SIGTERM)
        assert (await receive(call)).end("a").failed.error.reason == "DRAINING"
    assert (await process.end())[0] == 0
