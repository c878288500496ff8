"""One model on several emulated GPUs, each of a process: the answers of one, and an end of all."""

import copy
import os
import signal
import threading
from functools import partial

import pytest
import torch
from chairlift.api.errors import ConfigError, EngineDownError, ModelError
from chairlift.api.types import Output, Request, Sampling, Stopping
from chairlift.engine.ranks import lead
from chairlift.kernels.cuda.linear import Linear
from transformers import LlamaConfig, LlamaForCausalLM, Olmo2Config, Olmo2ForCausalLM

from tests.cuda import exact_rank, poor_rank, small_models, test_hybrids, test_mixtures
from tests.cuda.emulated_device import RANK_MODULE, EmulatedDevice, EmulatedEngine, Mark
from tests.cuda.gpu_device import needs_emulation
from tests.cuda.small_models import SIZES, assert_likely, prompts, requests
from tests.engine.drive import assert_empty, drain, greedy, run, token_ids
from tests.engine.test_ranks import assert_same_draws, is_gone, ranks_of, wait_until
from tests.server.test_rank_processes import children

pytestmark = [pytest.mark.timeout(600), needs_emulation]
"""The first test compiles the emulation."""

FOUR_KV_HEADS = {**SIZES, "num_key_value_heads": 4}
MODELS = {
    **small_models.MODELS,
    "mixtral": test_mixtures.MODELS["mixtral"],
    "gpt-oss": test_mixtures.MODELS["gpt-oss"],
    # One norm of the queries of all ranks.
    "olmo 2": (Olmo2ForCausalLM, Olmo2Config(**FOUR_KV_HEADS, pad_token_id=None)),
}
HYBRIDS = {
    "lfm2": {"num_key_value_heads": 2},
    # Both ranks have heads of one group, which has one norm.
    "falcon": {"num_key_value_heads": 2, "mamba_n_groups": 1},
    "qwen3.5 moe": {
        "num_key_value_heads": 2,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
    },
}
TIMEOUT_S = 2.0


@pytest.fixture
def make_ranks():
    """Build engines on emulated GPUs that are closed at the end."""
    engines = []

    def make(folder, num_ranks=2, accelerator=None, rank_module=RANK_MODULE, **settings):
        defaults = {"max_num_seqs": 4, "max_num_batched_tokens": 64, "max_model_len": 400}
        defaults |= {"kv_cache_memory": 1 << 24, "tensor_parallel": num_ranks}
        engine = EmulatedEngine(folder, accelerator, rank_module, **{**defaults, **settings})
        engines.append(engine)
        return engine

    yield make
    for engine in engines:
        engine.close()


@pytest.fixture
def exact_module(monkeypatch):
    """Let linear layers have the same bits however their columns are split, on every rank."""
    monkeypatch.setattr(Linear, "__call__", exact_rank.multiply)
    return exact_rank.__name__


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory):
    """A model with states, whose heads are those of two ranks."""
    folder = tmp_path_factory.mktemp("hybrid")
    write_hybrid(folder, "falcon")
    return folder


def write_hybrid(folder, name):
    config = copy.deepcopy(test_hybrids.MODELS[name])
    for field, value in HYBRIDS[name].items():
        setattr(config, field, value)
    test_hybrids.write_config(folder, config)


def draws(engine, asked):
    """Return the tokens of some requests, and the bits of the logits of all draws."""
    seen, passes = [], engine.runner._pass
    launch = passes.launch

    def watched(turn, sizes):
        launch(turn, sizes)
        seen.append(passes.logits[: sizes.num_samples].clone().view(torch.int32))

    passes.launch = watched
    answers = [token_ids(events) for events in run(engine, asked)]
    assert_empty(engine)
    return answers, seen


def rank_threads():
    names = "chairlift-rank-watch", "chairlift-rank-meeting", "chairlift-ranks"
    return [thread for thread in threading.enumerate() if thread.name in names]


def assert_ranks_draw_as_one(make_ranks, folder, exact_module, num_ranks=2, **settings):
    # Prompts in chunks, decodes and both in one step; more requests than rows.
    asked = requests(prompts(1, 17, 90, 40, 5))
    expected, found = (
        draws(make_ranks(folder, num, EmulatedDevice(num), exact_module, **settings), asked)
        for num in (1, num_ranks)
    )
    assert_same_draws(found, expected)


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.always) if n == "llama" else n for n in MODELS],
)
def test_two_ranks_draw_from_the_bits_of_one(make_ranks, exact_module, tmp_path, name):
    small_models.write(tmp_path, MODELS[name])
    assert_ranks_draw_as_one(make_ranks, tmp_path, exact_module)


