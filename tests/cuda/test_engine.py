"""The engine on an emulated GPU: the run-time is the real one, the kernels run on the CPU."""

import itertools
import sys

import pytest
import torch
from chairlift.api.errors import ConfigError, EngineDownError, Reason
from chairlift.api.types import FinishReason, Output, Request, Sampling, Stopping, Tokens
from chairlift.engine.engine import Engine
from chairlift.engine.runner.recordings import decode_sizes, step_sizes

from tests.cuda.emulated_device import EmulatedDevice, EmulatedEngine, EmulatedRecorder
from tests.cuda.gpu_device import needs_emulation
from tests.cuda.small_models import NUM_TOKENS, assert_likely, make, prompts, requests
from tests.engine.drive import assert_empty, drain, end, greedy, run, token_ids

pytestmark = pytest.mark.timeout(600)
"""The first test compiles the emulation."""


@pytest.mark.parametrize("dtype", [pytest.param("bfloat16", marks=pytest.mark.always), "float16"])
def test_answers_are_those_of_transformers(model, dtype):
    folder, reference = model
    engine = make(folder, dtype=dtype)
    assert (engine.config.steps_in_flight, engine.accelerator.num_replays) == (2, 0)
    # Chunks, decodes and both in one step; more requests than rows; more than one split.
    asked = prompts(1, 17, 300, 40, 5, 90)
    for prompt, events in zip(asked, run(engine, requests(asked)), strict=True):
        assert len(token_ids(events)) == NUM_TOKENS
        assert_likely(reference, prompt, token_ids(events), dtype)
    assert_empty(engine)


def test_keys_and_values_in_float8_take_half(model, monkeypatch):
    folder, reference = model
    round_keys_and_values(reference, monkeypatch)
    roomy = make(folder, kv_cache_dtype="fp8")
    assert roomy.runner.kv_cache.dtype == torch.float8_e4m3fn
    assert roomy.load().num_blocks == 2 * make(folder).load().num_blocks + 1
    # A tight pool as well: blocks are written, read again and computed again.
    block = roomy.runner.kv_cache[:, :, 0].nbytes
    num_blocks = 1 + 14 * len(reference.windows)
    tight = make(folder, kv_cache_dtype="fp8", kv_cache_memory=num_blocks * block)
    asked = prompts(1, 17, 150, 40, 5, 90)
    for engine in (roomy, tight):
        for prompt, events in zip(asked, run(engine, requests(asked)), strict=True):
            assert_likely(reference, prompt, token_ids(events), "float8")
        assert_empty(engine)


def round_keys_and_values(reference, monkeypatch):
    """Make the reference read its keys and values as float8 holds them."""
    module = sys.modules[type(reference).__module__]
    attend = module.eager_attention_forward

    def attend_rounded(layer, query, key, value, *args, **kwargs):
        key, value = (half.to(torch.float8_e4m3fn).float() for half in (key, value))
        return attend(layer, query, key, value, *args, **kwargs)

    monkeypatch.setattr(module, "eager_attention_forward", attend_rounded)


@pytest.mark.parametrize("batching", ["static", "dynamic", "continuous"])
def test_preemption_and_the_prefix_cache_change_no_answer(model, batching):
    folder, reference = model
    block, num_groups = make(folder).runner.kv_cache[:, :, 0].nbytes, len(reference.windows)
    num_blocks = 1 + num_groups * 7
    engine = make(
        folder, batching=batching, kv_cache_memory=num_blocks * block, max_num_batched_tokens=24
    )
    shared = prompts(32)[0]
    asked = [[*shared, *prompt] for prompt in prompts(3, 6, 1, 9)]
    for _ in range(2):
        answers = run(engine, [greedy(prompt, 20, ignore_eos=True) for prompt in asked])
        for prompt, events in zip(asked, answers, strict=True):
            assert_likely(reference, prompt, token_ids(events))
    assert engine.load().num_prefix_hits > 0
    assert engine.load().num_preemptions > 0
    assert_empty(engine)


