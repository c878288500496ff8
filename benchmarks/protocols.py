"""Every protocol beside the native one: the same requests to one server, in turns, and the ratios.

    python -m benchmarks.protocols demo --clients 16 --max-tokens 128 --rounds 5

The server is a process of its own; the clients have one connection and one call each, and those of
HTTP read bytes and parse no JSON. A round is one protocol after the other; the figures are medians
of the rounds, and the processor time is that of the server alone.
"""

import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import grpc
from chairlift.server.protocols.stubs import (
    open_inference_pb2,
    open_inference_pb2_grpc,
    vllm_engine_pb2,
    vllm_engine_pb2_grpc,
)
from chairlift.v1 import generation_pb2 as pb
from chairlift.v1 import generation_pb2_grpc

PROMPT = "Once upon a time there was a small town"
OWN_CONNECTION = (("grpc.use_local_subchannel_pool", 1),)


async def over_grpc(address: str, num_clients: int, max_tokens: int) -> int:
    """Run one request of each client; return the tokens that came."""

    async def one(number: int) -> int:
        async with grpc.aio.insecure_channel(address, options=OWN_CONNECTION) as channel:
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


async def over_vllm(address: str, num_clients: int, max_tokens: int) -> int:
    """Do the same as a gateway of vLLM does."""

    async def one(number: int) -> int:
        async with grpc.aio.insecure_channel(address, options=OWN_CONNECTION) as channel:
            stub = vllm_engine_pb2_grpc.VllmEngineStub(channel)
            params = vllm_engine_pb2.SamplingParams(
                temperature=1.0, seed=number, max_tokens=max_tokens, ignore_eos=True
            )
            request = vllm_engine_pb2.GenerateRequest(
                text=PROMPT, sampling_params=params, stream=True
            )
            tokens = 0
            async for response in stub.Generate(request):
                tokens += len(response.chunk.token_ids)
            return tokens

    return sum(await asyncio.gather(*(one(number) for number in range(num_clients))))


async def over_oip(address: str, num_clients: int, max_tokens: int) -> int:
    """Do the same by Triton's stream."""

    async def one(number: int) -> int:
        async with grpc.aio.insecure_channel(address, options=OWN_CONNECTION) as channel:
            stub = open_inference_pb2_grpc.GRPCInferenceServiceStub(channel)
            sampling = {"temperature": 1, "seed": number, "max_tokens": max_tokens}
            request = open_inference_pb2.ModelInferRequest()
            for name, text in {
                "text_input": PROMPT,
                "sampling_parameters": json.dumps(sampling | {"ignore_eos": True}),
            }.items():
                tensor = request.inputs.add(name=name, datatype="BYTES", shape=[1])
                tensor.contents.bytes_contents.append(text.encode())
            for name in ("stream", "return_num_output_tokens"):
                flag = request.inputs.add(name=name, datatype="BOOL", shape=[1])
                flag.contents.bool_contents.append(True)
            last = None
            async for response in stub.ModelStreamInfer(iter([request])):
                last = response.infer_response
            assert last is not None
            return int.from_bytes(last.raw_output_contents[-1], "little")

    return sum(await asyncio.gather(*(one(number) for number in range(num_clients))))


def cpu_seconds(process: int) -> float:
    """Return the processor time of a process so far."""
    _, _, fields = Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(") ")
    user, system = fields.split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


async def compare(
    address: str, url: str, process: int, clients: int, max_tokens: int, rounds: int
) -> None:
    """Run all in turns and print, for each, its speed and its cost beside the native one."""
    ways = {
        "chairlift.v1": (over_grpc, address),
        "OpenAI over HTTP": (over_http, url),
        "VllmEngine": (over_vllm, address),
        "Open Inference": (over_oip, address),
    }
    speeds: dict[str, list[float]] = {name: [] for name in ways}
    costs: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, (run, where) in ways.items():
            began, cpu = time.perf_counter(), cpu_seconds(process)
            tokens = await run(where, clients, max_tokens)
            assert tokens == clients * max_tokens, (name, tokens)
            # The first round warms up.
            if number:
                speeds[name].append(tokens / (time.perf_counter() - began))
                costs[name].append((cpu_seconds(process) - cpu) / tokens)
    native = speeds["chairlift.v1"]
    for name in ways:
        ratios = [speed / base for speed, base in zip(speeds[name], native, strict=True)]
        result = {
            "protocol": name,
            "clients": clients,
            "max_tokens": max_tokens,
            "rounds": rounds,
            "tokens_per_s": round(statistics.median(speeds[name]), 1),
            "of_native": round(statistics.median(ratios), 3),
            "least": round(min(ratios), 3),
            "most": round(max(ratios), 3),
            "cpu_us_per_token": round(1e6 * statistics.median(costs[name])),
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
        command += ["--protocol", "vllm,oip"]
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
                        server.pid,
                        arguments.clients,
                        arguments.max_tokens,
                        arguments.rounds,
                    )
                )
            finally:
                server.terminate()


if __name__ == "__main__":
    main()
