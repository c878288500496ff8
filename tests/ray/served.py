"""Servers of the demo model in processes that start in a moment: forks of one process."""

import asyncio
import multiprocessing
import os
from dataclasses import dataclass

from chairlift.api.config import engine_config
from chairlift.engine import async_engine  # noqa: F401, here once for all servers
from chairlift.server.app.run import run_server
from chairlift.server.config import ServerConfig

SETTINGS = {"max_num_seqs": 8, "max_num_batched_tokens": 64}
START_S = 300.0


@dataclass
class Served:
    """A server that runs."""

    process: multiprocessing.Process
    address: str


def start(address):
    """Start a server; return when it serves."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_serve, args=(address, sender), daemon=True)
    process.start()
    sender.close()
    with receiver:
        assert receiver.poll(START_S), address
        return Served(process, receiver.recv())


def _serve(address, sender):
    config = ServerConfig(model="demo", listen=address)
    os._exit(asyncio.run(run_server(engine_config(**SETTINGS), config, sender.send)))
