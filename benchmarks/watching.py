"""What it costs to watch a server: `python -m benchmarks.watching`.

One server gets the same load in turns: twice without a watcher, with one that reads the feed of the
live page at 10 frames a second, and with 20 that open the feed and read nothing; each round begins
with another of the four. A line of JSON for each run; then one for each of the four, with the mean
of its output tokens per second, the standard error of that, and the ratio to the mean of all runs
without a watcher. The two without say what the others can show at all. The last line has the CPU
time of the event loop that the reading watcher adds, in cores.
"""

import argparse
import asyncio
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from chairlift.bench.workload import Item, chat_workload
from chairlift.cli.bench.load import send_over_grpc
from chairlift.cli.bench.sent_load import figures
from chairlift.cli.remote import connected

STREAMS = 8
NUM_IDLE_READERS = 20
FPS = 10
NONE, AGAIN, READS = "none", "none again", "one that reads"
READS_NOTHING = f"{NUM_IDLE_READERS} that do not read"
_OK = b"HTTP/1.1 200"


class Served(NamedTuple):
    """A server of its own."""

    target: str
    page: str
    process_id: int


class Feed:
    """A connection to the feed."""

    def __init__(self, page: str, receive_buffer: int | None = None) -> None:
        """Ask for the feed.

        Args:
            page: URL of the live page.
            receive_buffer: Bytes that the kernel keeps for a reader; None is its default.
        """
        parts = urlsplit(page)
        assert parts.hostname is not None
        self.socket = socket.socket()
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.connect((parts.hostname, parts.port))
        head = f"GET /page/feed?fps={FPS} HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n"
        self.socket.sendall(head.encode())
        status = self.socket.recv(len(_OK), socket.MSG_WAITALL)
        assert status == _OK, status
        self.num_frames = 0

    def read(self) -> None:
        """Count frames until the connection is closed."""
        while received := self.socket.recv(1 << 20):
            self.num_frames += len(re.findall(rb"event: frame", received))


def main() -> None:
    """Run the turns and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="demo", help="of chairlift serve")
    parser.add_argument("--rows", type=int, default=64, help="of the batch, all busy")
    parser.add_argument("--requests", type=int, default=768, help="of a run")
    parser.add_argument("--rounds", type=int, default=5, help="of the four runs each")
    options = parser.parse_args()
    with served(options.model, options.rows) as server:
        work = work_of(server, options.requests)
        run = partial(run_of, server, work, options.rows)
        run("warm-up", nullcontext)
        arms: dict[str, Callable[[], AbstractContextManager[Feed | None]]] = {
            NONE: nullcontext,
            AGAIN: nullcontext,
            READS: partial(reading, server),
            READS_NOTHING: partial(not_reading, server),
        }
        names = list(arms)
        rounds = []
        for number in range(options.rounds):
            first = number % len(names)
            order = names[first:] + names[:first]
            rounds.append({name: run(name, arms[name]) for name in order})

    rates = {name: [found[name]["tokens_per_s"] for found in rounds] for name in names}
    alone = statistics.mean(rates[NONE] + rates[AGAIN])
    for name, values in rates.items():
        mean = statistics.mean(values)
        error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else None
        say(watchers=name, mean=mean, standard_error=error, ratio=round(mean / alone, 4))
    loops = [(found[READS]["loop_cores"], found[NONE]["loop_cores"]) for found in rounds]
    say(
        watchers="loop",
        feed_cores=spread([one - none for one, none in loops]),
        load_average=os.getloadavg()[0],
    )


def say(**found: object) -> None:
    """Print a line of JSON."""
    print(json.dumps(found), flush=True)


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return the median and the range."""
    return {
        "median": round(statistics.median(values), 4),
        "min": round(min(values), 4),
        "max": round(max(values), 4),
    }


@contextmanager
def served(model: str, rows: int) -> Iterator[Served]:
    """Run a server on ports of its own."""
    command = [sys.executable, "-m", "chairlift", "serve", model, "--max-num-seqs", str(rows)]
    command += ["--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--log-level", "error"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            words: dict[str, list[str]] = {}
            while "page" not in words:
                line = process.stdout.readline()
                assert line, "the server did not start"
                words[line.split()[0]] = line.split()
            yield Served(words["serving"][2], words["page"][1], process.pid)
        finally:
            process.terminate()


def work_of(server: Served, num_requests: int) -> Sequence[Item]:
    """Return requests of unequal lengths."""

    async def vocab_size() -> int:
        async with connected(server.target) as client:
            return (await client.model_info()).vocab_size

    return chat_workload(num_requests, seed=0, vocab_size=asyncio.run(vocab_size()), max_tokens=192)


def run_of(
    server: Served,
    work: Sequence[Item],
    rows: int,
    name: str,
    watching: Callable[[], AbstractContextManager[Feed | None]],
) -> dict[str, Any]:
    """Send the load while watchers watch; return and print the figures."""
    with watching() as feed:
        before = loop_seconds(server.process_id)
        connect = partial(connected, server.target)
        load = send_over_grpc(connect, work, STREAMS, concurrency=rows)
        cpu_s = loop_seconds(server.process_id) - before
        num_frames = feed.num_frames if feed is not None else 0
    found = figures(load)
    assert found["failed"] == 0, found
    seconds = float(found["seconds"])
    result = {
        "tokens_per_s": float(found["tokens_per_s"]),
        "seconds": seconds,
        "loop_cores": cpu_s / seconds,
        "frames_per_s": num_frames / seconds,
    }
    say(watchers=name, **{key: round(value, 4) for key, value in result.items()})
    return result


@contextmanager
def reading(server: Served) -> Iterator[Feed]:
    """Read the feed on a thread, which wakes for each frame alone."""
    feed = Feed(server.page)
    thread = threading.Thread(target=feed.read)
    thread.start()
    try:
        yield feed
    finally:
        feed.socket.shutdown(socket.SHUT_RDWR)
        thread.join()
        feed.socket.close()


@contextmanager
def not_reading(server: Served) -> Iterator[None]:
    """Open feeds whose small buffers are full at once."""
    with ExitStack() as stack:
        for _ in range(NUM_IDLE_READERS):
            stack.enter_context(Feed(server.page, receive_buffer=4096).socket)
        yield None


def loop_seconds(process_id: int) -> float:
    """Return the CPU time of the main thread, on which the event loop runs."""
    path = Path(f"/proc/{process_id}/task/{process_id}/stat")
    fields = path.read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
