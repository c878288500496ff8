"""Which draft models an engine takes, and what their memory is."""

from types import SimpleNamespace

import pytest
from chairlift import Engine
from chairlift.api.errors import ConfigError
from chairlift.api.types import Request, Sampling, Stopping
from chairlift.engine.loading.load import replan_memory

from tests.engine import tiny_encoder, tiny_model
from tests.engine.drive import greedy, run, token_ids
from tests.engine.test_draft_model import watch_passes
from tests.smollm2 import needs_smollm2


@pytest.fixture
def make_drafting(make_engine, tiny):
    """Build engines whose model drafts for itself."""
    return lambda **settings: make_engine(draft=str(tiny.folder), drafts="lookup", **settings)


def plan_of(engine, **changes):
    return replan_memory(engine.config, engine.model_config, **changes)[0]


def test_the_tokenizer_must_be_that_of_the_model(make_engine, tiny, tmp_path):
    def refused(draft):
        read = []
        with pytest.raises(ConfigError) as refusal:
            make_engine(
                draft=str(draft), drafts="lookup", on_progress=lambda *count: read.append(count)
            )
        assert read == [], "no weight is read"
        return str(refusal.value)

    fewer, changed = tmp_path / "fewer", tmp_path / "changed"
    tiny_model.write(fewer)
    tiny_model.write_tokenizer(fewer, 300)
    expected = f"draft: expected the tokenizer of {tiny.folder}, got that of"
    assert refused(fewer) == f"{expected} {fewer}: 120 tokens instead of 338"
    tiny_model.write(changed)
    for file in changed.glob("*token*.json"):
        file.write_text(file.read_text().replace("<eos>", "<end>"))
    assert refused(changed) == f"{expected} {changed}: token 0 is b'<end>' instead of b'<eos>'"
    assert refused(tmp_path / "none").startswith("draft: ")


@pytest.fixture(scope="module")
def models(tmp_path_factory, tiny):
    """A decoder, a hybrid, an encoder, and a model of two windows."""
    root = tmp_path_factory.mktemp("models")
    tiny_encoder.write(root / "encoder")
    for name, family in (
        ("hybrid", "qwen3.5, heads that share keys"),
        ("windows", "gemma3, windows, two ropes"),
    ):
        tiny_model.write_family(root / name, family)
    return SimpleNamespace(tiny=tiny.folder, root=root)


@pytest.mark.parametrize(
    ("model", "draft", "settings", "message"),
    [
        ("hybrid", "tiny", {}, "^draft: expected off for a model with a recurrent state, got"),
        ("encoder", "tiny", {}, "^draft: expected none with an encoder, got"),
        ("tiny", "hybrid", {}, "^draft: expected a model without recurrent states, got"),
        ("tiny", "encoder", {}, "^draft: expected a model that generates text, got the encoder"),
        ("tiny", "windows", {}, "^draft: expected a model whose layers share one window, got"),
        ("tiny", "tiny", {"drafts": "off"}, "^drafts: expected lookup with a draft model, got off"),
        ("tiny", "tiny", {"steps_in_flight": 2}, "^steps_in_flight: expected 1 with a draft model"),
        (
            *("tiny", "tiny", {"max_num_batched_tokens": 8}),
            "^max_num_batched_tokens: expected more than max_num_seqs .8. with a draft model",
        ),
        (
            "tiny",
            None,
            {"draft_quantize": "int4"},
            "^draft_quantize: expected none without a draft",
        ),
    ],
)
def test_what_has_no_draft_model_says_so(make_engine, models, model, draft, settings, message):
    def folder(name):
        return models.tiny if name == "tiny" else models.root / name

    settings = {"drafts": None, **settings}
    if draft is not None:
        settings["draft"] = str(folder(draft))
    with pytest.raises(ConfigError, match=message):
        make_engine(folder(model), **settings)


def test_the_weights_of_both_are_reported_while_they_are_read(make_drafting):
    read = []
    make_drafting(on_progress=lambda done, total: read.append(done == total))
    assert read.count(True) == 2
    assert read[-1]


def test_its_memory_is_part_of_the_plan(make_drafting, monkeypatch):
    engine = make_drafting()
    plan = plan_of(engine)
    assert plan.total_bytes == plan_of(engine, draft=None).total_bytes + plan.draft_bytes
    own = engine.stepper.draft_model
    weights = sum(p.numel() * p.element_size() for p in [own.model.weights.embedding])
    assert plan.draft_bytes > own.kv_cache.nbytes + weights
    assert own.kv_cache.nbytes <= engine.runner.kv_cache.nbytes
    # Without the draft model it would fit.
    monkeypatch.setattr("chairlift.model.memory.plan.memory_limit", lambda: plan.total_bytes - 1)
    with pytest.raises(ConfigError, match=f"draft model {plan.draft_bytes}"):
        make_drafting(kv_cache_memory=plan.kv_cache_bytes)


def test_its_layers_may_be_quantized_apart(make_engine, make_drafting):
    wanted = [greedy(prompt, 20) for prompt in tiny_model.prompts()]
    expected = [token_ids(events) for events in run(make_engine(), wanted)]
    engine = make_drafting(draft_quantize="int4")
    assert plan_of(engine).draft_bytes < plan_of(engine, draft_quantize=None).draft_bytes
    assert [token_ids(events) for events in run(engine, wanted)] == expected


@needs_smollm2
def test_a_real_model_answers_as_it_does_without_its_int4_form():
    prompts = ["The ski lift opens at", "Once upon a time"]
    requests = [
        Request(prompt, Sampling(temperature=0.0), Stopping(max_tokens=16)) for prompt in prompts
    ]
    answers = []
    for settings in ({}, {"draft": "smollm2", "draft_quantize": "int4"}):
        with Engine(
            "smollm2", dtype="float32", max_num_seqs=2, kv_cache_memory="32MiB", **settings
        ) as engine:
            passes = watch_passes(engine) if settings else [1]
            answers.append([token_ids(events) for events in run(engine, requests)])
            assert passes
    assert answers[0] == answers[1]
