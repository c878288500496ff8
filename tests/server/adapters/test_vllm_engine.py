"""`VllmEngine`: what a gateway asks of a worker."""

import hashlib
import io
import zipfile

import grpc
import pytest
import tokenizers
from chairlift.server.protocols.stubs import smg_common_pb2 as common
from chairlift.server.protocols.stubs import vllm_engine_pb2 as vllm
from chairlift.server.protocols.stubs import vllm_engine_pb2_grpc
from chairlift.server.protocols.vllm import answers
from chairlift.v1 import embedding_pb2, generation_pb2

from tests.server.connection import Status, start, status_of, until

PROMPT = (1, 2, 3)


def stub(serving):
    return vllm_engine_pb2_grpc.VllmEngineStub(serving.channel)


def request(request_id="", *, prompt=PROMPT, stream=True, **params):
    params = {"temperature": 0.0, "max_tokens": 8, "ignore_eos": True, **params}
    message = vllm.GenerateRequest(
        request_id=request_id, stream=stream, sampling_params=vllm.SamplingParams(**params)
    )
    if isinstance(prompt, str):
        message.text = prompt
    elif prompt is not None:
        message.tokenized.input_ids.extend(prompt)
    return message


async def answer(serving, message):
    return [response async for response in stub(serving).Generate(message)]


async def last(call):
    """The end of a call that has been read from."""
    while not (response := await call.read()).HasField("complete"):
        pass
    return response.complete


async def failure(serving, message):
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await answer(serving, message)
    return Status.of(failed.value)


def ids_of(responses, index=0):
    return [i for r in responses if r.chunk.index == index for i in r.chunk.token_ids]


async def test_a_stream_has_the_tokens_of_the_native_one_and_then_the_end(others):
    async with others() as server:
        native = (await server.say(start("a", prompt=PROMPT))).tokens("a")
        *chunks, end = await answer(server, request())
        assert ids_of(chunks) == native
        assert all(chunk.chunk.prompt_tokens == 3 for chunk in chunks)
        assert end.complete.finish_reason == "length"
        assert (end.complete.prompt_tokens, end.complete.completion_tokens) == (3, 8)


async def test_without_a_stream_the_end_has_all_tokens(others):
    async with others() as server:
        streamed = ids_of(await answer(server, request()))
        (whole,) = await answer(server, request(stream=False))
        assert list(whole.complete.output_ids) == streamed


async def test_answers_of_one_prompt_are_told_apart_by_index(others):
    async with others() as server:
        responses = await answer(server, request(n=2, temperature=1.0, seed=7))
        ends = [r.complete for r in responses if r.HasField("complete")]
        assert sorted(end.index for end in ends) == [0, 1]
        assert {end.prompt_tokens for end in ends} == {3}
        assert len(ids_of(responses, 1)) == 8


async def test_a_whole_answer_has_its_log_probabilities_as_they_are_computed(others, monkeypatch):
    """What comes at the end alone is converted at the end: the tokens of seconds, at once."""
    taken = []
    convert = answers._logprobs
    monkeypatch.setattr(
        answers, "_logprobs", lambda tokens: taken.append(len(tokens.token_ids)) or convert(tokens)
    )
    async with others() as server:
        (response,) = await answer(server, request(logprobs=20, stream=False, max_tokens=100))
        assert len(response.complete.output_logprobs.token_logprobs) == 100
    assert sum(taken) == 100
    assert max(taken) < 50


async def test_logprobs_come_with_their_candidates(others):
    async with others() as server:
        for stream in (True, False):
            responses = await answer(server, request(logprobs=2, stream=stream))
            parts = [
                r.chunk if stream else r.complete for r in responses if r.WhichOneof("response")
            ]
            found = [part.output_logprobs for part in parts if part.HasField("output_logprobs")]
            ids = [i for part in found for i in part.token_ids]
            tops = [top for part in found for top in part.top_logprobs]
            assert len(ids) == len(tops) == 8
            # A greedy answer has the likeliest tokens.
            assert [top.token_ids[0] for top in tops] == ids
            assert all(len(top.values) == 2 for top in tops)


async def test_a_stop_is_named(others):
    async with others() as server:
        first, second, *_ = ids_of(await answer(server, request()))
        *_, end = await answer(server, request(stop_token_ids=[second]))
        assert end.complete.finish_reason == "stop"
        assert end.complete.matched_token_id == second
        assert end.complete.completion_tokens == 1 + (first != second)


CHOICES = ["left", "right"]


