"""Chairlift as its users meet it: a server process, and a client that reads streams over gRPC.

python -m benchmarks.peers.run_served MODEL WORKLOAD [options of `chairlift serve`]
"""

import asyncio
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import grpc
from chairlift.bench.workload import Item, read_workload
from chairlift.client.aio import AsyncClient, AsyncGeneration
from grpc_health.v1 import health_pb2, health_pb2_grpc

from benchmarks.peers.protocol import print_result

START_TIMEOUT_S = 300.0


def main() -> None:
    """Start the server, warm it up, send all of the work at once and count the tokens."""
    model, workload, *settings = sys.argv[1:]
    work = read_workload(Path(workload))
    with tempfile.TemporaryDirectory() as folder:
        address = f"unix:{folder}/served.sock"
        command: list[str | Path] = [Path(sys.executable).with_name("chairlift"), "serve", model]
        command += ["--listen", address, "--no-prefix-cache", *settings]
        server = subprocess.Popen(command, stdout=sys.stderr)
        try:
            output_tokens, seconds = asyncio.run(measured(address, work))
        finally:
            server.terminate()
            server.wait()
    print_result(output_tokens, seconds)


async def measured(address: str, work: list[Item]) -> tuple[int, float]:
    """Return the tokens of the answers, and the seconds until the last of them."""
    await asyncio.wait_for(until_serving(address), START_TIMEOUT_S)
    async with AsyncClient(address) as client:
        await generate_all(client, [Item(own.prompt_token_ids[:16], 4) for own in work[:2]])
        began = time.perf_counter()
        output_tokens = await generate_all(client, work)
        return output_tokens, time.perf_counter() - began


async def until_serving(address: str) -> None:
    """Wait until the model is loaded."""
    async with grpc.aio.insecure_channel(address) as channel:
        request = health_pb2.HealthCheckRequest()
        watch = health_pb2_grpc.HealthStub(channel).Watch(request, wait_for_ready=True)
        async for response in watch:
            if response.status == health_pb2.HealthCheckResponse.SERVING:
                return


async def generate_all(client: AsyncClient, work: list[Item]) -> int:
    """Read all answers at once, event by event."""
    answers = [
        client.generate(
            item.prompt_token_ids, max_tokens=item.max_tokens, ignore_eos=True, temperature=0.0
        )
        for item in work
    ]
    return sum(await asyncio.gather(*map(num_tokens, answers)))


async def num_tokens(generation: AsyncGeneration) -> int:
    """Return the tokens of an answer."""
    [answer] = await generation.all()
    return answer.num_tokens


if __name__ == "__main__":
    main()
