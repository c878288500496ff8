"""`EmbeddingService` over a real encoder, its formats, refusals, streams and ends."""

import asyncio
import random
import shutil
from contextlib import asynccontextmanager

import grpc
import numpy as np
import pytest
import torch
from chairlift.api.config import engine_config
from chairlift.api.types import Pooling, Request
from chairlift.engine.async_engine import AsyncEngine
from chairlift.engine.embed_all import pool_all
from chairlift.engine.engine import Engine
from chairlift.server.app.server import Server, ServerConfig
from chairlift.v1 import embedding_pb2 as pb
from chairlift.v1 import generation_pb2, server_pb2, tokenizer_pb2
from safetensors.torch import load_file, save_file

from tests.engine import tiny_encoder
from tests.server.connection import Serving, Status, until

Code = grpc.StatusCode
TEXTS = tiny_encoder.texts(24)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    encoder, reranker, labels = (tmp_path_factory.mktemp(name) for name in ("e", "r", "l"))
    tiny_encoder.write(encoder)
    tiny_encoder.write(reranker, num_labels=1)
    tiny_encoder.write(labels, num_labels=3)
    return {"encoder": encoder, "reranker": reranker, "labels": labels}


@pytest.fixture(scope="module")
def vectors(folders):
    with Engine(folders["encoder"]) as engine:
        requests = [Request(text, pooling=Pooling()) for text in TEXTS]
        results = dict(pool_all(engine, requests))
    return [results[place].vector() for place in range(len(TEXTS))]


@pytest.fixture
def serve(folders, tmp_path):
    @asynccontextmanager
    async def run(kind="encoder", server=None, **settings):
        listen = f"unix:{tmp_path}/e.sock"
        folder = folders.get(kind, kind)
        served = Server(
            engine_config(**settings),
            ServerConfig(model=str(folder), listen=listen, **(server or {})),
        )
        address = await served.bind()
        channel = grpc.aio.insecure_channel(address)
        try:
            await served.serve(AsyncEngine.of(Engine(folder, **settings)))
            yield Serving(served, channel, address)
            # A client's deadline passes before the server has ended its inputs.
            await until(lambda: not served._engine.load().num_running)
        finally:
            await channel.close()
            await served.stop(0)
            assert not served.has_leaked

    return run


def embed_request(texts=TEXTS, **options):
    model = options.pop("model", "")
    inputs = [pb.EmbedInput(text=text) for text in texts]
    return pb.EmbedRequest(model=model, inputs=inputs, options=pb.EmbedOptions(**options))


async def status_of(call):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return Status.of(caught.value)


async def test_vectors_come_in_the_order_of_the_inputs(serve, vectors):
    async with serve() as server:
        response = await server.embedding.Embed(embed_request())
    for embedding, vector in zip(response.embeddings, vectors, strict=True):
        assert np.array_equal(np.float32(embedding.values), vector)
        assert embedding.num_prompt_tokens > 2


async def test_packed_formats_hold_the_same_numbers(serve, vectors):
    vector = vectors[0]
    async with serve() as server:
        packed = {}
        for form in ("FLOAT32", "FLOAT16", "INT8", "BINARY"):
            request = embed_request(TEXTS[:1], format=f"VECTOR_FORMAT_{form}")
            packed[form] = (await server.embedding.Embed(request)).embeddings[0].packed
    assert np.array_equal(np.frombuffer(packed["FLOAT32"], "<f4"), vector)
    assert np.array_equal(np.frombuffer(packed["FLOAT16"], "<f2"), vector.astype(np.float16))
    assert np.array_equal(np.frombuffer(packed["INT8"], np.int8), np.rint(127 * vector))
    bits = np.unpackbits(np.frombuffer(packed["BINARY"], np.uint8))
    assert np.array_equal(bits[: len(vector)], vector > 0)


async def test_a_number_beyond_float16_becomes_its_largest(serve, tmp_path):
    model = tiny_encoder.write(tmp_path)
    with torch.no_grad():
        model.encoder.layer[-1].output.LayerNorm.weight.mul_(1e6)
    model.save_pretrained(tmp_path)
    async with serve(tmp_path) as server:
        request = embed_request(TEXTS[:1], normalize=False, format="VECTOR_FORMAT_FLOAT16")
        packed = (await server.embedding.Embed(request)).embeddings[0].packed
    numbers = np.frombuffer(packed, "<f2")
    assert np.isfinite(numbers).all()
    assert np.abs(numbers).max() == 65_504


