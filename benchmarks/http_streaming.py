"""HTTP streaming beside gRPC: the same requests to one server, in turns, and the ratio.

    python -m benchmarks.http_streaming demo --clients 16 --max-tokens 128 --rounds 5

The server is a process of its own; the clients read bytes and parse no JSON, one connection each,
as the native client does with one call each. A round is one protocol after the other; the figure is
the median of the rounds' ratios.
"""

import argparse
import asyncio
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import grpc
from chairlift.v1 import generation_pb2 as pb
from chairlift.v1 import generation_pb2_grpc

PROMPT = "Once upon a time there was a small town"


async def over_grpc(address: str, num_clients: int, max_tokens: int) -> int:
    """Run one request of each client; return the tokens that came."""

    async def one(number: int) -> int:
        async with grpc.aio.insecure_channel(
            address, options=[("grpc.use_local_subchannel_pool", 1)]
        ) as channel:
            stub = generation_pb2_grpc.GenerationServiceStub(channel)
            start = pb.Start(
                text=PROMPT,
                sampling=pb.Sampling(temperature=1.0, seed=number),
                stopping=pb.Stopping(max_tokens=max_tokens, ignore_eos=True),
            )
            tokens = 0
            async for response in stub.GenerateOne(pb.GenerateOneRequest(start=start)):
                tokens += sum(event.tokens.num_tokens for event in response.events)
            return tokens

    return sum(await asyncio.gather(*(one(number) for number in range(num_clients))))


async def over_http(url: str, num_clients: int, max_tokens: int) -> int:
    """Do the same by server-sent events."""
    host, port = url.removeprefix("http://").rsplit(":", 1)

    async def one(number: int) -> int:
        body = {
            "prompt": PROMPT,
            "temperature": 1.0,
            "seed": number,
            "max_tokens": max_tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        data = json.dumps(body).encode()
        head = (
            f"POST /v1/completions HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n"
            f"content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
        )
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(head.encode() + data)
        last = b""
        while chunk := await reader.read(65_536):
            last = (last + chunk)[-4096:]
        writer.close()
        found = re.search(rb'"completion_tokens":(\d+)', last)
        if found is None:
            message = f"no usage in {last!r}"
            raise RuntimeError(message)
        return int(found[1])

    return sum(await asyncio.gather(*(one(number) for number in range(num_clients))))


async def compare(address: str, url: str, clients: int, max_tokens: int, rounds: int) -> None:
    """Run both in turns and print the ratio."""
    ways = {"grpc": (over_grpc, address), "http": (over_http, url)}
    speeds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, (run, where) in ways.items():
            began = time.perf_counter()
            tokens = await run(where, clients, max_tokens)
            # The first round warms up.
            if number:
                speeds[name].append(tokens / (time.perf_counter() - began))
    ratios = [http / native for native, http in zip(speeds["grpc"], speeds["http"], strict=True)]
    result = {
        "clients": clients,
        "max_tokens": max_tokens,
        "rounds": rounds,
        "grpc_tokens_per_s": round(statistics.median(speeds["grpc"]), 1),
        "http_tokens_per_s": round(statistics.median(speeds["http"]), 1),
        "http_to_grpc": round(statistics.median(ratios), 3),
        "least": round(min(ratios), 3),
        "most": round(max(ratios), 3),
    }
    print(json.dumps(result))


def main() -> None:
    """Start a server, compare, and end it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        address = f"unix:{Path(folder) / 'server.sock'}"
        command = [sys.executable, "-m", "chairlift", "serve", arguments.model]
        command += ["--listen", address, "--http-listen", "127.0.0.1:0"]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as server:
            assert server.stdout is not None
            lines = iter(server.stdout.readline, "")
            url = next(line.split()[3] for line in lines if line.startswith("OpenAI API on"))
            try:
                asyncio.run(
                    compare(
                        address,
                        url.removesuffix("/v1"),
                        arguments.clients,
                        arguments.max_tokens,
                        arguments.rounds,
                    )
                )
            finally:
                server.terminate()


if __name__ == "__main__":
    main()