@pytest.mark.parametrize(
    ("ours", "native"),
    [
        ({"json_schema": '{"type": "boolean"}'}, {"json_schema": '{"type": "boolean"}'}),
        ({"json_object": True}, {"json_object": generation_pb2.JsonObject()}),
        ({"regex": "[ab]{3}"}, {"regex": "[ab]{3}"}),
        ({"grammar": 'start: "up" | "down"'}, {"lark": 'start: "up" | "down"'}),
        ({"choice": {"choices": CHOICES}}, {"choices": {"choices": CHOICES}}),
        ({"json_object": False}, None),
    ],
    ids=str,
)
async def test_constraints_are_those_of_the_native_stream(others, ours, native):
    constraint = None if native is None else generation_pb2.Constraint(**native)
    async with others() as server:
        # A constraint ends an answer at its last token, whatever comes after the end.
        stopping = generation_pb2.Stopping(max_tokens=24)
        message = start("a", prompt=PROMPT, constraint=constraint, stopping=stopping)
        expected = (await server.say(message)).tokens("a")
        *chunks, end = await answer(server, request(max_tokens=24, ignore_eos=False, **ours))
        assert ids_of(chunks) == expected
        assert end.complete.completion_tokens == len(expected) > 0


@pytest.mark.parametrize(
    ("change", "code", "field"),
    [
        (request(prompt=None), "INVALID_ARGUMENT", "input"),
        (request(prompt=[]), "INVALID_ARGUMENT", "input"),
        (request(prompt=[2**31]), "INVALID_ARGUMENT", "tokenized.input_ids"),
        (request(prompt=range(400)), "INVALID_ARGUMENT", "input"),
        (request(request_id="x" * 129), "INVALID_ARGUMENT", "request_id"),
        (request(temperature=-1.0), "INVALID_ARGUMENT", "sampling_params.temperature"),
        (request(top_p=2.0), "INVALID_ARGUMENT", "sampling_params.top_p"),
        (request(logprobs=21), "INVALID_ARGUMENT", "sampling_params.logprobs"),
        (request(logprobs=-1), "INVALID_ARGUMENT", "sampling_params.logprobs"),
        (request(max_tokens=0), "INVALID_ARGUMENT", "sampling_params.max_tokens"),
        (request(n=10_000), "INVALID_ARGUMENT", "sampling_params.n"),
        (request(stop=["x"] * 100), "INVALID_ARGUMENT", "sampling_params.stop"),
        (request(truncate_prompt_tokens=-2), "INVALID_ARGUMENT", "sampling_params.truncate"),
        (request(logit_bias=dict.fromkeys(range(2000), 1.0)), "INVALID_ARGUMENT", "sampling_"),
        (request(prompt_logprobs=1), "UNIMPLEMENTED", "sampling_params.prompt_logprobs"),
        (request(structural_tag="{}"), "UNIMPLEMENTED", "sampling_params.structural_tag"),
        (request(json_schema="{"), "INVALID_ARGUMENT", "sampling_params.json_schema"),
        (request(regex="a("), "INVALID_ARGUMENT", "sampling_params.regex"),
        (request(grammar="start: missing"), "INVALID_ARGUMENT", "sampling_params.grammar"),
        (request(choice={}), "INVALID_ARGUMENT", "sampling_params.choice.choices"),
        (request(choice={"choices": [""]}), "INVALID_ARGUMENT", "sampling_params.choice.choices"),
    ],
)
async def test_what_is_wrong_is_refused_by_name(others, change, code, field):
    async with others() as server:
        status = await failure(server, change)
        assert status.code.name == code
        assert status.message.startswith(field)
        await server.until_idle()


@pytest.mark.parametrize("name", ["kv_transfer_params", "mm_inputs", "media_refs"])
async def test_what_other_workers_do_is_refused_by_name(others, name):
    async with others() as server:
        message = request()
        getattr(message, name).SetInParent()
        status = await failure(server, message)
        assert (status.code, status.reason) == (grpc.StatusCode.UNIMPLEMENTED, "UNSUPPORTED")
        assert status.message.startswith(name)


async def test_breaking_a_call_cancels_its_request(others):
    async with others() as server:
        call = stub(server).Generate(request(max_tokens=250))
        await call.read()
        call.cancel()
        await until(lambda: server.num_ended("cancelled") == 1)
        await server.until_idle()


async def test_abort_ends_requests_of_the_id_alone(others):
    async with others() as server:
        calls = [stub(server).Generate(request(name, max_tokens=250)) for name in ("a", "b")]
        for call in calls:
            await call.read()
        await stub(server).Abort(vllm.AbortRequest(request_ids=["a", "unknown"]))
        ended, whole = [await last(call) for call in calls]
        assert ended.finish_reason == "abort"
        assert whole.finish_reason == "length"
        await server.until_idle()


