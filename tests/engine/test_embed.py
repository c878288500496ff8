"""Vectors and scores by the engine, against `transformers`, and whatever else runs beside them."""

import random
import shutil

import numpy as np
import pytest
import torch
from chairlift.api.errors import ConfigError, Reason, RequestError
from chairlift.api.types import (
    Failed,
    Finished,
    Pooling,
    PoolingTask,
    Request,
    Sampling,
    Schedule,
    Stopping,
    Tokens,
)
from chairlift.engine.embed_all import pool_all
from chairlift.engine.engine import Engine
from safetensors.torch import load_file, save_file

from tests.engine import tiny_encoder

SENTENCE = {
    "modules.json": [
        {"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"idx": 2, "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
    ],
    "1_Pooling/config.json": {"pooling_mode_mean_tokens": True},
    "config_sentence_transformers.json": {"prompts": {"query": "ride: "}},
}


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("encoder")
    return tiny_encoder.write(folder, sentence=SENTENCE), folder


@pytest.fixture(scope="module")
def gemma(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gemma")
    return tiny_encoder.write_gemma(folder, SENTENCE), folder


@pytest.fixture(scope="module")
def reranker(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reranker")
    return tiny_encoder.write(folder, num_labels=1), folder


def vectors(engine, texts, **pooling):
    requests = [Request(text, pooling=Pooling(**pooling)) for text in texts]
    results = dict(pool_all(engine, requests))
    return [results[place].vector() for place in range(len(texts))]


def expected(model, text, pooling):
    inputs = tiny_encoder.tokenizer()(text, return_tensors="pt", return_token_type_ids=True)
    with torch.inference_mode():
        hidden = model(**inputs).last_hidden_state[0]
    pooled = {
        "mean": hidden.mean(0),
        "cls": hidden[0],
        "last": hidden[-1],
        "max": hidden.max(0).values,
    }[pooling]
    return torch.nn.functional.normalize(pooled, dim=0).numpy()


@pytest.mark.parametrize("pooling", ["mean", "cls", "last", "max"])
def test_vectors_equal_those_of_transformers(encoder, pooling):
    model, folder = encoder
    texts = tiny_encoder.texts(12)
    with Engine(folder, dtype="float32", max_num_batched_tokens=64, max_num_seqs=4) as engine:
        for text, vector in zip(texts, vectors(engine, texts, pooling=pooling), strict=True):
            np.testing.assert_allclose(vector, expected(model, text, pooling), atol=2e-6)


def test_layers_of_a_decoder_give_the_vectors_of_transformers(gemma):
    model, folder = gemma
    texts = tiny_encoder.texts(12)
    with Engine(folder, dtype="float32", max_num_batched_tokens=64, max_num_seqs=4) as engine:
        for text, vector in zip(texts, vectors(engine, texts), strict=True):
            inputs = tiny_encoder.tokenizer()(text, return_tensors="pt")
            with torch.inference_mode():
                hidden = model(inputs["input_ids"]).last_hidden_state[0]
            exact = torch.nn.functional.normalize(hidden.mean(0), dim=0).numpy()
            np.testing.assert_allclose(vector, exact, atol=2e-6)
        with pytest.raises(RequestError, match="this model generates no text"):
            engine.prepare(Request("lift"))


@pytest.mark.parametrize("kind", ["encoder", "gemma"])
@pytest.mark.parametrize("batching", ["continuous", "dynamic", "static"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_vector_has_the_same_bits_under_every_policy_and_budget(request, kind, batching, dtype):
    _, folder = request.getfixturevalue(kind)
    texts = tiny_encoder.texts(20)
    with Engine(folder, dtype=dtype, max_num_seqs=1) as engine:
        alone = vectors(engine, texts)
    for tokens, rows in ((16, 3), (50, 7), (4096, 64)):
        settings = {"max_num_batched_tokens": tokens, "max_num_seqs": rows, "batching": batching}
        with Engine(folder, dtype=dtype, **settings) as engine:
            for vector, single in zip(vectors(engine, texts), alone, strict=True):
                assert np.array_equal(vector, single)


def test_dimensions_and_length_are_as_asked(encoder):
    _, folder = encoder
    with Engine(folder, dtype="float32") as engine:
        (whole,) = vectors(engine, ["chair lift"], normalize=False)
        (short,) = vectors(engine, ["chair lift"], dimensions=10)
    np.testing.assert_allclose(short, whole[:10] / np.linalg.norm(whole[:10]), rtol=1e-5)
    assert abs(np.linalg.norm(whole) - 1) > 0.1


def test_a_prompt_goes_before_the_input_by_its_name(encoder):
    _, folder = encoder
    with Engine(folder, dtype="float32") as engine:
        (named,) = vectors(engine, ["lift"], prompt_name="query")
        (written,) = vectors(engine, ["ride: lift"])
        assert np.array_equal(named, written)
        with pytest.raises(RequestError, match="prompt_name: expected one of the model's prompts"):
            vectors(engine, ["lift"], prompt_name="unknown")


def test_a_long_input_is_refused_or_truncated(encoder):
    _, folder = encoder
    text = " ".join(["lift"] * 200)
    with Engine(folder, dtype="float32") as engine:
        with pytest.raises(RequestError, match="expected at most 96 tokens, got 202") as refused:
            vectors(engine, [text])
        assert "maximum context length is 96 tokens" in refused.value.message
        (cut,) = vectors(engine, [text], truncate_end=True)
        (short,) = vectors(engine, [" ".join(["lift"] * 94)])
    assert np.array_equal(cut, short)


def test_scores_of_pairs_equal_those_of_transformers(reranker):
    model, folder = reranker
    pairs = list(zip(tiny_encoder.texts(6), tiny_encoder.texts(6, seed=1), strict=True))
    pairs = [(" ".join(a.split()[:9]), " ".join(b.split()[:30])) for a, b in pairs]
    with Engine(folder, dtype="float32") as engine:
        requests = [
            Request(a, pooling=Pooling(PoolingTask.CLASSIFY, text_pair=b)) for a, b in pairs
        ]
        results = dict(pool_all(engine, requests))
        for place, (a, b) in enumerate(pairs):
            inputs = tiny_encoder.tokenizer()(a, b, return_tensors="pt", return_token_type_ids=True)
            with torch.inference_mode():
                score = torch.sigmoid(model(**inputs).logits[0]).numpy()
            np.testing.assert_allclose(results[place].scores(is_multi_label=True), score, atol=1e-5)


def test_what_a_model_does_not_give_is_refused_by_name(encoder, reranker):
    with Engine(encoder[1]) as engine:
        with pytest.raises(RequestError, match="this model generates no text") as caught:
            engine.prepare(Request("lift"))
        assert caught.value.reason is Reason.UNSUPPORTED
        with pytest.raises(RequestError, match="this model has no classifier"):
            engine.prepare(Request("lift", pooling=Pooling(PoolingTask.CLASSIFY)))
        for dimensions in (0, 65):
            with pytest.raises(RequestError, match="dimensions: expected"):
                engine.prepare(Request("lift", pooling=Pooling(dimensions=dimensions)))
        with pytest.raises(RequestError, match="pooling: expected"):
            engine.prepare(Request("lift", pooling=Pooling(pooling="sum")))
        with pytest.raises(RequestError, match="at least one token"):
            engine.prepare(Request([], pooling=Pooling()))
    with (
        Engine(reranker[1]) as engine,
        pytest.raises(RequestError, match="this model gives scores and no vectors"),
    ):
        engine.prepare(Request("lift", pooling=Pooling()))


@pytest.mark.parametrize(
    ("setting", "value"), [("device", "cuda"), ("kv_cache_dtype", "int8"), ("max_adapters", 2)]
)
def test_a_setting_that_an_encoder_cannot_follow_is_refused(encoder, setting, value):
    with pytest.raises(ConfigError, match=f"{setting}: expected"):
        Engine(encoder[1], **{setting: value})


def test_a_thousand_random_cancels_leave_nothing_and_change_no_vector(encoder):
    _, folder = encoder
    texts, draw = tiny_encoder.texts(40), random.Random(3)
    with Engine(folder, dtype="float32", max_num_batched_tokens=80, max_num_seqs=8) as engine:
        before = vectors(engine, texts)
        live, num_cancelled, num_ended = {}, 0, 0
        while num_cancelled < 1000:
            for _ in range(draw.randrange(12)):
                place = draw.randrange(len(texts))
                schedule = Schedule(queue_timeout_s=None)
                request = Request(texts[place], pooling=Pooling(), schedule=schedule)
                prepared = engine.prepare(request)
                live[engine.add(prepared).request_id] = place, prepared.pooled
            for request_id in draw.sample(sorted(live), min(len(live), draw.randrange(6))):
                num_cancelled += engine.abort(request_id)
            engine.flush()
            for event in engine.step():
                if not isinstance(event, Finished):
                    continue
                place, pooled = live.pop(event.request_id)
                if pooled.raw is not None:
                    assert np.array_equal(pooled.vector(), before[place])
                    num_ended += 1
        while engine.has_work:
            engine.flush()
            engine.step()
        assert num_ended > 100
        engine.check_invariants()
        assert engine.load().num_running == engine.load().num_waiting == 0


def test_a_decoder_gives_vectors_beside_text_with_the_same_bits(tiny):
    prompt = [5, 9, 33, 70, 12]
    with Engine(tiny.folder, dtype="float32", max_num_batched_tokens=16, max_num_seqs=8) as engine:
        pooling = Pooling(normalize=False)
        ((_, alone),) = pool_all(engine, [Request(prompt, pooling=pooling)])
        greedy = {"sampling": Sampling(temperature=0.0), "stopping": Stopping(max_tokens=12)}
        (answer,) = engine.generate([prompt], **greedy)
        prepared = engine.prepare(Request(prompt, pooling=pooling))
        text_id = engine.add(Request(prompt, **greedy)).request_id
        events = engine.step()
        engine.add(prepared)
        while engine.has_work:
            events += engine.step()
    own = [e for e in events if isinstance(e, Tokens) and e.request_id == text_id]
    tokens = [token for event in own for token in event.token_ids]
    assert np.array_equal(prepared.pooled.vector(), alone.vector())
    assert tokens == answer.token_ids
    assert alone.vector().shape == (64,)


def test_a_decoders_vector_is_the_last_hidden_state_of_transformers(tiny):
    prompt = [5, 9, 33, 70, 12] * 9
    with Engine(tiny.folder, dtype="float32", max_num_batched_tokens=16, max_num_seqs=8) as engine:
        requests = [Request(prompt, pooling=Pooling(normalize=False))]
        ((_, pooled),) = pool_all(engine, requests)
    with torch.inference_mode():
        hidden = tiny.reference.model(torch.tensor([prompt])).last_hidden_state[0, -1]
    np.testing.assert_allclose(pooled.vector(), hidden.numpy(), atol=1e-4)


def test_a_decoders_vector_reads_no_prefix_of_another_tenant(tiny):
    prompt = list(range(1, 65))
    with Engine(tiny.folder, dtype="float32") as engine:

        def embed(tenant):
            prepared = engine.prepare(Request(prompt, pooling=Pooling(), tenant=tenant))
            engine.add(prepared)
            events = []
            while engine.has_work:
                events += engine.step()
            return events[-1].usage.cached_tokens, prepared.pooled.vector()

        (none, first), (some, again), (others, foreign) = map(embed, ("ann", "ann", "bob"))
    assert (none, others) == (0, 0)
    assert some > 0
    assert np.array_equal(first, again)
    assert np.array_equal(first, foreign)


def test_a_decoders_vector_that_is_not_finite_fails_alone(tiny, tmp_path):
    shutil.copytree(tiny.folder, tmp_path / "nan")
    path = tmp_path / "nan" / "model.safetensors"
    tensors = load_file(path)
    tensors["model.embed_tokens.weight"][70] = float("nan")
    save_file(tensors, path, {"format": "pt"})
    with Engine(tmp_path / "nan", dtype="float32") as engine:
        whole = Request([5, 9], pooling=Pooling())
        ((_, alone),) = pool_all(engine, [whole])
        kept = engine.prepare(whole)
        engine.add(kept)
        engine.add(Request([5, 70], pooling=Pooling()))
        events = []
        while engine.has_work:
            events += engine.step()
        (failed,) = (event for event in events if isinstance(event, Failed))
        assert failed.reason is Reason.NUMERIC_FAULT
        assert np.array_equal(kept.pooled.vector(), alone.vector())
        engine.check_invariants()


def test_a_bulk_of_any_size_is_read_as_the_queue_has_room(encoder):
    texts, num_read, num_done, furthest = tiny_encoder.texts(50), 0, 0, 0

    def requests():
        nonlocal num_read
        for number in range(3000):
            num_read += 1
            yield Request(texts[number % 50], pooling=Pooling())

    with Engine(encoder[1], max_queued_requests=40, max_num_seqs=8) as engine:
        for _ in pool_all(engine, requests()):
            num_done += 1
            furthest = max(furthest, num_read - num_done)
    assert num_done == num_read == 3000
    assert furthest <= 40 + 8 + 1