def test_one_step_in_flight_gives_the_same_answers_as_two(llama):
    folder, _ = llama
    asked = prompts(5, 30, 70)
    one, two = (run(make(folder, steps_in_flight=n), requests(asked)) for n in (1, 2))
    assert [token_ids(events) for events in one] == [token_ids(events) for events in two]


def test_every_step_is_replayed(llama):
    engine = make(llama[0])
    run(engine, requests(prompts(9, 12, 4)))
    # The prompts are one step of chunks, which gives the first token. Forward passes and draws are
    # recorded apart.
    assert engine.accelerator.num_replays == 2 * NUM_TOKENS


def test_chunks_beside_decodes_are_replayed(llama):
    folder, reference = llama
    engine, steps = make(folder), []
    engine.watch_steps(steps.append)
    asked = prompts(9, 150, 12, 40, 3)
    for prompt, events in zip(asked, run(engine, requests(asked)), strict=True):
        assert_likely(reference, prompt, token_ids(events))
    # Of the steps of chunks some end no prompt, and draw nothing.
    assert len(steps) < engine.accelerator.num_replays <= 2 * len(steps)


class CapturingDevice(EmulatedDevice):
    """Runs what it records once, over padding, as a GPU does."""

    def recorder(self):
        recorder, capture = super().recorder(), EmulatedRecorder.capture

        def captured(launches):
            launches()
            return capture(recorder, launches)

        recorder.capture = captured
        return recorder


@needs_emulation
@pytest.mark.parametrize("model", ["llama"], indirect=True)
def test_what_runs_while_it_is_recorded_changes_no_answer(model):
    folder, reference = model
    device = CapturingDevice()
    settings = {"max_num_seqs": 4, "max_num_batched_tokens": 40, "kv_cache_memory": 1 << 24}
    engine = EmulatedEngine(folder, device, max_model_len=400, **settings)
    assert device.num_launches > 0
    assert engine.runner.kv_cache.count_nonzero() == 0, "nothing is written"
    asked = prompts(9, 60, 12)
    for prompt, events in zip(asked, run(engine, requests(asked)), strict=True):
        assert_likely(reference, prompt, token_ids(events))


def test_the_launches_of_a_batch_serve_all_smaller_ones():
    assert decode_sizes(4) == [1, 2, 4]
    assert decode_sizes(20) == [1, 2, 4, 8, 16, 20]
    assert decode_sizes(2048)[-1] == 512


def test_an_eighth_of_a_recorded_step_is_padding_at_most():
    sizes = step_sizes(8192)
    assert (sizes[0], sizes[-1]) == (8, 2048)
    assert all(after - before <= max(8, before / 8) for before, after in itertools.pairwise(sizes))
    assert step_sizes(100) == [*range(8, 100, 8), 100]