@pytest.mark.parametrize(
    ("change", "code", "field"),
    [
        ({"model": "other"}, Code.NOT_FOUND, "model"),
        ({"texts": []}, Code.INVALID_ARGUMENT, "inputs"),
        ({"texts": [""] * 2049}, Code.INVALID_ARGUMENT, "inputs"),
        ({"texts": ["lift " * 200]}, Code.INVALID_ARGUMENT, "input"),
        ({"dimensions": 65}, Code.INVALID_ARGUMENT, "options.dimensions"),
        ({"dimensions": 0}, Code.INVALID_ARGUMENT, "options.dimensions"),
        ({"pooling": 77}, Code.INVALID_ARGUMENT, "options.pooling"),
        ({"format": 77}, Code.INVALID_ARGUMENT, "options.format"),
        ({"prompt_name": "none"}, Code.INVALID_ARGUMENT, "options.prompt_name"),
        ({"truncate_prompt": 0}, Code.INVALID_ARGUMENT, "options.truncate_prompt"),
    ],
)
async def test_a_wrong_field_is_named(serve, change, code, field):
    async with serve() as server:
        status = await status_of(server.embedding.Embed(embed_request(**change)))
        assert status.code == code
        assert status.fields == [field] or field in status.message
        # The inputs that were not wrong are gone, and the next call is answered.
        assert len((await server.embedding.Embed(embed_request(TEXTS[:2]))).embeddings) == 2


async def test_an_encoder_refuses_to_generate_by_name(serve):
    async with serve() as server:
        start = generation_pb2.Start(text="lift")
        call = server.generation.GenerateOne(generation_pb2.GenerateOneRequest(start=start))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in call:
                pass
        status = Status.of(caught.value)
        assert (status.code, status.reason) == (Code.UNIMPLEMENTED, "UNSUPPORTED")
        assert "EmbeddingService" in status.message


async def test_a_server_of_an_encoder_describes_itself(serve):
    async with serve() as server:
        model = await server.info.GetModelInfo(server_pb2.GetModelInfoRequest())
        assert (model.architecture, model.hidden_size) == ("BertModel", 64)
        info = await server.info.GetServerInfo(server_pb2.GetServerInfoRequest())
        assert info.batching == "dynamic"
        plan = await server.info.PlanMemory(server_pb2.PlanMemoryRequest())
        assert plan.weight_bytes > 0
        assert plan.kv_cache_bytes == 0
        request = tokenizer_pb2.TokenizeRequest(text="lift")
        assert len((await server.tokenizer.Tokenize(request)).token_ids) >= 3


async def test_scores_of_labels_sum_to_one(serve):
    async with serve("labels") as server:
        request = pb.ClassifyRequest(inputs=[pb.EmbedInput(text=text) for text in TEXTS[:4]])
        response = await server.embedding.Classify(request)
        status = await status_of(server.embedding.Embed(embed_request()))
        assert status.code == Code.UNIMPLEMENTED
    assert len(response.results) == 4
    for result in response.results:
        assert [score.label for score in result.scores] == ["LABEL_0", "LABEL_1", "LABEL_2"]
        assert abs(sum(score.score for score in result.scores) - 1) < 1e-6


@pytest.mark.parametrize("kind", ["encoder", "reranker"])
async def test_documents_come_best_first(serve, kind):
    documents = [*TEXTS[:6], TEXTS[0]]
    request = pb.RerankRequest(query=TEXTS[0], documents=documents, truncate_end=True)
    async with serve(kind) as server:
        ranked = (await server.embedding.Rerank(request)).results
        request.top_n = 2
        top = (await server.embedding.Rerank(request)).results
    assert sorted(result.index for result in ranked) == list(range(7))
    scores = [result.score for result in ranked]
    assert scores == sorted(scores, reverse=True)
    assert [result.index for result in top] == [result.index for result in ranked[:2]]
    if kind == "encoder":
        # The query itself, twice: of equals the first of the request is first.
        assert [result.index for result in top] == [0, 6]
        assert abs(top[0].score - 1) < 1e-5


def messages(texts, **options):
    yield pb.EmbedStreamRequest(options=pb.EmbedOptions(**options))
    for number, text in enumerate(texts):
        yield pb.EmbedStreamRequest(request_id=str(number), input=pb.EmbedInput(text=text))


@pytest.mark.parametrize("batching", ["dynamic", "continuous", "static"])
async def test_a_stream_answers_every_input_once_by_its_id(serve, vectors, batching):
    texts = TEXTS * 20
    async with serve(batching=batching, max_num_seqs=16) as server:
        found = {}
        async for response in server.embedding.EmbedStream(messages(texts)):
            assert response.request_id not in found
            found[response.request_id] = np.float32(response.embedding.values)
    assert len(found) == len(texts)
    for number in range(len(texts)):
        assert np.array_equal(found[str(number)], vectors[number % len(TEXTS)])