@pytest.mark.parametrize("name", HYBRIDS)
def test_two_ranks_have_the_states_of_their_heads(make_ranks, exact_module, tmp_path, name):
    write_hybrid(tmp_path, name)
    assert_ranks_draw_as_one(make_ranks, tmp_path, exact_module)


def test_ranks_may_have_parts_of_different_widths(make_ranks, exact_module, tmp_path):
    # Four ranks share a vocabulary of 390.
    small_models.write(tmp_path, (LlamaForCausalLM, LlamaConfig(**FOUR_KV_HEADS)))
    settings = {"kv_cache_dtype": "fp8", "drafts": "lookup"}
    assert_ranks_draw_as_one(make_ranks, tmp_path, exact_module, 4, **settings)


def test_answers_are_those_of_transformers(make_ranks, llama):
    folder, reference = llama
    engine = make_ranks(folder)
    assert engine.config.steps_in_flight == 2
    asked = prompts(1, 17, 90, 40, 5)
    for prompt, events in zip(asked, run(engine, requests(asked)), strict=True):
        assert_likely(reference, prompt, token_ids(events))
    assert engine.accelerator.num_replays > 0


def test_rank_0_draws_for_all_with_any_options(make_ranks, exact_module, llama):
    sampling = Sampling(temperature=1.0, seed=5, n=3, presence_penalty=1.5, logit_bias={7: 2.0})
    request = Request(prompts(20)[0], sampling, Stopping(12), Output(logprobs=True))
    # The answers share a block, and copy it on every rank.
    one, two = (
        token_ids(run(make_ranks(llama[0], num, None, exact_module), [request])[0])
        for num in (1, 2)
    )
    assert one == two


def test_prefix_hits_and_preemption_change_no_draw(make_ranks, exact_module, hybrid):
    shared = prompts(40)[0]
    asked = [greedy([*shared, *prompt], 20, ignore_eos=True) for prompt in prompts(3, 6, 1, 9)]
    one = make_ranks(hybrid, 1, None, exact_module)
    expected = [token_ids(run(one, [request])[0]) for request in asked]
    two = make_ranks(hybrid, 2, None, exact_module)
    block = two.runner.kv_cache[:, :, 0].nbytes
    tight = {"kv_cache_memory": 12 * block, "max_num_batched_tokens": 24}
    engine = make_ranks(hybrid, 2, None, exact_module, **tight)
    for _ in range(2):
        assert [token_ids(events) for events in run(engine, asked)] == expected
    load = engine.load()
    assert min(load.num_prefix_hits, load.num_preemptions, load.num_state_snapshots) > 0
    assert_empty(engine)


@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGKILL, marks=pytest.mark.always), signal.SIGSTOP]
)
def test_a_lost_rank_takes_the_engine_down_and_a_restart_serves_again(
    make_ranks, monkeypatch, llama, number
):
    monkeypatch.setattr(lead, "TIMEOUT_S", TIMEOUT_S)
    engine = make_ranks(llama[0])
    request = greedy(prompts(20)[0], 12, ignore_eos=True)
    expected = token_ids(run(engine, [request])[0])
    (lost,) = ranks_of(engine).process_ids
    engine.add(request)
    engine.flush()
    engine.advance()
    os.kill(lost, number)
    with pytest.raises(EngineDownError):
        drain(engine)
    engine.restart()
    wait_until(lambda: is_gone(lost))
    assert token_ids(run(engine, [request])[0]) == expected


def test_an_idle_engine_notices_that_a_rank_has_ended(make_ranks, llama):
    engine = make_ranks(llama[0])
    os.kill(ranks_of(engine).process_ids[0], signal.SIGKILL)
    wait_until(lambda: ranks_of(engine).fault is not None)
    with pytest.raises(EngineDownError, match="the process of rank 1 ended"):
        engine.advance()


def test_a_closed_engine_leaves_no_process_and_no_thread(make_ranks, llama):
    before = set(rank_threads())
    engine = make_ranks(llama[0])
    process_ids = ranks_of(engine).process_ids
    assert process_ids
    engine.close()
    assert all(map(is_gone, process_ids))
    wait_until(lambda: set(rank_threads()) <= before)


