"""Requests with adapters: as the merged models answer, whatever else is in the batch."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from chairlift.api.errors import EngineDownError, EngineState, ModelError, Reason, RequestError
from chairlift.api.types import Failed, PrefixCache, Tokens

from tests.engine import adapters, tiny_model
from tests.engine.drive import drain, greedy, run

NUM_TOKENS = 10


@pytest.fixture(scope="module")
def lora(tiny, tmp_path_factory):
    """Adapters of the tiny model by name: their folders, and the models that they merge into."""
    folder = tmp_path_factory.mktemp("adapters")
    kinds = {
        "all": {"rank": 4},
        "some": {"rank": 7, "targets": ("q_proj", "down_proj")},
        "root": {"rank": 16, "use_rslora": True, "dtype": torch.bfloat16},
    }
    folders, models = {}, {"": tiny.reference}
    for seed, (name, kind) in enumerate(kinds.items()):
        folders[name] = adapters.write(folder / name, tiny.reference, seed=seed, **kind)
        models[name] = adapters.merged(tiny.reference, folders[name])
    return SimpleNamespace(folder=folder, folders=folders, models=models)


@pytest.fixture
def engine(make_engine, lora):
    return make_engine(adapters={name: str(path) for name, path in lora.folders.items()})


def with_adapter(name, prompt, max_tokens=NUM_TOKENS, **options):
    return replace(greedy(prompt, max_tokens, ignore_eos=True), adapter=name, **options)


def expected(model, prompt, num_tokens=NUM_TOKENS):
    """The greedy answer of a reference model."""
    ids = list(prompt)
    with torch.no_grad():
        for _ in range(num_tokens):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt) :]


def tokens_of(events):
    return [token for event in events if isinstance(event, Tokens) for token in event.token_ids]


def answers(engine, requests):
    return [tokens_of(events) for events in run(engine, requests)]


def mixed(lora):
    """Requests of the model and of every adapter, in turn, with prompts of many lengths."""
    names = ["", *lora.folders]
    prompts = tiny_model.prompts(12)
    return [(names[i % len(names)], prompt) for i, prompt in enumerate(prompts)]


def test_a_batch_of_adapters_answers_as_their_merged_models(engine, lora):
    cases = mixed(lora)
    got = answers(engine, [with_adapter(*case) for case in cases])
    assert got == [expected(lora.models[name], prompt) for name, prompt in cases]
    # The prompts are answered otherwise by the model alone.
    for (name, prompt), answer in zip(cases, got, strict=True):
        assert (answer == expected(lora.models[""], prompt)) == (name == "")


@pytest.mark.parametrize(
    "settings", [{}, {"dtype": "bfloat16"}, {"quantize": "int8"}, {"quantize": "int4"}]
)
def test_an_answer_has_the_same_bits_in_any_batch(make_engine, lora, settings):
    loaded = {name: str(path) for name, path in lora.folders.items()}
    cases = mixed(lora)

    def log_probabilities(requests, **more):
        engine = make_engine(adapters=loaded, prefix_cache=False, **settings, **more)
        requests = [replace(r, output=replace(r.output, logprobs=True)) for r in requests]
        return [
            [
                (event.token_ids, event.logprobs.logprobs)
                for event in events
                if isinstance(event, Tokens)
            ]
            for events in run(engine, requests)
        ]

    together = log_probabilities([with_adapter(*case) for case in cases])
    for case, answer in zip(cases[:4], together, strict=False):
        alone = log_probabilities([with_adapter(*case)], max_num_batched_tokens=8)
        assert alone == [answer]
    base = [with_adapter(*case) for case in cases if case[0] == ""]
    without = log_probabilities(base)
    assert without == together[:: len(lora.models)]


@pytest.mark.parametrize("quantize", ["int8", "int4"])
def test_an_adapter_changes_a_quantized_model_as_it_changes_the_model(make_engine, lora, quantize):
    engine = make_engine(
        adapters={"all": str(lora.folders["all"])}, quantize=quantize, dtype="float32"
    )
    prompt = tiny_model.prompts()[3]
    events, base = run(
        engine,
        [
            replace(r, output=replace(r.output, logprobs=True))
            for r in (with_adapter("all", prompt, 1), with_adapter("", prompt, 1))
        ],
    )
    with torch.no_grad():
        for name, events_of in (("all", events), ("", base)):
            scores = lora.models[name](torch.tensor([prompt])).logits[0, -1].log_softmax(-1)
            (token,) = tokens_of(events_of)
            got = events_of[0].logprobs.logprobs[0]
            assert got == pytest.approx(float(scores[token]), abs=1.0)


def test_blocks_of_one_adapter_are_no_hit_for_another_or_another_tenant(engine, lora):
    prompt = tiny_model.prompts()[7]

    def cached(name, **options):
        (events,) = run(engine, [with_adapter(name, prompt, **options)])
        assert tokens_of(events) == expected(lora.models[name], prompt)
        return events[-1].usage.cached_tokens

    names = list(lora.models)
    assert [cached(name) for name in names] == [0] * len(names)
    assert all(cached(name) > 64 for name in names)
    assert cached("all", tenant="another") == 0
    assert cached("all", prefix_cache=PrefixCache(salt="other")) == 0


def test_an_adapter_that_is_loaded_again_finds_no_block_of_before(engine, lora, tiny, tmp_path):
    prompt = tiny_model.prompts()[7]
    (before,) = run(engine, [with_adapter("all", prompt)])
    assert engine.adapters.unload("all")
    other = adapters.write(tmp_path / "other", tiny.reference, seed=9)
    engine.adapters.load("all", other)
    (after,) = run(engine, [with_adapter("all", prompt)])
    assert after[-1].usage.cached_tokens == 0
    assert tokens_of(after) == expected(adapters.merged(tiny.reference, other), prompt)
    assert tokens_of(after) != tokens_of(before)


def test_an_adapter_in_use_is_unloaded_when_its_requests_have_ended(engine, lora):
    prompt = tiny_model.prompts()[1]
    request = with_adapter("all", prompt)
    late = engine.prepare(request)
    accepted = engine.add(request)
    assert not engine.adapters.unload("all")
    for refused in (request, late):
        with pytest.raises(RequestError) as caught:
            engine.add(refused)
        assert (caught.value.reason, caught.value.field) == (Reason.UNKNOWN_ADAPTER, "adapter")
    events = drain(engine)[accepted.request_id]
    assert tokens_of(events) == expected(lora.models["all"], prompt)
    assert engine.adapters.unload("all")
    assert "all" not in engine.adapters.names("")
    engine.check_invariants()


def test_a_cancelled_request_leaves_its_adapter(engine):
    accepted = engine.add(with_adapter("all", [1, 2, 3], 100))
    engine.step()
    engine.abort(accepted.request_id)
    drain(engine)
    assert engine.adapters.unload("all")


def test_preempted_requests_keep_their_adapters(make_engine, lora, kv_blocks):
    engine = make_engine(
        adapters={name: str(path) for name, path in lora.folders.items()},
        kv_cache_memory=kv_blocks(9),
        max_num_seqs=4,
    )
    cases = [(name, prompt[:40]) for name, prompt in mixed(lora)[4:]]
    got = answers(engine, [with_adapter(*case, 24) for case in cases])
    assert engine.load().num_preemptions > 0
    assert got == [expected(lora.models[name], prompt, 24) for name, prompt in cases]


def test_every_answer_of_a_request_has_its_adapter(engine, lora):
    prompt = tiny_model.prompts()[2]
    request = with_adapter("all", prompt)
    # The row of each answer had another adapter before.
    run(engine, [with_adapter("some", [i, 5]) for i in range(1, 9)])
    (events,) = run(engine, [replace(request, sampling=replace(request.sampling, n=3))])
    by_index = [[e for e in events if getattr(e, "index", None) == i] for i in range(3)]
    assert list(map(tokens_of, by_index)) == [expected(lora.models["all"], prompt)] * 3


def test_a_step_that_fails_for_one_request_runs_again_for_the_others_with_their_adapters(
    engine, lora, monkeypatch
):
    cases = mixed(lora)[:5]
    wanted = [expected(lora.models[name], prompt, 3) for name, prompt in cases]
    # A token that no other request sees.
    harmful = max({*range(300)}.difference(*(prompt for _, prompt in cases), *wanted))
    model = engine.runner.model
    forward = model.forward

    def fails(input_ids, *rest):
        if harmful in input_ids.tolist():
            raise RuntimeError
        return forward(input_ids, *rest)

    monkeypatch.setattr(model, "forward", fails)
    *good, bad = run(
        engine, [*(with_adapter(*case, 3) for case in cases), with_adapter("all", [harmful])]
    )
    assert isinstance(bad[-1], Failed)
    assert [tokens_of(events) for events in good] == wanted


def test_tenants_see_only_the_adapters_that_are_theirs(make_engine, lora):
    engine = make_engine(
        adapters={"all": str(lora.folders["all"]), "some": str(lora.folders["some"])},
        adapter_tenants=["all=ann", "all=bob"],
    )
    assert [engine.adapters.names(tenant) for tenant in ("ann", "bob", "eve", "")] == [
        *[["all", "some"]] * 2,
        *[["some"]] * 2,
    ]
    assert engine.add(with_adapter("all", [1], tenant="bob"))
    messages = set()
    for name in ("all", "no-such-adapter"):
        with pytest.raises(RequestError) as caught:
            engine.add(with_adapter(name, [1], tenant="eve"))
        messages.add(str(caught.value))
    assert len(messages) == 1, "a refusal tells which adapters others have"


def test_the_number_of_adapters_and_their_names_are_limited(make_engine, lora):
    engine = make_engine(adapters={"all": str(lora.folders["all"])}, max_adapters=2)
    engine.adapters.load("second", lora.folders["some"])
    with pytest.raises(RequestError, match="at most 2"):
        engine.adapters.load("third", lora.folders["some"])
    with pytest.raises(RequestError, match="got one that is ready"):
        engine.adapters.load("all", lora.folders["some"])
    for name in ("", ".", "..", "a/b", "/etc", "a" * 65, "-x", "a\n"):
        with pytest.raises(RequestError, match=r"^name: expected 1 to 64 letters"):
            engine.adapters.load(name, lora.folders["some"])
    assert engine.adapters.unload("second")
    engine.adapters.load("third", lora.folders["some"])
    with pytest.raises(RequestError, match="no adapter of that name"):
        engine.adapters.unload("second")


def test_an_adapter_on_demand_makes_room_when_nothing_holds_it(make_engine, lora):
    engine = make_engine(max_adapters=1)
    adapter = engine.adapters.begin_load("some", lora.folders["some"], is_on_demand=True)
    assert not engine.adapters.make_room()
    engine.adapters.install(adapter, engine.adapters.read(adapter))
    # The request that it was loaded for has not named it yet.
    assert not engine.adapters.make_room()
    prepared = engine.prepare(with_adapter("some", [3, 4]))
    assert not engine.adapters.make_room()
    request_id = engine.add(prepared).request_id
    del prepared
    assert not engine.adapters.make_room()
    engine.abort(request_id)
    engine.step()
    assert engine.adapters.make_room()
    assert engine.adapters.list() == []
    engine.adapters.load("all", lora.folders["all"])
    assert not engine.adapters.make_room()


def test_a_model_without_adapters_takes_none(make_engine, lora):
    engine = make_engine()
    with pytest.raises(RequestError, match="at most 0"):
        engine.adapters.load("all", lora.folders["all"])
    with pytest.raises(RequestError) as caught:
        engine.add(with_adapter("all", [1]))
    assert caught.value.reason is Reason.UNKNOWN_ADAPTER


def test_a_bad_adapter_of_the_settings_fails_alone_where_the_caller_says_so(make_engine, lora):
    given = {"good": str(lora.folders["all"]), "bad": str(lora.folder / "missing")}
    with pytest.raises(ModelError, match=r"^adapter bad: .*missing: expected a folder"):
        make_engine(adapters=given)
    failed = []
    engine = make_engine(adapters=given, on_bad_adapter=lambda name, error: failed.append(name))
    assert (failed, engine.adapters.names("")) == (["bad"], ["good"])


async def test_an_engine_loads_while_it_answers_and_fails_what_outlives_an_unload(
    make_engine, lora
):
    from chairlift.engine.async_engine import AsyncEngine

    engine = AsyncEngine.of(make_engine(max_adapters=2))
    await engine.start()
    try:
        name, prompt = "all", tiny_model.prompts()[1]
        running = engine.generate(with_adapter("", prompt, 200))
        first = await anext(running)
        await engine.adapters.load(engine.engine, name, lora.folders[name])
        # However fast the model is: it waits for more credit.
        victim = engine.generate(with_adapter(name, prompt, 200, credit=5))
        await anext(victim)
        assert await engine.adapters.unload(engine.engine, name, timeout_s=0.001) == 1
        (last,) = [event async for event in victim][-1:]
        assert isinstance(last, Failed)
        assert last.reason is Reason.UNKNOWN_ADAPTER
        events = [first, *[event async for event in running]]
        assert tokens_of(events)[:20] == expected(lora.models[""], prompt, 20)
        assert engine.engine.adapters.list() == []
        with pytest.raises(RequestError, match="no adapter of that name"):
            await engine.adapters.unload(engine.engine, name, timeout_s=1)
        with pytest.raises(ModelError):
            await engine.adapters.load(engine.engine, "bad", lora.folder / "missing")
        assert engine.engine.adapters.list() == []
    finally:
        await engine.stop()


class Full:
    """A table that memory has no room for once."""

    def __init__(self, table):
        self.table, self.fails = table, True

    def set(self, slot, update):
        if update is not None and self.fails:
            self.fails = False
            raise MemoryError
        self.table.set(slot, update)

    def __getattr__(self, name):
        return getattr(self.table, name)


async def test_an_adapter_that_cannot_be_put_into_its_slot_fails_alone(make_engine, lora):
    from chairlift.engine.async_engine import AsyncEngine

    inner = make_engine(max_adapters=1)
    engine, tables = AsyncEngine.of(inner), inner.adapters._tables
    *layers, last = tables.layers
    # The layers before have it by then.
    tables.layers = (*layers, last._replace(down=Full(last.down)))
    await engine.start()
    try:
        with pytest.raises(ModelError, match="cannot be put into its slot: MemoryError"):
            await engine.adapters.load(engine.engine, "all", lora.folders["all"])
        assert engine.state is EngineState.SERVING
        assert engine.engine.adapters.list() == []
        tables.layers = (*layers, last)
        # Its slot is free, and empty: another adapter has all of it.
        await engine.adapters.load(engine.engine, "some", lora.folders["some"])
        prompt = tiny_model.prompts()[1]
        for name in ("some", ""):
            events = [e async for e in engine.generate(with_adapter(name, prompt))]
            assert tokens_of(events) == expected(lora.models[name], prompt)
    finally:
        await engine.stop()


@pytest.mark.parametrize(("error", "survives"), [(ValueError, True), (EngineDownError, False)])
async def test_an_error_of_a_call_on_the_engines_thread_is_its_callers(
    make_engine, error, survives
):
    from chairlift.engine.async_engine import AsyncEngine

    engine = AsyncEngine.of(make_engine())
    await engine.start()
    try:

        def fail(_engine):
            message = "of the call"
            raise error(message)

        future = engine._running().call(fail)
        with pytest.raises(error, match="of the call"):
            await asyncio.wrap_future(future)
        events = [e async for e in engine.generate(with_adapter("", [1, 2, 3], 3))]
        assert isinstance(events[-1], Failed) is not survives
    finally:
        await engine.stop()
