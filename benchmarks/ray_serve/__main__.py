"""Ways to two engines of the demo model on a local Ray, in turns: what a message costs on each.

    make bench-ray                                        # all ways, three rounds
    .tools/ray/bin/python -m benchmarks.ray_serve --ways native ingress --rounds 5

| way | what it is |
| --- | --- |
| native | one stream to each engine, past Ray |
| ingress | one stream to the ingress |
| proxy | `GenerateOne`, a call for each request, through Serve's gRPC proxy and the same router |
| haproxy | the same through HAProxy and the server of the replica (Serve's direct ingress) |

A message is an event with tokens. Processor time is that of what is between client and engines.
Engines, ingress and client share the machine. HAProxy needs a Ray of its own, which starts after
the first one has ended.
"""

import argparse
import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import Any, Final

import grpc
from chairlift.client import AsyncClient, connect_async
from chairlift.v1 import generation_pb2 as pb
from chairlift.v1 import generation_pb2_grpc
from google.protobuf import duration_pb2

WAYS: Final = ("native", "ingress", "proxy", "haproxy")
SHAPES: Final = ((1, 100), (16, 400))
"""Tokens of a message, and of an answer."""
BETWEEN: Final = ("Ingress", "ProxyActor", "OneByOne", "haproxy")
"""Parts of the commands of the processes between client and engines."""
_UP_S: Final = 300.0
_ENVIRONMENT: Final = {
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "240",
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "120",
    "RAY_worker_register_timeout_seconds": "240",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Engines as important as their clients: Ray's default is 15.
    "RAY_worker_niceness": "0",
}
_SERVICERS: Final = "chairlift.v1.generation_pb2_grpc.add_GenerationServiceServicer_to_server"

Figures = dict[str, float]
Load = Callable[[int, int], Any]
"""Runs all streams with tokens of a message and of an answer; returns messages and first tokens."""