class AsynchronousDevice(EmulatedDevice):
    """Waits for the end of a step like a GPU whose gather waits for a rank: until an abort."""

    def __init__(self):
        super().__init__()
        self.is_stuck = False
        self.on_wait = None
        self.aborted = threading.Event()

    def connect(self, store, rank, num_ranks, timeout_s):
        return Abortable(super().connect(store, rank, num_ranks, timeout_s), self.aborted)

    def record(self):
        mark = super().record()
        return StuckMark(self, mark.position, mark.is_on_side) if self.is_stuck else mark


class StuckMark(Mark):
    def synchronize(self):
        if self.device.on_wait is not None and not self.device.aborted.is_set():
            self.device.on_wait()
        self.device.aborted.wait()


class Abortable:
    def __init__(self, backend, aborted):
        self._allgather_base = backend._allgather_base
        self._aborted = aborted

    def abort(self):
        self._aborted.set()


@pytest.mark.parametrize("is_killed", [pytest.param(True, marks=pytest.mark.always), False])
def test_a_wait_for_a_device_ends_with_the_group(make_ranks, monkeypatch, llama, is_killed):
    # Where no process ends, the time does.
    monkeypatch.setattr(lead, "TIMEOUT_S", 600.0 if is_killed else TIMEOUT_S)
    device = AsynchronousDevice()
    engine = make_ranks(llama[0], accelerator=device, steps_in_flight=1)
    engine.add(requests(prompts(9))[0])
    engine.flush()
    (other,) = ranks_of(engine).process_ids
    device.on_wait = partial(os.kill, other, signal.SIGKILL) if is_killed else None
    device.is_stuck = True
    with pytest.raises(EngineDownError):
        drain(engine)
    assert device.aborted.is_set()
    expected = "the process of rank 1 ended" if is_killed else "rank 0 failed"
    assert ranks_of(engine).fault == expected


class LonelyDevice(EmulatedDevice):
    def connect(self, store, rank, num_ranks, timeout_s):
        message = "no way to the others"
        raise RuntimeError(message)


def test_devices_that_cannot_meet_fail_the_start(make_ranks, llama):
    with pytest.raises(ModelError, match=r"tensor_parallel: .* cannot meet: no way to the others"):
        make_ranks(llama[0], accelerator=LonelyDevice())


class LosingDevice(EmulatedDevice):
    def connect(self, store, rank, num_ranks, timeout_s):
        for process_id in children(os.getpid(), RANK_MODULE.encode()):
            os.kill(process_id, signal.SIGKILL)
        return super().connect(store, rank, num_ranks, timeout_s)


def test_a_rank_that_ends_as_devices_meet_fails_the_start(make_ranks, llama):
    with pytest.raises(ModelError, match="tensor_parallel: the process of rank 1 ended"):
        make_ranks(llama[0], accelerator=LosingDevice())


def test_a_rank_whose_gpu_has_too_little_memory_fails_the_start(make_ranks, llama):
    with pytest.raises(ModelError, match="rank 1: memory: expected at most 1048576 bytes"):
        make_ranks(llama[0], rank_module=poor_rank.__name__)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (
            {"num_ranks": 4},
            "tensor_parallel: expected at most 2 on the GPUs of this machine, got 4",
        ),
        ({"swap_memory": "1MiB"}, "swap_memory: expected none with tensor_parallel, got 1048576"),
        ({"max_adapters": 1}, "max_adapters: expected 0 on a GPU, got 1"),
        ({"quantize": "int8"}, "quantize: expected none on a GPU, got int8"),
    ],
)
def test_what_ranks_on_gpus_do_not_compute_is_refused(make_ranks, llama, settings, problem):
    with pytest.raises(ConfigError) as refused:
        make_ranks(llama[0], device="cuda", **settings)
    assert str(refused.value) == problem


def test_ranks_on_gpus_of_several_hosts_are_refused(make_ranks, llama, tmp_path, free_port):
    key = tmp_path / "key"
    key.write_bytes(bytes(32))
    key.chmod(0o600)
    with pytest.raises(ConfigError, match="rank_listen: expected none on the GPUs of this machine"):
        make_ranks(llama[0], rank_listen=f"127.0.0.1:{free_port}", rank_key=str(key))


def test_parts_that_vectors_do_not_fit_are_refused(make_ranks, tmp_path):
    sizes = {**SIZES, "intermediate_size": 104}
    small_models.write(tmp_path, (LlamaForCausalLM, LlamaConfig(**sizes)))
    with pytest.raises(ConfigError, match=r"multiple of 8.* with tensor_parallel 2"):
        make_ranks(tmp_path, device="cuda")
