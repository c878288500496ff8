"""`chairlift bench serve`: load on a server, over gRPC or the OpenAI API, or on delivery alone."""

import asyncio
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from chairlift.api.errors import ConfigError
from chairlift.api.figures import BRIEF
from chairlift.bench.arrivals import rates_of
from chairlift.bench.slo import bounds_of
from chairlift.bench.workload import Item, chat_workload
from chairlift.cli.bench.load_options import Seed, Slo
from chairlift.cli.progress import Progress
from chairlift.cli.remote import DEFAULT_TARGET, Target, TlsCa, TlsCert, TlsKey, connected
from chairlift.cli.report import Json, ReportFile, Result
from chairlift.cli.report import report as print_results
from chairlift.cli.values import duration

if TYPE_CHECKING:
    from chairlift.cli.bench.load import Connect
    from chairlift.cli.bench.sent_load import Send, SentRuns

_STREAMS = 8


class ServedEngine(StrEnum):
    """The server to measure."""

    MODEL = "model"
    NULL = "null"


def serve(
    *,
    engine: Annotated[
        ServedEngine,
        typer.Option(
            help="model: the server at --target or --url. null: one of its own, on one core and "
            "without a model: what is measured is scheduling and delivery."
        ),
    ] = ServedEngine.MODEL,
    target: Target = DEFAULT_TARGET,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    url: Annotated[
        str | None,
        typer.Option(
            help="Any server of the OpenAI API instead of --target, such as "
            "http://127.0.0.1:8000/v1."
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Its name at --url; default: the first that is listed.")
    ] = None,
    requests: Annotated[int, typer.Option(help="How many.", min=1)] = 256,
    streams: Annotated[
        int | None, typer.Option(help="gRPC: Generate calls that carry them; default: 8.", min=1)
    ] = None,
    rates: Annotated[
        str | None,
        typer.Option(
            "--rates",
            "--rate",
            metavar="LIST",
            help="Poisson arrivals per second, such as 2,4,8,max; default: max, all at once.",
        ),
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(help="Requests at a time, instead of rates.", min=1)
    ] = None,
    max_tokens: Annotated[
        int, typer.Option(help="Longest answer; with --engine null, of every answer.", min=1)
    ] = 192,
    step_time: Annotated[
        float, duration("--step-time", help="null: time between steps; 0 is none.")
    ] = 0.0,
    repeat: Annotated[int, typer.Option(help="Runs of each rate, one result each.", min=1)] = 1,
    slo: Slo = None,
    report: ReportFile = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Send load to a server: TTFT, TPOT, ITL, latency and rates as its clients see them."""
    from chairlift.cli.bench.sent_load import SentRuns

    is_null = engine is ServedEngine.NULL
    _check(is_null=is_null, url=url, model=model, streams=streams, rates=rates, report=report)
    if concurrency is not None and (rates is not None or is_null):
        message = "concurrency: expected no --rates and no --engine null beside it"
        raise ConfigError(message)
    runs = SentRuns(
        rates_of(rates) or [math.inf], repeat, bounds_of(slo) if slo else [], concurrency
    )
    num_requests = len(runs.rates_per_s) * repeat * requests
    progress = Progress("requests", num_requests, as_json=as_json)
    streams = streams or _STREAMS
    if is_null:
        from chairlift.cli.bench.null_runs import null_runs

        served = _Served("No model", f"over {streams} streams")
        work = [Item([1] * 8, max_tokens)] * requests
        results = null_runs(runs, work, streams, step_time, progress.tick)
    else:
        connect = partial(connected, target, tls_ca=tls_ca, tls_cert=tls_cert, tls_key=tls_key)
        if url is not None:
            served = _openai_server(url, model, concurrency, progress.tick)
        else:
            served = _grpc_server(target, connect, streams, concurrency, progress.tick)
        results = served.results(runs, requests, max_tokens, seed)
    title = f"{served.name}, {requests} requests {served.how}"
    print_results(results, title=title, as_json=as_json, omit=BRIEF, progress=progress)
    if report is not None:
        facts = {"requests": requests, "longest answer": max_tokens, "seed": seed}
        _write_report(report, runs, title, served, facts)


def _check(
    *,
    is_null: bool,
    url: str | None,
    model: str | None,
    streams: int | None,
    rates: str | None,
    report: Path | None,
) -> None:
    from chairlift.bench.report.files import check_report

    if is_null and sys.platform != "linux":
        message = "--engine null gives the server a core of its own, which needs Linux"
        raise ConfigError(message)
    for name, value in (("url", url), ("rates", rates)):
        if is_null and value is not None:
            message = f"{name}: expected none with --engine null"
            raise ConfigError(message)
    if model is not None and url is None:
        message = "model: expected --url beside it: a server at --target has one model"
        raise ConfigError(message)
    if streams is not None and url is not None:
        message = "streams: expected none with --url: each request has a connection"
        raise ConfigError(message)
    if report is not None:
        check_report(report)


class _Served(NamedTuple):
    """A server that load is sent to."""

    name: str
    how: str
    """How requests reach it."""
    vocab_size: int = 0
    send: "Send | None" = None

    def results(
        self, runs: "SentRuns", requests: int, max_tokens: int, seed: int
    ) -> Iterator[Result]:
        assert self.send is not None
        return runs.sent(
            self.send,
            lambda arrivals: chat_workload(
                requests,
                seed=seed,
                vocab_size=self.vocab_size,
                max_tokens=max_tokens,
                arrivals=arrivals,
            ),
        )


def _grpc_server(
    target: str,
    connect: "Connect",
    streams: int,
    concurrency: int | None,
    on_end: Callable[[], None],
) -> _Served:
    from chairlift.cli.bench.load import LoadResult, send_over_grpc

    async def vocab_size() -> int:
        async with connect() as client:
            return (await client.model_info()).vocab_size

    def send(work: Sequence[Item]) -> LoadResult:
        return send_over_grpc(connect, work, streams, on_end, concurrency)

    how = f"over {streams} stream{'s' * (streams != 1)}"
    return _Served(target, how, asyncio.run(vocab_size()), send)


def _openai_server(
    text: str, model: str | None, concurrency: int | None, on_end: Callable[[], None]
) -> _Served:
    from chairlift.cli.bench.http_stream import url_of
    from chairlift.cli.bench.load import LoadResult
    from chairlift.cli.bench.openai_load import WORDS, first_model, send_openai_load

    url = url_of(text, os.environ.get("CHAIRLIFT_TOKEN"))
    name = model or asyncio.run(first_model(url))

    def send(work: Sequence[Item]) -> LoadResult:
        return asyncio.run(send_openai_load(url, name, work, on_end, concurrency))

    return _Served(f"{name} at {url}", "to /completions", len(WORDS), send)


def _write_report(
    path: Path, runs: "SentRuns", title: str, served: _Served, facts: Mapping[str, object]
) -> None:
    from chairlift.bench.report.answer import server_sentences
    from chairlift.bench.report.files import command_line, write_report
    from chairlift.bench.report.method import server_method
    from chairlift.bench.report.page import render

    page = render(
        runs.reported,
        title=title,
        sentences=server_sentences(runs.reported, runs.bounds),
        command=command_line(),
        method=server_method(served.name, served.how, facts),
        bounds=[(bound.figure, bound.max_s) for bound in runs.bounds],
    )
    write_report(path, page)
