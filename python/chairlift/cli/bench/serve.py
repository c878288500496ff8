"""`chairlift bench serve`: load over real gRPC, against a server or against delivery alone."""

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from chairlift.api.errors import ChairliftError, ConfigError
from chairlift.bench.arrivals import Arrivals
from chairlift.bench.workload import Item, chat_workload
from chairlift.cli.progress import Progress
from chairlift.cli.remote import DEFAULT_TARGET, Target, TlsCa, TlsCert, TlsKey, connected
from chairlift.cli.report import Json, Result, report
from chairlift.cli.values import duration

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from chairlift.cli.bench.load import LoadResult
    from chairlift.client import AsyncClient

    Connect = Callable[[], AbstractAsyncContextManager[AsyncClient]]


class ServedEngine(StrEnum):
    """The server to measure."""

    MODEL = "model"
    NULL = "null"


def serve(
    *,
    engine: Annotated[
        ServedEngine,
        typer.Option(
            help="model: the server at --target. null: one of its own, on one core and without a "
            "model: what is measured is scheduling and delivery."
        ),
    ] = ServedEngine.MODEL,
    target: Target = DEFAULT_TARGET,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    requests: Annotated[int, typer.Option(help="How many.", min=1)] = 256,
    streams: Annotated[int, typer.Option(help="Generate calls that carry them.", min=1)] = 8,
    rate: Annotated[
        float | None,
        typer.Option(help="Poisson arrivals per second; default: all at once.", min=0.001),
    ] = None,
    max_tokens: Annotated[
        int, typer.Option(help="Longest answer; with --engine null, of every answer.", min=1)
    ] = 192,
    step_time: Annotated[
        float, duration("--step-time", help="null: time between steps; 0 is none.")
    ] = 0.0,
    repeat: Annotated[int, typer.Option(help="Runs, one result each.", min=1)] = 1,
    seed: Annotated[int, typer.Option(help="Of lengths, tokens and arrivals.", min=0)] = 0,
    as_json: Json = False,
) -> None:
    """Send load over real gRPC, open loop: TTFT, ITL, latency, rates as the clients see them."""
    if engine is ServedEngine.NULL and sys.platform != "linux":
        message = "--engine null gives the server a core of its own, which needs Linux"
        raise ConfigError(message)
    progress = Progress("requests", repeat * requests, as_json=as_json)
    draw = partial(
        chat_workload,
        requests,
        seed=seed,
        max_tokens=max_tokens,
        arrivals=Arrivals() if rate is None else Arrivals(rate),
    )
    if engine is ServedEngine.NULL:
        title = f"No model, {requests} requests over {streams} streams"
        work = [Item([1] * 8, max_tokens)] * requests
        results = _null_runs(work, streams, step_time, repeat, progress)
    else:
        title = f"{target}, {requests} requests over {streams} streams"
        connect = partial(connected, target, tls_ca=tls_ca, tls_cert=tls_cert, tls_key=tls_key)
        results = _runs(connect, draw, streams, repeat, progress)
    report(results, title=title, as_json=as_json, progress=progress)


def _runs(
    connect: "Connect",
    draw: Callable[..., list[Item]],
    streams: int,
    repeat: int,
    progress: Progress,
) -> Iterator[Result]:
    async def vocab_size() -> int:
        async with connect() as client:
            return (await client.model_info()).vocab_size

    work = draw(vocab_size=asyncio.run(vocab_size()))
    for number in range(repeat):
        load = _send(connect, work, streams, progress.tick)
        yield {"run": number + 1, **figures(load)}


def _null_runs(
    work: Sequence[Item], streams: int, step_time_s: float, repeat: int, progress: Progress
) -> Iterator[Result]:
    import numpy as np

    with null_server(rows=len(work), step_time_s=step_time_s) as (target, process_id):
        connect = partial(connected, target)
        _send(connect, [Item([1] * 8, 16)] * streams, streams)
        for number in range(repeat):
            before = _cpu_seconds(process_id)
            load = _send(connect, work, streams, progress.tick)
            cpu_s = _cpu_seconds(process_id) - before
            result = figures(load)
            result["messages"] = len(load.message_times_ns)
            result["server_cpu_seconds"] = cpu_s
            if step_time_s:
                # Steps end at multiples of their time on the clock that both processes share.
                lags = np.array(load.message_times_ns) % round(step_time_s * 1e9) * 1e-9
                for percent in (50, 99):
                    result[f"delivery_p{percent}_s"] = float(np.percentile(lags, percent))
            yield {"run": number + 1, **result}


def _send(
    connect: "Connect",
    work: Sequence[Item],
    streams: int,
    on_end: Callable[[], None] = lambda: None,
) -> "LoadResult":
    from chairlift.cli.bench.load import send_load

    async def send() -> "LoadResult":
        async with connect() as client:
            return await send_load(client, work, streams, on_end)

    return asyncio.run(send())


def figures(load: "LoadResult") -> dict[str, str | int | float]:
    """Return the figures of `vllm bench serve` by this project's names; itl is between events.

    Raises:
        ChairliftError: Every request failed.
    """
    import numpy as np

    requests = [request for request in load.requests if not request.failure]
    if not requests:
        message = f"every request failed, the first with {load.requests[0].failure}"
        raise ChairliftError(message)
    seconds = max(c.ended_s for c in requests) - min(c.sent_s for c in requests)
    num_tokens = sum(request.num_tokens for request in requests)
    times = {
        "ttft": [c.token_times_s[0] - c.sent_s for c in requests if c.token_times_s],
        "itl": [gap for c in requests for gap in np.diff(c.token_times_s).tolist()],
        "latency": [c.ended_s - c.sent_s for c in requests],
    }
    return {
        "requests": len(load.requests),
        "failed": len(load.requests) - len(requests),
        "output_tokens": num_tokens,
        "seconds": seconds,
        "tokens_per_s": num_tokens / seconds,
        "requests_per_s": len(requests) / seconds,
        **{
            f"{name}_p{percent}_s": float(np.percentile(values or [0.0], percent))
            for name, values in times.items()
            for percent in (50, 99)
        },
    }


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
