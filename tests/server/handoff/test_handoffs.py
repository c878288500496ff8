"""Gateways that pair servers: a prompt goes to one, and with what it gave to another."""

import pytest
from chairlift.server.protocols.stubs import vllm_engine_pb2 as vllm
from chairlift.server.protocols.stubs import vllm_engine_pb2_grpc

from tests.server.handoff.asking import (
    DOORS,
    LONG,
    NUM_BLOCKS,
    WANTED,
    ask,
    assert_nothing_is_pinned,
    post,
    refusal,
    sample,
    ticket_of,
)


async def test_a_prompt_is_computed_by_the_first_server_and_not_again(serve, prefill, decode_of):
    async with serve(server=DOORS) as alone:
        expected = list((await ask(alone)).output_ids)
    async with prefill() as source, decode_of(source.address) as serving:
        params = await ticket_of(source)
        assert params.keys() == {*WANTED, "remote_request_id"} - {"remote_block_ids"}
        complete = await ask(serving, params)
        assert list(complete.output_ids) == expected
        assert complete.cached_tokens == NUM_BLOCKS * 16
        assert complete.kv_transfer_params_json == ""
        assert sample(serving, "whole_prompts_total") == 1
        assert sample(serving, "received_blocks_total") == NUM_BLOCKS
        assert (await source.load()).num_prefix_hits == NUM_BLOCKS
        await assert_nothing_is_pinned(source)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_the_same_over_http(serve, prefill, decode_of, path):
    messages = [{"role": "user", "content": "one two three four five six seven " * 4}]
    prompt = {"prompt": LONG} if path == "/v1/completions" else {"messages": messages}
    async with serve(server=DOORS) as alone:
        expected = (await post(alone, path, **prompt)).json()
    async with prefill() as source, decode_of(source.address) as serving:
        first = await post(source, path, **prompt | {"max_tokens": 1}, kv_transfer_params=WANTED)
        params = first.json()["kv_transfer_params"]
        answer = (await post(serving, path, **prompt, kv_transfer_params=params)).json()
        assert answer["choices"] == expected["choices"]
        assert "kv_transfer_params" not in answer
        num_tokens = (answer["usage"]["prompt_tokens"] - 1) // 16 * 16
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == num_tokens > 16
        assert sample(serving, "received_blocks_total") == num_tokens // 16
        assert (await source.load()).num_prefix_hits == num_tokens // 16
        streamed = await post(serving, path, **prompt, kv_transfer_params=params, stream=True)
        assert streamed.status == 200
        await assert_nothing_is_pinned(source)


async def test_flags_that_are_off_ask_for_nothing(serve):
    off = {name: False if name.startswith("do_") else None for name in WANTED}
    async with serve(server=DOORS) as alone:
        for params in ({}, off):
            assert (await ask(alone, params)).kv_transfer_params_json == ""
            assert (await post(alone, prompt=LONG, kv_transfer_params=params)).status == 200


async def test_a_short_prompt_comes_too_and_one_without_a_block_needs_no_call(prefill, decode_of):
    async with prefill() as source, decode_of(source.address) as serving:
        for prompt, num_blocks in ((LONG[:20], 1), (LONG[100:110], 0)):
            params = await ticket_of(source, prompt)
            assert (await ask(serving, params, prompt=prompt)).cached_tokens == num_blocks * 16
        assert sample(serving, "received_blocks_total") == 1
        assert sample(source, "sent_blocks_total") == 1


async def test_blocks_that_were_evicted_are_computed_again_by_the_first_server(
    prefill, decode_of, kv_blocks
):
    async with (
        prefill(kv_cache_memory=kv_blocks(16)) as source,
        decode_of(source.address) as serving,
    ):
        params = await ticket_of(source)
        for number in range(4):
            await ask(source, prompt=[number + 1, *LONG[:120]])
        num_hits = (await source.load()).num_prefix_hits
        assert (await ask(serving, params)).cached_tokens == NUM_BLOCKS * 16
        assert (await source.load()).num_prefix_hits == num_hits
        await assert_nothing_is_pinned(source)


async def test_a_first_server_that_began_again_computes_the_prompt_again(prefill, decode_of):
    async with prefill() as source:
        params, address = await ticket_of(source), source.address
    async with prefill(listen=address) as source, decode_of(address) as serving:
        assert (await ask(serving, params)).cached_tokens == NUM_BLOCKS * 16
        assert sample(source, "sent_blocks_total") == NUM_BLOCKS
        await assert_nothing_is_pinned(source)


async def test_a_first_server_that_went_leaves_the_prompt_to_the_second(serve, prefill, decode_of):
    async with serve(server=DOORS) as alone:
        expected = list((await ask(alone)).output_ids)
    async with prefill() as source:
        params, address = await ticket_of(source), source.address
    async with decode_of(address, strict_roles=False) as serving:
        assert list((await ask(serving, params)).output_ids) == expected
        assert sample(serving, "received_blocks_total") == 0
        await serving.until_idle()
    async with decode_of(address) as serving:
        assert (await refusal(serving, params)).reason == "PREFILL_UNAVAILABLE"
        response = await post(serving, prompt=LONG, kv_transfer_params=params)
        assert (response.status, response.error["code"]) == (503, "prefill_unavailable")
        await serving.until_idle()


async def test_gateways_are_told_the_role_and_what_can_be_paired(serve, prefill, decode_of):
    async def info(serving):
        stub = vllm_engine_pb2_grpc.VllmEngineStub(serving.channel)
        return await stub.GetServerInfo(vllm.GetServerInfoRequest())

    async with serve(server=DOORS) as alone:
        told = await info(alone)
        names = ("kv_connector", "kv_role", "kv_engine_id", "pairing_protocol")
        assert {getattr(told, name) for name in names} == {""}
    async with prefill() as source, decode_of(source.address) as serving:
        of_source, of_decode = await info(source), await info(serving)
        assert (of_source.kv_role, of_decode.kv_role) == ("kv_producer", "kv_consumer")
        assert of_source.kv_connector == of_decode.kv_connector == "NixlConnector"
        assert of_source.kv_engine_id == (await ticket_of(source))["remote_engine_id"]
        assert of_source.pairing_protocol == of_decode.pairing_protocol
        assert of_source.pairing_protocol.startswith("chairlift-")
