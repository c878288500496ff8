"""A server process for the scenarios: the product, and a pipe that looks inside and breaks things.

What is broken is broken from here, by replacing functions of the running product; the product has
no switch for it.
"""

import asyncio
import gc
import logging
import os
import resource
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from chairlift.api.config import engine_config
from chairlift.api.errors import ChairliftError
from chairlift.engine import async_engine  # noqa: F401, here once for all servers
from chairlift.engine.engine import Engine
from chairlift.engine.transfer import imports
from chairlift.model.forward.transformer import Transformer
from chairlift.server.app import server as server_module
from chairlift.server.app.run import run_server
from chairlift.server.app.server import Server
from chairlift.server.config import ServerConfig
from chairlift.server.transfer import peers, shared_memory

from tests.chaos import faults
from tests.chaos.stacks import stacks


@dataclass(frozen=True)
class Setup:
    """What a scenario needs of its server."""

    engine: dict = field(default_factory=dict)
    server: dict = field(default_factory=dict)
    step_s: float = 0.0
    """Added to every step, so that what a scenario does falls into the middle of requests."""
    keepalive_s: int | None = None
    """Instead of the product's 30 s and 10 s."""
    max_files: int | None = None
    """From the moment when it listens on."""
    max_files_at_start: int | None = None
    folder: str | None = None
    """Of another model."""
    transfers_anything: bool = False
    """Prompts of the tiny model are short; a lost peer is asked again at once."""
    leak_bytes: int = 0
    """Kept for every request: the scenario has to notice."""


class Inside:
    """What the pipe can ask for."""

    def __init__(self):
        self.server = None
        self.loop = None
        self.num_cancels = 0
        self.release_steps = []
        """Steps from the abort of the last live request until every block was free."""
        self.kept = []

    def resident(self):
        """Quick, for what is looked at often."""
        return anonymous_bytes()

    def figures(self):
        gc.collect()
        return {
            "memory": anonymous_bytes(),
            "files": len(list(Path("/proc/self/fd").iterdir())),
            "tasks": len(asyncio.all_tasks(self.loop)),
            "objects": len(gc.get_objects()),
            "frozen": gc.get_freeze_count(),
            "requests": len(self.server._context.live),
            "waiting": len(self.server._context.backlog),
            "resumables": len(self.server._context.resumables),
            "cancels": self.num_cancels,
            "release_steps": max(self.release_steps, default=0),
        }

    def http_url(self):
        return self.server.http_url

    def stacks(self):
        return stacks(self.loop)

    def num_requests(self):
        return len(self.server._context.live)

    def held_bytes(self):
        return self.server._transfers.exporting.num_held_bytes

    def num_shared_blocks(self):
        return self.server._transfers.num_shared_blocks

    def num_segments(self):
        """Segments of transfers that are open."""
        links = []
        for path in Path("/proc/self/fd").iterdir():
            with suppress(OSError):
                links.append(str(path.readlink()))
        return sum(shared_memory.NAME in link for link in links)

    def fault(self, name):
        faults.install(name, self.server)


def anonymous_bytes():
    """RssAnon and VmSwap of this process: a leak may have been swapped out."""
    lines = Path("/proc/self/status").read_text().splitlines()
    entries = dict(line.split(":", 1) for line in lines)
    return sum(int(entries[name].split()[0]) * 1024 for name in ("RssAnon", "VmSwap"))


def main(folder, address, setup, pipe, log):
    """The process: serves until a signal; talks over the pipe from a thread."""
    sys.stderr = Path(log).open("w", buffering=1)  # noqa: SIM115, for as long as the process lives
    os.dup2(sys.stderr.fileno(), 2)
    logging.basicConfig(level=logging.INFO, force=True)
    inside = Inside()
    prepare(inside, setup)
    config = ServerConfig(model=setup.folder or str(folder), listen=address, **setup.server)
    settings = {"max_num_seqs": 8, "max_num_batched_tokens": 64, **setup.engine}
    if setup.max_files_at_start is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (setup.max_files_at_start,) * 2)
    try:
        ready = pipe_ready(inside, pipe, setup.max_files)
        code = asyncio.run(run_server(engine_config(**settings), config, ready))
    except ChairliftError as error:
        logging.critical("%s", error)
        code = 1
    os._exit(code)


def pipe_ready(inside, pipe, max_files=None):
    def on_ready(address):
        if max_files is not None:
            # Only now: a server does not start with fewer files than it needs.
            resource.setrlimit(resource.RLIMIT_NOFILE, (max_files, max_files))
        pipe.send(address)
        threading.Thread(target=answer_questions, args=(inside, pipe), daemon=True).start()

    return on_ready


def answer_questions(inside, pipe):
    while True:
        try:
            name, *arguments = pipe.recv()
        except EOFError:
            # The scenario is gone.
            os._exit(1)
        try:
            answer = getattr(inside, name)(*arguments)
        except Exception as error:
            # The process at the other end raises it.
            answer = error
        pipe.send(answer)


def prepare(inside, setup):
    """Installs what looks inside, and what the scenario asked for."""
    note_server(inside, setup)
    note_releases(inside)
    if setup.step_s:
        forward = Transformer.forward

        def slow(*args):
            time.sleep(setup.step_s)
            return forward(*args)

        Transformer.forward = slow
    if setup.transfers_anything:
        imports.MIN_TOKENS, imports.MIN_SAVED_NS, peers._BACK_OFF_S = 16, 0, 0.01
    if setup.keepalive_s is not None:
        options = server_module.grpc_options
        ours = {
            "grpc.keepalive_time_ms": setup.keepalive_s * 1000,
            "grpc.keepalive_timeout_ms": setup.keepalive_s * 1000,
            "grpc.http2.ping_timeout_ms": setup.keepalive_s * 1000,
        }
        server_module.grpc_options = lambda config: list((dict(options(config)) | ours).items())


def note_server(inside, setup):
    serve = Server.serve

    async def noted(self, engine):
        inside.server, inside.loop = self, asyncio.get_running_loop()
        submit = engine.submit

        def keeping(handle):
            if setup.leak_bytes:
                inside.kept.append(os.urandom(setup.leak_bytes))
            submit(handle)

        engine.submit = keeping
        await serve(self, engine)

    Server.serve = noted


def note_releases(inside):
    cancel, advance = Engine.abort, Engine.advance
    since = []

    def cancelled(engine, *args):
        was_live = cancel(engine, *args)
        inside.num_cancels += was_live
        load = engine.load()
        if was_live and not load.num_running and not load.num_waiting:
            since.append(0)
        return was_live

    def advanced(engine):
        output = advance(engine)
        if since:
            if output.load.num_free_blocks == output.load.num_blocks:
                inside.release_steps.append(since[0])
                since.clear()
            elif output.load.num_running or output.load.num_waiting:
                since.clear()
            else:
                since[0] += 1
        return output

    Engine.abort, Engine.advance = cancelled, advanced