async def test_a_wrong_input_of_a_stream_hurts_no_other(serve):
    async with serve() as server:
        texts = [TEXTS[0], "lift " * 300, TEXTS[1]]
        call = server.embedding.EmbedStream(messages(texts))
        results = {response.request_id: response async for response in call}
        assert results["1"].error.reason == "PROMPT_TOO_LONG"
        assert len(results["0"].embedding.values) == len(results["2"].embedding.values) == 64


async def test_a_wrong_option_of_a_stream_is_the_status_of_the_call(serve):
    async with serve() as server:
        call = server.embedding.EmbedStream(messages(TEXTS, format=77))
        status = await status_of(anext(aiter(call)))
        assert (status.code, status.fields) == (Code.INVALID_ARGUMENT, ["options.format"])


async def test_an_option_that_the_model_does_not_take_is_named_at_each_input(serve):
    async with serve() as server:
        call = server.embedding.EmbedStream(messages(TEXTS[:2], dimensions=65))
        fields = [response.error.field async for response in call]
        assert fields == ["options.dimensions"] * 2


@pytest.mark.parametrize("field", ["model", "options"])
async def test_model_and_options_are_in_the_first_message_alone(serve, field):
    async with serve() as server:
        message = {"model": "tiny"} if field == "model" else {"options": pb.EmbedOptions()}
        late = [pb.EmbedStreamRequest(), pb.EmbedStreamRequest(**message)]
        status = await status_of(anext(aiter(server.embedding.EmbedStream(iter(late)))))
        assert (status.code, status.fields) == (Code.INVALID_ARGUMENT, [field])


@pytest.mark.parametrize("num_inputs", [0, 2])
async def test_an_idle_stream_ends_by_itself_when_the_server_drains(serve, num_inputs):
    async with serve() as server:
        call = server.embedding.EmbedStream()
        await call.write(pb.EmbedStreamRequest(options=pb.EmbedOptions()))
        for number in range(num_inputs):
            message = pb.EmbedStreamRequest(
                request_id=str(number), input=pb.EmbedInput(text=TEXTS[0])
            )
            await call.write(message)
            assert (await call.read()).request_id == str(number)
        stopping = asyncio.create_task(server.server.stop(grace_s=60))
        # The client does not half-close. A call that the shutdown breaks has no reason.
        if num_inputs:
            assert await call.read() is grpc.aio.EOF
            assert await call.code() is Code.OK
        else:
            status = await status_of(call.read())
            assert (status.code, status.reason) == (Code.UNAVAILABLE, "DRAINING")
        await stopping


async def test_inputs_that_are_live_get_their_vectors_while_the_server_drains(serve):
    async with serve(**PATIENT) as server:
        call = server.embedding.EmbedStream()
        await call.write(pb.EmbedStreamRequest(request_id="a", input=pb.EmbedInput(text=TEXTS[0])))
        await until(lambda: server.server._engine.load().num_waiting)
        stopping = asyncio.create_task(server.server.stop(grace_s=60))
        response = await call.read()
        assert response.error.reason == "DRAINING"
        assert await call.read() is grpc.aio.EOF
        await stopping


async def test_cancelled_calls_leave_nothing_behind(serve, vectors):
    draw = random.Random(0)
    async with serve(max_num_seqs=4, max_num_batched_tokens=64) as server:

        async def one(number):
            call = server.embedding.Embed(embed_request(draw.sample(TEXTS, 8)))
            if number % 3:
                await asyncio.sleep(draw.random() / 50)
                call.cancel()
            try:
                await call
            except (asyncio.CancelledError, grpc.aio.AioRpcError):
                return 0
            return 1

        results = await asyncio.gather(*map(one, range(60)), return_exceptions=True)
        assert sum(result == 1 for result in results) >= 10
        response = await server.embedding.Embed(embed_request())
        for embedding, vector in zip(response.embeddings, vectors, strict=True):
            assert np.array_equal(np.float32(embedding.values), vector)


async def test_quotas_and_deadlines_hold(serve):
    async with serve(server={"tenant_max_requests": 3, "trust_tenant_metadata": True}) as server:
        metadata = (("chairlift-tenant", "a"),)
        call = server.embedding.Embed(embed_request(TEXTS[:8]), metadata=metadata)
        status = await status_of(call)
        assert (status.code, status.reason) == (Code.RESOURCE_EXHAUSTED, "QUOTA_EXCEEDED")
        late = await status_of(server.embedding.Embed(embed_request(TEXTS[:1]), timeout=1e-4))
        assert late.code == Code.DEADLINE_EXCEEDED