async def test_the_bounds_and_tenants_are_those_of_the_native_service(others, tmp_path):
    tokens = tmp_path / "tokens"
    tokens.write_text("ann:" + "a" * 32 + "\nbob:" + "b" * 32 + "\n", encoding="utf-8")
    tokens.chmod(0o600)
    settings = {"auth_tokens": str(tokens), "tenant_max_requests": 1}
    async with others(server=settings) as server:
        ann, bob = ((("authorization", f"Bearer {letter * 32}"),) for letter in "ab")
        status = await failure(server, request())
        assert status.code is grpc.StatusCode.UNAUTHENTICATED
        held = stub(server).Generate(request("mine", max_tokens=250), metadata=ann)
        await held.read()
        second = stub(server).Generate(request(), metadata=ann)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await second.read()
        assert Status.of(refused.value).reason == "QUOTA_EXCEEDED"
        # Another tenant's abort reaches no request of this one.
        await stub(server).Abort(vllm.AbortRequest(request_ids=["mine"]), metadata=bob)
        assert (await held.read()).HasField("chunk")
        held.cancel()


async def test_the_tokenizer_is_one_that_encodes_as_the_server(others, tiny_folder):
    async with others() as server:
        data, digest = b"", ""
        async for chunk in stub(server).GetTokenizer(common.GetTokenizerRequest()):
            data, digest = data + chunk.data, chunk.sha256
        assert hashlib.sha256(data).hexdigest() == digest
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            assert {"tokenizer.json", "tokenizer_config.json", "config.json"} <= {
                *archive.namelist()
            }
            ours = tokenizers.Tokenizer.from_buffer(archive.read("tokenizer.json"))
        text = "one two three"
        theirs = tokenizers.Tokenizer.from_file(str(tiny_folder / "tokenizer.json"))
        assert ours.encode(text).ids == theirs.encode(text).ids


async def test_it_says_what_it_is(others):
    async with others() as server:
        engine = stub(server)
        assert (await engine.HealthCheck(vllm.HealthCheckRequest())).healthy
        model = await engine.GetModelInfo(vllm.GetModelInfoRequest())
        assert (model.served_model_name, model.is_generation) == ("tiny", True)
        assert model.max_context_length == 256
        info = await engine.GetServerInfo(vllm.GetServerInfoRequest())
        assert (info.server_type, info.max_num_seqs) == ("chairlift", 8)
        (load,) = (await engine.GetLoads(vllm.GetLoadsRequest())).loads
        assert (load.max_running_requests, load.num_running_reqs) == (8, 0)


async def test_a_vector_is_that_of_the_native_service(others):
    async with others() as server:
        tokenized = vllm.TokenizedInput(input_ids=PROMPT)
        got = await stub(server).Embed(vllm.EmbedRequest(request_id="a", tokenized=tokenized))
        given = embedding_pb2.EmbedInput(token_ids=generation_pb2.TokenIds(ids=PROMPT))
        native = await server.embedding.Embed(embedding_pb2.EmbedRequest(inputs=[given]))
        assert list(got.embedding) == list(native.embeddings[0].values)
        assert (got.prompt_tokens, got.embedding_dim) == (3, 64)
        status = await status_of(stub(server).Embed(vllm.EmbedRequest()))
        assert status.code is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("FlushCache", common.FlushCacheRequest()),
        ("StartProfile", common.StartProfileRequest()),
        ("StopProfile", common.StopProfileRequest()),
    ],
)
async def test_methods_that_it_does_not_have_say_so(others, method, message):
    async with others() as server:
        status = await status_of(getattr(stub(server), method)(message))
        assert status.code is grpc.StatusCode.UNIMPLEMENTED
        assert method in status.message


async def test_it_is_off_unless_it_is_asked_for(serve):
    async with serve() as server:
        status = await status_of(stub(server).HealthCheck(vllm.HealthCheckRequest()))
        assert status.code is grpc.StatusCode.UNIMPLEMENTED


async def test_a_client_that_takes_nothing_in_time_loses_its_call(others):
    async with others(server={"write_timeout_s": 1e-9}) as server:
        status = await failure(server, request(max_tokens=250))
        assert status.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert status.reason == "SLOW_READER"
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            async for _ in stub(server).GetTokenizer(common.GetTokenizerRequest()):
                pass
        assert Status.of(failed.value).reason == "SLOW_READER"
        await server.until_idle()