def test_log_probabilities_are_those_of_the_reference(llama):
    folder, reference = llama
    (prompt,) = prompts(20)
    wanted = greedy(prompt, NUM_TOKENS, ignore_eos=True, output=Output(logprobs=True))
    events = run(make(folder, dtype="float16"), [wanted])[0]
    got = [p for e in events if isinstance(e, Tokens) for p in e.logprobs.logprobs]
    answer = token_ids(events)
    logits = reference(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
    expected = logits.log_softmax(-1).gather(1, torch.tensor(answer)[:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(got), expected, atol=0.2, rtol=0)


def test_draws_depend_on_the_seed_alone(llama):
    def answers(*seeds):
        engine = make(llama[0])
        wanted = [
            Request(prompts(12)[0], Sampling(1.5, seed=seed), Stopping(NUM_TOKENS, ignore_eos=True))
            for seed in seeds
        ]
        return [token_ids(events) for events in run(engine, wanted)]

    first, second = answers(1, 2)
    assert first != second
    assert answers(2) == [second]


def test_a_stop_and_a_cancel_leave_nothing_behind(llama):
    engine = make(llama[0])
    (prompt,) = prompts(30)
    whole = token_ids(run(engine, requests([prompt]))[0])
    stopped = greedy(prompt, NUM_TOKENS, ignore_eos=True, stop_token_ids=[whole[2]])
    events = run(engine, [stopped])[0]
    assert token_ids(events) == whole[: whole.index(whole[2]) + 1]
    assert end(events).reason is FinishReason.STOP
    request_id = engine.add(greedy(prompt, 100, ignore_eos=True)).request_id
    engine.step()
    engine.abort(request_id)
    assert end(drain(engine)[request_id]).reason is FinishReason.CANCELLED
    assert_empty(engine)


@needs_emulation
def test_the_guilty_fail_alone(llama):
    folder, reference = llama
    asked = prompts(9, 30, 14)
    poison = next(token for token in asked[1] if token not in asked[0] + asked[2])
    engine = make(folder)
    forward = engine.runner.model.forward

    def poisoned(input_ids, *args):
        if poison in input_ids.tolist():
            raise MemoryError
        return forward(input_ids, *args)

    engine.runner.model.forward = poisoned
    answers = run(engine, requests(asked))
    assert end(answers[1]).reason is Reason.STEP_FAILED
    for i in (0, 2):
        assert_likely(reference, asked[i], token_ids(answers[i]))
    assert_empty(engine)


@needs_emulation
def test_a_device_that_fails_whatever_it_is_given_takes_the_engine_down(llama):
    engine = make(llama[0])

    def broken(*_):
        raise RuntimeError

    engine.runner.model.forward = broken
    engine.add(greedy([1, 2, 3], 4))
    with pytest.raises(EngineDownError):
        engine.step()
    engine.restart()
    assert_empty(engine)


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ({"dtype": "float32"}, "dtype: expected bfloat16 or float16 on a GPU, got float32"),
        ({"quantize": "int8"}, "quantize: expected none on a GPU, got int8"),
        ({"kv_cache_dtype": "int8"}, "kv_cache_dtype: expected auto or fp8 on a GPU, got int8"),
    ],
)
def test_what_a_gpu_cannot_run_is_named(llama, setting, named):
    with pytest.raises(ConfigError, match=named):
        make(llama[0], device="cuda", **setting)
    assert make(llama[0], **setting).config.steps_in_flight is None, "the CPU takes it"


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU")
def test_a_machine_without_a_gpu_says_so(llama):
    for setting in ({"device": "cuda"}, {"dtype": "float16"}, {"kv_cache_dtype": "fp8"}):
        (named,) = setting
        with pytest.raises(ConfigError, match=f"^{named}: .*without a GPU"):
            Engine(llama[0], **setting)
    assert Engine(llama[0], max_model_len=32).device.torch_device.type == "cpu"


def test_the_defaults_are_those_of_a_gpu_where_nobody_says_otherwise(llama):
    config = EmulatedEngine(llama[0], max_model_len=64, max_num_seqs=3).config
    assert (config.max_num_seqs, config.max_num_batched_tokens) == (3, 2048)


@pytest.mark.parametrize("num_prompt", [21, 32])
def test_answers_to_one_prompt_share_it_and_copy_its_last_block(llama, num_prompt):
    (prompt,) = prompts(num_prompt)

    def answers(n):
        sampling = Sampling(temperature=1.0, seed=7, n=n)
        stopping = Stopping(max_tokens=NUM_TOKENS, ignore_eos=True)
        engine = make(llama[0])
        (events,) = run(engine, [Request(prompt, sampling, stopping)])
        assert_empty(engine)
        return [token_ids([e for e in events if e.index == i]) for i in range(n)]

    three = answers(3)
    assert len({tuple(answer) for answer in three}) == 3
    assert three[:1] == answers(1)
    assert three[:2] == answers(2)
