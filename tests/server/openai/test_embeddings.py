"""`/v1/embeddings` by the real client, and `/v1/rerank`."""

import asyncio
import base64
import json

import numpy as np
import openai
import pytest
from chairlift.server.protocols.openai.embeddings import embeddings_job

from tests.engine import tiny_encoder


async def test_the_client_gets_vectors_in_order(api):
    async with api() as served:
        create = served.client.embeddings.create
        inputs = ["one two", "three", "one two"]
        # The client asks for base64, and decodes it.
        response = await create(model="tiny", input=inputs)
        plain = await create(model="tiny", input=inputs, encoding_format="float")
        ids = await create(model="tiny", input=[5, 6, 7], dimensions=10)
    vectors = [np.float32(item.embedding) for item in response.data]
    assert [item.index for item in response.data] == [0, 1, 2]
    assert np.array_equal(vectors[0], vectors[2])
    assert not np.array_equal(vectors[0], vectors[1])
    assert np.array_equal(np.float32(plain.data[1].embedding), vectors[1])
    assert response.usage.prompt_tokens == response.usage.total_tokens > 3
    assert len(ids.data) == 1
    assert len(ids.data[0].embedding) == 10
    assert abs(np.linalg.norm(ids.data[0].embedding) - 1) < 1e-5


@pytest.mark.parametrize("form", ["float", "base64"])
async def test_other_work_has_its_turn_while_many_vectors_are_written(form):
    job = embeddings_job({"input": ["a"] * 300, "encoding_format": form}, ["tiny"])
    results = [(np.full(64, number, np.float32), 1) for number in range(300)]
    writing = asyncio.create_task(job.body(results))
    num_turns = 0
    while not writing.done():
        await asyncio.sleep(0)
        num_turns += 1
    assert num_turns >= 300
    assert json.loads(await writing) == job.answer(results)


async def test_base64_is_little_endian_float32(api):
    async with api() as served:
        body = {"model": "tiny", "input": "one", "encoding_format": "base64"}
        packed = (await served.post("/v1/embeddings", body)).json()["data"][0]["embedding"]
        plain = (await served.post("/v1/embeddings", {"model": "tiny", "input": "one"})).json()
    assert np.array_equal(
        np.frombuffer(base64.b64decode(packed), "<f4"),
        np.float32(plain["data"][0]["embedding"]),
    )


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"input": []}, "input"),
        ({"input": {}}, "input"),
        ({"input": [None]}, "input"),
        ({"input": ""}, "input"),
        ({"dimensions": 65}, "dimensions"),
        ({"dimensions": "x"}, "dimensions"),
        ({"encoding_format": "int9"}, "encoding_format"),
        ({"stream": True}, "stream"),
        ({"input": "one " * 400}, "input"),
    ],
)
async def test_a_wrong_field_is_named(api, change, param):
    async with api() as served:
        body = {"model": "tiny", "input": "one", **change}
        response = await served.post("/v1/embeddings", body)
        assert response.status == 400
        assert response.error["param"] == param


async def test_an_unknown_model_is_not_found(api):
    async with api() as served:
        with pytest.raises(openai.NotFoundError):
            await served.client.embeddings.create(model="other", input="one")


async def test_documents_are_ranked(api):
    async with api() as served:
        body = {"query": "one two", "documents": ["three", {"text": "one two"}], "top_n": 1}
        response = await served.post("/v1/rerank", {**body, "return_documents": True})
        (best,) = response.json()["results"]
        assert best["index"] == 1
        assert best["document"] == {"text": "one two"}
        assert abs(best["relevance_score"] - 1) < 1e-5
        for change in ({"documents": []}, {"documents": [1]}, {"top_n": 0}):
            assert (await served.post("/v1/rerank", {**body, **change})).status == 400


async def test_the_paths_of_vllm_and_cohere_rank_too(api):
    async with api() as served:
        body = {"query": "one two", "documents": ["three", "one two"]}
        first = await served.post("/v1/rerank", body)
        for path in ("/v2/rerank", "/rerank"):
            assert (await served.post(path, body)).json() == first.json()


async def test_a_query_is_needed(api):
    async with api() as served:
        for query in ({}, {"query": None}, {"query": ""}, {"query": 5}):
            body = {"documents": ["three", "one two"], **query}
            response = await served.post("/v1/rerank", body)
            assert (response.status, response.error["param"]) == (400, "query")
            assert response.error["message"].startswith("query: expected")


