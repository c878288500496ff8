"""Requests as a gateway sends them to the two servers that it pairs."""

import json

import grpc
import pytest
from chairlift.engine.prepare.block_source import scope_of
from chairlift.server.protocols.stubs import vllm_engine_pb2 as vllm
from chairlift.server.protocols.stubs import vllm_engine_pb2_grpc
from chairlift.v1 import transfer_pb2 as pb

from tests.server.connection import Status, until
from tests.server.openai.raw_http import Raw

LONG = [(7 * place) % 380 + 1 for place in range(170)]
NUM_BLOCKS = (len(LONG) - 1) // 16
WANTED = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
"""What routers send to the first server; smg sends the two flags alone."""
GIVEN = {
    "do_remote_prefill": True,
    "remote_engine_id": "0123456789abcdef",
    "remote_request_id": "x" * 32,
    "remote_host": "127.0.0.1",
    "remote_port": 50061,
}
PARAMS = "kv_transfer_params_json"
ANN, BOB, DECODE = (f"{name}-0123456789abcdef" for name in ("ann", "bob", "decode"))
DOORS = {"protocol": "vllm", "http_listen": "127.0.0.1:0", "served_model_name": "tiny"}


async def ask(serving, params=None, *, prompt=LONG, token="", **sampling):
    """The end of an answer by the vLLM protocol."""
    sampling = {"temperature": 0.0, "max_tokens": 8, "ignore_eos": True, **sampling}
    message = vllm.GenerateRequest(sampling_params=vllm.SamplingParams(**sampling))
    message.tokenized.input_ids.extend(prompt)
    if params is not None:
        message.kv_transfer_params_json = params if isinstance(params, str) else json.dumps(params)
    metadata = (("authorization", f"Bearer {token}"),) if token else None
    stub = vllm_engine_pb2_grpc.VllmEngineStub(serving.channel)
    (response,) = [r async for r in stub.Generate(message, metadata=metadata)]
    return response.complete


async def refusal(serving, params, **fields):
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await ask(serving, params, **fields)
    return Status.of(failed.value)


async def post(serving, path="/v1/completions", token="", **fields):
    body = {"max_tokens": 8, "temperature": 0, "ignore_eos": True, **fields}
    headers = {"authorization": f"Bearer {token}"} if token else {}
    async with Raw(int(serving.server.http_url.rpartition(":")[2])) as raw:
        await raw.post(path, body, **headers)
        return await raw.response()


async def ticket_of(source, prompt=LONG, **fields):
    complete = await ask(source, WANTED, prompt=prompt, max_tokens=1, **fields)
    return json.loads(complete.kv_transfer_params_json)


def sample(serving, name):
    return serving.server.metrics.registry.get_sample_value(f"chairlift_transfer_{name}")


async def assert_nothing_is_pinned(source):
    await until(lambda: source.exporting.num_held_bytes == 0)
    await source.until_idle()


def sampled_hits(serving):
    return serving.server.metrics.registry.get_sample_value("chairlift_prefix_cache_hits_total")


async def end_of(call):
    """Read all of a call; return its status."""
    try:
        async for _ in call:
            pass
    except grpc.aio.AioRpcError as error:
        return Status.of(error)
    return Status()


def with_ticket(source, params, prompt=LONG, **fields):
    ticket = params["remote_request_id"]
    given = {
        "layout": source.exporting.layout,
        "token_ids": prompt,
        "scope": scope_of("", "", ticket.encode()),
        "ticket": ticket,
        "instance": params["remote_engine_id"],
    }
    return source.transfer.Prefill(pb.PrefillRequest(**given | fields))