ABORT_ALL = generation_pb2.AbortRequest(all=generation_pb2.AllRequests())
PATIENT = {"batching": "dynamic", "batch_window_s": 60.0}
"""Inputs wait for a full batch."""


def of(tenant):
    return {"metadata": (("chairlift-tenant", tenant),)}


async def abort(server, num, **call):
    """Abort requests of a tenant, as many as are meant to be live."""
    while num > 0:
        num -= (await server.generation.Abort(ABORT_ALL, **call)).num_aborted


async def test_inputs_that_another_call_aborts_end_as_aborted(serve):
    async with serve(**PATIENT) as server:
        call = server.embedding.Embed(embed_request(TEXTS[:2]))
        await abort(server, 1)  # the call ends as a whole, and its other input with it
        status = await status_of(call)
        assert (status.code, status.reason) == (Code.ABORTED, "ABORTED")
        stream = server.embedding.EmbedStream(messages(TEXTS[:3]))
        await abort(server, 3)
        errors = [response.error async for response in stream]
        assert [(error.code, error.reason) for error in errors] == [
            (generation_pb2.STATUS_CODE_ABORTED, "ABORTED")
        ] * 3


async def test_tenants_see_and_end_no_inputs_of_each_other(serve, vectors):
    async with serve(server={"trust_tenant_metadata": True}, **PATIENT) as server:
        mine = server.embedding.EmbedStream(messages(TEXTS[:4]), **of("ann"))
        hers = server.embedding.EmbedStream(messages(TEXTS[4:8]), **of("bob"))
        await abort(server, 4, **of("bob"))
        request = generation_pb2.ExplainRequest(request_id="0")
        assert len((await server.generation.Explain(request, **of("ann"))).explanations) == 1
        for tenant in ("bob", "eve"):
            status = await status_of(server.generation.Explain(request, **of(tenant)))
            assert status.code == Code.NOT_FOUND
        assert [response.error.reason async for response in hers] == ["ABORTED"] * 4
        server.server._engine.flush()
        found = {response.request_id: response.embedding.values async for response in mine}
    for number in range(4):
        assert np.array_equal(np.float32(found[str(number)]), vectors[number])


async def test_a_vector_that_is_not_finite_fails_its_input_alone(serve, folders, vectors, tmp_path):
    folder = tmp_path / "nan"
    shutil.copytree(folders["encoder"], folder)
    tensors = load_file(folder / "model.safetensors")
    (broken,) = tiny_encoder.tokenizer()("up", add_special_tokens=False)["input_ids"]
    tensors["embeddings.word_embeddings.weight"][broken] = float("nan")
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    whole = [n for n, text in enumerate(TEXTS) if "up" not in text.split()][:4]
    assert len(whole) == 4
    async with serve(folder) as server:
        status = await status_of(server.embedding.Embed(embed_request(["lift", "go up"])))
        assert (status.code, status.reason) == (Code.INTERNAL, "NUMERIC_FAULT")
        texts = [TEXTS[whole[0]], "up", *(TEXTS[n] for n in whole[1:])]
        call = server.embedding.EmbedStream(messages(texts))
        found = {response.request_id: response async for response in call}
        assert found.pop("1").error.reason == "NUMERIC_FAULT"
        for response, number in zip((found[n] for n in ("0", "2", "3", "4")), whole, strict=True):
            assert np.array_equal(np.float32(response.embedding.values), vectors[number])


async def test_the_largest_call_does_not_hold_up_a_small_one(serve, vectors):
    ended = []
    async with serve(server={"trust_tenant_metadata": True}, max_num_seqs=4) as server:

        async def one(name, request):
            response = await server.embedding.Embed(request, **of(name))
            ended.append(name)
            return response

        # As many inputs as a call takes, together almost as large as a message may be.
        large = embed_request(["x" * 450 + " lift"] * 2048)
        assert 2**19 < large.ByteSize() < 2**20
        task = asyncio.create_task(one("ann", large))
        while not (await server.info.GetLoad(server_pb2.GetLoadRequest())).load.num_waiting:
            pass
        small = await one("bob", embed_request(TEXTS[:1]))
        assert ended == ["bob"]
        assert len((await task).embeddings) == 2048
    assert np.array_equal(np.float32(small.embeddings[0].values), vectors[0])