async def test_errors_say_what_an_http_user_can_do(api, tmp_path):
    tiny_encoder.write(tmp_path)
    async with api(model=tmp_path) as served:
        (model,) = (await served.get("/v1/models")).json()["data"]
        most = model["max_model_len"]
        assert most == 96
        for ids, status in ((most, 200), (most + 1, 400)):
            response = await served.post("/v1/embeddings", {"input": [5] * ids})
            assert response.status == status
        assert response.error["code"] == "context_length_exceeded"
        assert f"maximum context length is {most} tokens" in response.error["message"]
        assert response.error["message"].endswith("leave out the end")
        for cut in ({"truncate": True}, {"truncate_prompt_tokens": -1}):
            body = {"input": [5] * (most + 1), **cut}
            assert (await served.post("/v1/embeddings", body)).status == 200
        response = await served.post("/v1/embeddings", {"input": ["a"] * 2049})
        assert response.error["message"].endswith("1 to 2048 of either, got 2049")
        response = await served.post("/v1/completions", {"prompt": "one"})
        assert (response.status, response.error["param"]) == (400, "model")
        assert "/v1/embeddings" in response.error["message"]


async def test_one_list_of_ids_may_be_longer_than_the_list_of_inputs(api):
    async with api() as served:
        body = {"input": [5] * 3000, "truncate": True}
        response = await served.post("/v1/embeddings", body)
        assert response.status == 200
        assert len(response.json()["data"]) == 1


PROMPTS = {"query": "up: ", "passage": "down: ", "classification": "ride: "}


def with_prompts(folder, prompts, **general):
    tiny_encoder.write(folder)
    described = json.dumps({"prompts": prompts, **general})
    (folder / "config_sentence_transformers.json").write_text(described)
    module = {"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"}
    (folder / "modules.json").write_text(json.dumps([module]))
    return folder


async def vector(served, text, **fields):
    body = {"model": "tiny", "input": text, **fields}
    response = await served.post("/v1/embeddings", body)
    assert response.status == 200, response.error
    return response.json()["data"][0]["embedding"]


@pytest.mark.parametrize(
    ("given", "before"),
    [
        ("query", "up: "),
        ("search_query", "up: "),
        ("document", "down: "),
        ("passage", "down: "),
        ("search_document", "down: "),
        ("classification", "ride: "),
        (None, ""),
    ],
)
async def test_an_input_type_names_the_prompt(api, tmp_path, given, before):
    async with api(model=with_prompts(tmp_path, PROMPTS)) as served:
        typed = await vector(served, "lift", input_type=given)
        assert typed == await vector(served, f"{before}lift")


@pytest.mark.parametrize("given", ["query", "search_document", "own"])
async def test_without_a_prompt_for_it_a_role_has_none(api, tmp_path, given):
    folder = with_prompts(tmp_path, {"own": "x: "}, default_prompt_name="own")
    async with api(model=folder) as served:
        typed = await vector(served, "lift", input_type=given)
        assert typed == await vector(served, "lift", prompt_name="own" if given == "own" else "")


async def test_a_prompt_before_token_ids_is_refused_by_name(api, tmp_path):
    async with api(model=with_prompts(tmp_path, PROMPTS)) as served:
        for field in ("input_type", "prompt_name"):
            body = {"model": "tiny", "input": [5, 6], field: "query"}
            response = await served.post("/v1/embeddings", body)
            assert (response.status, response.error["param"]) == (400, field)
        body = {"model": "tiny", "input": [5, 6]}
        assert (await served.post("/v1/embeddings", body)).status == 200


@pytest.mark.parametrize(
    "fields",
    [
        {"input_type": "clustering"},
        {"input_type": 3},
        {"input_type": "query", "prompt_name": "query"},
    ],
)
async def test_an_input_type_that_is_no_prompt_is_refused_by_name(api, tmp_path, fields):
    async with api(model=with_prompts(tmp_path, PROMPTS)) as served:
        response = await served.post("/v1/embeddings", {"model": "tiny", "input": "lift", **fields})
        assert (response.status, response.error["param"]) == (400, "input_type")


async def test_a_model_without_prompts_takes_any_input_type(api, tmp_path):
    async with api(model=with_prompts(tmp_path, {})) as served:
        assert await vector(served, "lift", input_type="clustering") == await vector(served, "lift")


async def test_a_ranking_puts_prompts_before_query_and_documents(api, tmp_path):
    async with api(model=with_prompts(tmp_path, PROMPTS)) as served:
        body = {"model": "tiny", "query": "lift", "documents": ["chair"], "input_type": "x"}
        response = await served.post("/v1/rerank", body)
        (entry,) = response.json()["results"]
        query = await vector(served, "up: lift")
        document = await vector(served, "down: chair")
        cosine = np.dot(query, document) / np.linalg.norm(query) / np.linalg.norm(document)
        assert abs(entry["relevance_score"] - cosine) < 1e-5
