"""Load on a server without a model: what is measured is scheduling and delivery."""

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from chairlift.api.errors import ChairliftError
from chairlift.bench.workload import Item
from chairlift.cli.bench.load import send_over_grpc
from chairlift.cli.bench.sent_load import SentRuns
from chairlift.cli.remote import connected
from chairlift.cli.report import Result


def null_runs(
    runs: SentRuns,
    work: Sequence[Item],
    streams: int,
    step_time_s: float,
    on_end: Callable[[], None],
) -> Iterator[Result]:
    """Send the work in each repetition and yield its figures, the server's work among them.

    Args:
        runs: How often, and where they are noted.
        work: Requests.
        streams: Calls that carry them.
        step_time_s: Time between the steps of the server.
        on_end: Called when a request has ended.

    Raises:
        ChairliftError: The server did not start, or a call broke.
    """
    import numpy as np

    with null_server(rows=len(work), step_time_s=step_time_s) as (target, process_id):
        connect = partial(connected, target)
        send_over_grpc(connect, [Item([1] * 8, 16)] * streams, streams)
        for _ in range(runs.repeat):
            before = _cpu_seconds(process_id)
            load = send_over_grpc(connect, work, streams, on_end)
            more = {
                "messages": len(load.message_times_ns),
                "server_cpu_seconds": _cpu_seconds(process_id) - before,
            }
            if step_time_s:
                # Steps end at multiples of their time on the clock that both processes share.
                lags = np.array(load.message_times_ns) % round(step_time_s * 1e9) * 1e-9
                for percent in (50, 99):
                    more[f"delivery_p{percent}_s"] = float(np.percentile(lags, percent))
            yield runs.noted(load, more=more)


@contextlib.contextmanager
def null_server(*, rows: int, step_time_s: float) -> Iterator[tuple[str, int]]:
    """Run a server without a model on one core; this process takes the others, if there are any.

    Yields its address and process id.

    Raises:
        ChairliftError: It did not start.
    """
    cores = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        address = f"unix:{folder}/null.sock"
        command = [sys.executable, "-m", "chairlift.cli.bench.null_server"]
        # The child inherits the one core; then the client takes the others.
        os.sched_setaffinity(0, cores[-1:])
        with subprocess.Popen(
            [*command, address, str(rows), str(step_time_s)], stdout=subprocess.PIPE, text=True
        ) as process:
            os.sched_setaffinity(0, cores[:-1] or cores)
            try:
                assert process.stdout is not None
                if not process.stdout.readline():
                    message = "the server without a model did not start"
                    raise ChairliftError(message)
                yield address, process.pid
            finally:
                process.terminate()
                os.sched_setaffinity(0, cores)


def _cpu_seconds(process_id: int) -> float:
    """Return the CPU time of a process, user and system."""
    status = Path(f"/proc/{process_id}/stat").read_text(encoding="ascii")
    fields = status.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
