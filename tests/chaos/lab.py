"""Starts the server processes of the scenarios, and keeps those that can be used again."""

import asyncio
import multiprocessing
import os
import signal
import time
from contextlib import asynccontextmanager, suppress

import grpc
from chairlift.v1 import generation_pb2_grpc, server_pb2, server_pb2_grpc

from tests.chaos import served
from tests.chaos.pipes import END_S, end, next_message
from tests.chaos.served import Setup
from tests.chaos.traffic import Traffic

# Torch is imported once; a server is a fork of a process that has done nothing else.
_fork = multiprocessing.get_context("forkserver")
_fork.set_forkserver_preload(
    ["tests.chaos.served", "tests.chaos.client", "tests.chaos.good_client"]
)


class ServerProcess:
    """A server, seen from outside and, through its pipe, from inside."""

    def __init__(self, process, pipe, address, log):
        self.process = process
        self.address = address
        self.log = log
        self._pipe = pipe

    async def inside(self, *question):
        """Request the process: see `served.Inside`."""
        self._pipe.send(question)
        answer = await next_message(self._pipe)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def signal(self, number=signal.SIGTERM):
        os.kill(self.process.pid, number)

    async def exit_code(self):
        """Wait for the end; 137 after a kill."""
        code = await end(self.process)
        return code if code >= 0 else 128 - code

    @asynccontextmanager
    async def channel(self, **options):
        """A connection of its own."""
        settings = [(f"grpc.{name}", value) for name, value in options.items()]
        settings.append(("grpc.use_local_subchannel_pool", 1))
        async with grpc.aio.insecure_channel(self.address, options=settings) as channel:
            yield channel

    @asynccontextmanager
    async def stub(self, **options):
        """`GenerationService` over a connection of its own."""
        async with self.channel(**options) as channel:
            yield generation_pb2_grpc.GenerationServiceStub(channel)

    async def load(self, channel):
        stub = server_pb2_grpc.ServerServiceStub(channel)
        return (await stub.GetLoad(server_pb2.GetLoadRequest())).load

    async def until_idle(self, *, within_s=END_S):
        """Wait until nothing runs or waits; every block must be free then."""
        until = time.monotonic() + within_s
        async with self.channel() as channel:
            while (load := await self.load(channel)).num_running or load.num_waiting:
                assert time.monotonic() < until, f"{load} after {within_s} s"
                await asyncio.sleep(0.01)
        assert (load.num_rows_held, load.num_kv_tokens) == (0, 0)
        assert load.num_free_blocks == load.num_blocks
        figures = await self.inside("figures")
        assert (figures["requests"], figures["waiting"]) == (0, 0), figures
        return load


class Lab:
    """The servers of a run."""

    def __init__(self, folder, scratch, *, is_talking=False):
        self.folder = folder
        self.scratch = scratch
        self.traffic = Traffic()
        self._is_talking = is_talking
        self._printed_at = 0.0
        self._processes = []
        self._servers = []
        self._kept = {}

    def progress(self, text):
        """Progress, once a second at most."""
        if self._is_talking and time.monotonic() - self._printed_at > 1:
            self._printed_at = time.monotonic()
            print(f"\r\033[K{text}", end="", flush=True)

    async def start(self, setup=None, address="127.0.0.1:0"):
        """A server of its own."""
        ours, theirs = _fork.Pipe()
        log = self.scratch / f"server-{len(self._processes)}.log"
        process = _fork.Process(
            target=served.main,
            args=(self.folder, address, setup or Setup(), theirs, log),
            # They end with this process, however it ends.
            daemon=True,
        )
        process.start()
        self._processes.append(process)
        theirs.close()
        try:
            server = ServerProcess(process, ours, await next_message(ours), log)
        except EOFError:
            raise AssertionError(log.read_text()[-4000:]) from None
        self._servers.append(server)
        return server

    async def server(self, **setup):
        """A server that scenarios share, and that must survive them all."""
        key = repr(setup)
        if key not in self._kept:
            self._kept[key] = await self.start(Setup(**setup))
        server = self._kept[key]
        if not self.traffic.answers:
            async with server.stub() as stub:
                await self.traffic.learn_answers(stub)
        return server

    async def autopsy(self):
        """What the servers complained of, and where the tasks of the living wait."""
        found = []
        for server in self._servers:
            said = server.log.read_text().splitlines()
            found += [f"{server.log.name}:", *[s for s in said if not s.startswith("INFO:")][-40:]]
            if server.process.exitcode is not None:
                found.append(f"ended with {server.process.exitcode}")
                continue
            with suppress(EOFError, OSError):
                found.append(await server.inside("stacks"))
        return "\n".join(found)

    def client(self, function, *args):
        """A client in a process of its own; return the process and its pipe."""
        ours, theirs = _fork.Pipe()
        process = _fork.Process(target=function, args=(*args, theirs), daemon=True)
        process.start()
        theirs.close()
        return process, ours

    def close(self):
        """End every server; those that are left must end in order."""
        left = [p for p in self._processes if p.exitcode is None]
        for process in left:
            process.terminate()
        for process in left:
            process.join(END_S)
            if process.exitcode is None:
                process.kill()
        codes = {process.exitcode for process in left}
        with suppress(KeyError):
            codes.remove(0)
        assert not codes, f"servers ended with {codes}"