def main() -> None:
    """Run the ways, and print the medians of each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--streams", type=int, default=64, help="requests at once")
    parser.add_argument("--out", type=Path, help="append the figures to a file, as JSON")
    options = parser.parse_args()
    if "haproxy" in options.ways and len(options.ways) > 1:
        # The switch is of the whole Ray.
        for ways in ([way for way in options.ways if way != "haproxy"], ["haproxy"]):
            command = [sys.executable, "-m", "benchmarks.ray_serve", "--ways", *ways]
            command += ["--rounds", str(options.rounds), "--streams", str(options.streams)]
            command += ["--out", str(options.out)] if options.out else []
            subprocess.run(command, check=True)
        return
    figures = _run(options.ways, options.rounds, options.streams)
    for (way, shape), found in figures.items():
        row = {"way": way, "tokens_per_message": shape, **found}
        sys.stdout.write(json.dumps(row) + "\n")
        if options.out:
            with options.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")


def _run(ways: Sequence[str], rounds: int, streams: int) -> dict[tuple[str, int], Figures]:
    is_direct = "haproxy" in ways
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if is_direct:
        os.environ["RAY_SERVE_ENABLE_DIRECT_INGRESS"] = "1"
        os.environ["RAY_SERVE_ENABLE_HA_PROXY"] = "1"
    import ray
    from chairlift.ray.application import application
    from ray import serve
    from ray.serve.config import gRPCOptions

    from benchmarks.ray_serve.one_by_one import OneByOne

    listen, grpc_port, http_port = f"127.0.0.1:{_port()}", _port(), _port()
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        servicers = [_SERVICERS]
        serve.start(
            http_options={"host": "127.0.0.1", "port": http_port},
            grpc_options=gRPCOptions(port=grpc_port, grpc_servicer_functions=servicers),
        )
        args: dict[str, Any] = {
            "num_replicas": 2,
            "listen": listen,
            "actor_options": {"num_cpus": 0},
            "server": {"max_num_seqs": 32, "drain_grace_s": 2.0},
        }
        serve.run(application(args), name="chairlift", route_prefix="/")
        if {"proxy", "haproxy"} & set(ways):
            one = serve.deployment(OneByOne).options(
                max_ongoing_requests=1000, ray_actor_options={"num_cpus": 0}
            )
            serve.run(one.bind("chairlift"), name="one", route_prefix="/one")
        return asyncio.run(_measure(ways, rounds, streams, listen, f"127.0.0.1:{grpc_port}"))
    finally:
        serve.shutdown()
        ray.shutdown()


async def _measure(
    ways: Sequence[str], rounds: int, streams: int, listen: str, proxy: str
) -> dict[tuple[str, int], Figures]:
    from ray import serve

    async with AsyncExitStack() as stack:
        engines: dict[str, dict[str, Any]] = {}
        async with asyncio.timeout(_UP_S):
            while len(engines) < 2:
                engines = await serve.get_app_handle("chairlift").engines.remote()
                await asyncio.sleep(0.2)
        addresses = [engine["address"] for engine in engines.values()]
        direct = [await stack.enter_async_context(connect_async(a)) for a in addresses]
        through = await stack.enter_async_context(connect_async(listen))
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(proxy))
        loads: dict[str, Load] = {
            "native": lambda size, tokens: _streams(direct, size, tokens, streams),
            "ingress": lambda size, tokens: _streams([through], size, tokens, streams),
            "proxy": lambda size, tokens: _calls(channel, size, tokens, streams),
            "haproxy": lambda size, tokens: _calls(channel, size, tokens, streams),
        }
        found: dict[tuple[str, int], list[Figures]] = {}
        for number in range(rounds + 1):
            for size, tokens in SHAPES:
                for way in ways:
                    figures = await _timed(loads[way], size, tokens)
                    sys.stderr.write(f"round {number}, {way}, {size} tokens a message: {figures}\n")
                    if number:  # The first round warms up.
                        found.setdefault((way, size), []).append(figures)
        return {key: _medians(some) for key, some in found.items()}


async def _timed(load: Load, size: int, tokens: int) -> Figures:
    cpu, began = _processor_s(), time.perf_counter()
    messages, firsts = await load(size, tokens)
    seconds, cpu = time.perf_counter() - began, _processor_s() - cpu
    return {
        "messages_per_s": round(messages / seconds, 1),
        "tokens_per_s": round(len(firsts) * tokens / seconds, 1),
        "wall_us_per_message": round(seconds / messages * 1e6, 1),
        "between_cpu_us_per_message": round(cpu / messages * 1e6, 1),
        "first_token_p50_ms": round(statistics.median(firsts) * 1e3, 1),
        "load_average": round(os.getloadavg()[0], 2),
    }


async def _streams(
    clients: Sequence[AsyncClient], size: int, tokens: int, streams: int
) -> tuple[int, list[float]]:
    """Run all requests on one stream of each client."""

    def events(number: int) -> AsyncIterator[pb.Event]:
        return (
            clients[number % len(clients)]
            .generate(
                [3 + number, 5, 8],
                max_tokens=tokens,
                ignore_eos=True,
                interval=size,
                queue_timeout_s=_UP_S,
            )
            .events()
        )

    return await _counted(map(events, range(streams)), tokens)


async def _calls(
    channel: grpc.aio.Channel, size: int, tokens: int, streams: int
) -> tuple[int, list[float]]:
    """Run each request as a call of its own."""
    stub = generation_pb2_grpc.GenerationServiceStub(channel)

    async def events(number: int) -> AsyncIterator[pb.Event]:
        start = pb.Start(
            token_ids=pb.TokenIds(ids=[3 + number, 5, 8]),
            stopping=pb.Stopping(max_tokens=tokens, ignore_eos=True),
            output=pb.Output(interval=size),
            schedule=pb.Schedule(queue_timeout=duration_pb2.Duration(seconds=int(_UP_S))),
        )
        call = stub.GenerateOne(
            pb.GenerateOneRequest(start=start), metadata=(("application", "one"),)
        )
        async for response in call:
            for event in response.events:
                yield event

    return await _counted(map(events, range(streams)), tokens)


async def _counted(
    answers: Iterable[AsyncIterator[pb.Event]], tokens: int
) -> tuple[int, list[float]]:
    """Take all answers at once; return their messages, and the time of each first token."""

    async def one(events: AsyncIterator[pb.Event]) -> tuple[int, float]:
        began, first, messages, num_tokens = time.perf_counter(), 0.0, 0, 0
        async for event in events:
            if event.HasField("tokens"):
                first = first or time.perf_counter() - began
                messages += 1
                num_tokens += event.tokens.num_tokens
        assert num_tokens == tokens, "an answer is not whole"
        return messages, first

    found = await asyncio.gather(*map(one, answers))
    return sum(messages for messages, _ in found), [first for _, first in found]


def _medians(rounds: Sequence[Figures]) -> Figures:
    return {name: round(statistics.median(r[name] for r in rounds), 1) for name in rounds[0]}


def _processor_s() -> float:
    """Return the processor time of what is between client and engines."""
    ticks = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_text(errors="replace")
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if __package__ not in command and any(part in command for part in BETWEEN):
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as probe:
        port: int = probe.getsockname()[1]
        return port


if __name__ == "__main__":
    main()
