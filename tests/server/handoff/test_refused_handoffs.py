"""`kv_transfer_params` that are wrong, hostile, or for another server."""

import json

import grpc
import pytest
from chairlift.api import types
from chairlift.api.config import engine_config
from chairlift.api.errors import ConfigError, RequestError
from chairlift.server.app.server import Server, ServerConfig
from chairlift.server.handoff.handoffs import Handoff

from tests.server.handoff.asking import (
    DOORS,
    GIVEN,
    LONG,
    PARAMS,
    WANTED,
    post,
    refusal,
    sample,
    ticket_of,
)


@pytest.mark.parametrize(
    ("params", "field", "message"),
    [
        ({"remote_host": "10.0.0.1"}, "remote_host", "expected one of this server's prefill_peers"),
        ({"remote_host": "169.254.169.254\n"}, "remote_host", "expected one of"),
        ({"remote_host": "x" * 254}, "remote_host", "1 to 253 characters"),
        ({"remote_host": ["127.0.0.1"]}, "remote_host", "got a value of type list"),
        ({"remote_host": None}, "remote_host", "got none"),
        ({"remote_port": 1}, "remote_host", "with remote_port 1"),
        ({"remote_port": "50061"}, "remote_port", "got a value of type str"),
        ({"remote_port": 50061.0}, "remote_port", "from 1 to 65535, got 50061.0"),
        ({"remote_port": 10**50}, "remote_port", "a whole number from 1 to 65535"),
        ({"remote_request_id": "short"}, "remote_request_id", "what a prefill server gave"),
        ({"remote_request_id": "é" * 32}, "remote_request_id", "what a prefill server gave"),
        ({"remote_request_id": 7}, "remote_request_id", "what a prefill server gave, 16"),
        ({"remote_engine_id": {}}, "remote_engine_id", "what a prefill server gave"),
        ({"remote_block_ids": [[1]]}, "remote_block_ids", "unknown field"),
        ({"do_remote_prefill": "yes"}, "do_remote_prefill", "expected True or False"),
        ({"do_remote_decode": True}, "do_remote_prefill", "expected false with do_remote_decode"),
        ({"do_remote_prefill": False}, "remote_engine_id", "expected none without"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else "",
)
async def test_wrong_params_are_refused_by_name(decode_of, params, field, message):
    async with decode_of("127.0.0.1:50061") as serving:
        status = await refusal(serving, GIVEN | params)
        assert (status.code, status.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "BAD_PARAMETER")
        assert status.fields == [f"{PARAMS}.{field}"]
        assert message in status.message, status
        response = await post(serving, prompt=LONG, kv_transfer_params=GIVEN | params)
        assert (response.status, response.error["param"]) == (400, f"kv_transfer_params.{field}")
        assert sample(serving, "local_prompts_total") == 0
        await serving.until_idle()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a JSON object, got a text that is none"),
        ("{", "expected a JSON object, got a text that is none"),
        ("[" * 4000, "expected a JSON object, got a text that is none"),
        ('{"a":' * 800, "expected a JSON object, got a text that is none"),
        ("[]", "expected an object, got a value of type list"),
        ("null", "expected an object, got a value of type NoneType"),
        ("NaN", "expected an object, got nan"),
        (json.dumps(GIVEN | {"remote_host": "x" * 10**5}), "expected at most 4096 characters"),
    ],
    ids=["empty", "cut", "deep", "deep-object", "list", "null", "nan", "huge"],
)
async def test_a_text_that_is_no_object_is_refused(decode_of, text, message):
    async with decode_of("127.0.0.1:50061") as serving:
        status = await refusal(serving, text)
        assert status.code is grpc.StatusCode.INVALID_ARGUMENT
        assert status.message.startswith(f"{PARAMS}: {message}"), status
        await serving.until_idle()


@pytest.mark.parametrize("role", [None, "decode", "prefill"])
async def test_a_server_without_the_role_refuses_by_name(serve, decode_of, prefill, role):
    serving = {
        None: lambda: serve(server=DOORS),
        "decode": lambda: decode_of("127.0.0.1:50061"),
        "prefill": prefill,
    }[role]()
    async with serving as server:
        wrong = {"prefill": WANTED, "decode": GIVEN}
        wrong.pop(role, None)
        for needed, params in wrong.items():
            name = "do_remote_decode" if needed == "prefill" else "do_remote_prefill"
            status = await refusal(server, params)
            assert status.code is grpc.StatusCode.UNIMPLEMENTED
            assert status.message == f"{PARAMS}.{name}: only a server with role {needed} does this"
            response = await post(server, prompt=LONG, kv_transfer_params=params)
            assert response.error["param"] == f"kv_transfer_params.{name}"


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/v1/completions", {"prompt": [LONG, LONG]}, ""),
        ("/v1/completions", {"prompt": LONG, "echo": True, "logprobs": 1}, ""),
        ("/v1/completions", {"prompt": LONG, "stream": True}, ".do_remote_decode"),
        ("/v1/responses", {"input": "one"}, ""),
    ],
    ids=["prompts", "prompt-logprobs", "stream", "responses"],
)
async def test_a_request_that_cannot_be_handed_over_is_refused(prefill, path, fields, param):
    if path == "/v1/responses":
        fields = fields | {"ignore_eos": None, "max_tokens": None}
    async with prefill() as source:
        response = await post(source, path, **fields, kv_transfer_params=WANTED)
        assert (response.status, response.error["param"]) == (400, f"kv_transfer_params{param}")


def test_a_request_with_an_adapter_cannot_be_handed_over():
    with pytest.raises(RequestError, match=r"^kv_transfer_params: not with an adapter"):
        Handoff("kv_transfer_params").check(types.Request([1], adapter="lift"))


async def test_a_server_without_an_address_for_others_gives_no_ticket(prefill, tmp_path):
    async with prefill(listen=f"unix:{tmp_path}/p.sock") as source:
        status = await refusal(source, WANTED)
        assert status.code is grpc.StatusCode.UNIMPLEMENTED
        assert "has no prefill_address" in status.message
    named = {"prefill_address": "prefill.example:50061"}
    async with prefill(listen=f"unix:{tmp_path}/p.sock", server=named) as source:
        params = await ticket_of(source)
        assert (params["remote_host"], params["remote_port"]) == ("prefill.example", 50061)


@pytest.mark.parametrize(
    ("server", "message"),
    [
        ({"prefill_address": "h:1"}, "prefill_address: expected none without role prefill"),
        ({"role": "prefill", "prefill_address": "h"}, "prefill_address: expected HOST:PORT"),
        (
            {"role": "prefill", "prefill_address": "0.0.0.0:5"},
            "prefill_address: expected HOST:PORT of this server, got 0.0.0.0:5",
        ),
        (
            {"role": "prefill", "prefill_address": "unix:/p.sock"},
            "prefill_address: expected HOST:PORT of this server, got unix:/p.sock",
        ),
    ],
    ids=["role", "port", "any", "unix"],
)
def test_an_address_that_others_cannot_use_is_refused(server, message):
    with pytest.raises(ConfigError, match=message):
        Server(engine_config(), ServerConfig(**server))
