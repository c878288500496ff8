"""The server of `chairlift bench serve --engine null`, a process of its own on one core.

Run as `python -m chairlift.cli.bench.null_server ADDRESS ROWS STEP_TIME_S`; a line on stdout says
that it serves. A signal ends it, as it does `chairlift serve`.
"""

import asyncio
import signal
import sys

from chairlift.api.config import engine_config
from chairlift.bench.null_engine import NullEngine
from chairlift.engine.async_engine import AsyncEngine
from chairlift.server.app.server import Server
from chairlift.server.config import ServerConfig


async def serve(address: str, rows: int, step_time_s: float) -> None:
    """Serve until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    config = engine_config(max_num_seqs=rows, max_queued_requests=rows, num_threads=1)
    server = Server(config, ServerConfig(listen=address))
    await server.bind()
    engine = NullEngine(step_time_s=step_time_s, **config.model_dump(exclude_unset=True))
    await server.serve(AsyncEngine.of(engine))
    sys.stdout.write("serving\n")
    sys.stdout.flush()
    await stop.wait()
    await server.stop(0)


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
