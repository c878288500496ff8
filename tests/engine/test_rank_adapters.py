"""Adapters on several processes: each rank has the update of its columns."""

import gc
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from chairlift.api.errors import EngineDownError, ModelError
from chairlift.api.types import Tokens
from chairlift.engine.ranks import adapter_socket, lead

from tests.engine import adapters, tiny_model
from tests.engine.drive import drain, greedy, run
from tests.engine.test_ranks import is_gone, make_ranks, ranks_of, wait_until  # noqa: F401, a fixture

NUM_TOKENS = 10
KINDS = {
    "all": {"rank": 4},
    "some": {"rank": 7, "targets": ("q_proj", "down_proj")},
}


@pytest.fixture
def folders(tiny, tmp_path):
    """Return the folders of adapters of the tiny model, by name."""
    return {
        name: adapters.write(tmp_path / name, tiny.reference, seed=seed, **kind)
        for seed, (name, kind) in enumerate(KINDS.items())
    }


def mixed(names=("", *KINDS)):
    """Return requests of the model and of every adapter, in turn."""
    prompts = tiny_model.prompts(9)
    requests = [greedy(prompt, NUM_TOKENS, ignore_eos=True) for prompt in prompts]
    named = [replace(r, adapter=names[i % len(names)]) for i, r in enumerate(requests)]
    return [replace(r, output=replace(r.output, logprobs=True)) for r in named]


def answers(engine, requests):
    """Return the tokens of each request, and their log probabilities."""
    return [
        [(e.token_ids, e.logprobs.logprobs) for e in events if isinstance(e, Tokens)]
        for events in run(engine, requests)
    ]


@pytest.mark.parametrize(
    ("num_ranks", "settings"),
    [
        (2, {"dtype": "bfloat16"}),
        pytest.param(4, {}, marks=pytest.mark.slow),
        pytest.param(2, {"quantize": "int8"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_batch_of_adapters_has_the_bits_of_one_process(make_ranks, folders, num_ranks, settings):  # noqa: F811
    settings = {"adapters": {name: str(path) for name, path in folders.items()}, **settings}
    expected = answers(make_ranks(**settings), mixed())
    assert answers(make_ranks(tensor_parallel=num_ranks, **settings), mixed()) == expected


def test_adapters_come_and_go_while_requests_run(make_ranks, folders):  # noqa: F811
    one, two = make_ranks(max_adapters=1), make_ranks(max_adapters=1, tensor_parallel=2)
    each = []
    for engine in (one, two):
        found = []
        for name in ("all", "some", "all"):
            engine.add(mixed()[0])
            engine.flush()
            engine.advance()
            engine.adapters.load(name, folders[name])
            found.append(answers(engine, mixed(("", name))))
            drain(engine)
            assert engine.adapters.unload(name)
        each.append(found)
    assert each[0] == each[1]
    assert each[0][0] == each[0][2]
    assert each[0][0] != each[0][1]


def test_adapters_outlive_a_rank_and_their_folder(make_ranks, folders):  # noqa: F811
    loaded = {name: str(path) for name, path in folders.items()}
    engine = make_ranks(adapters=loaded, tensor_parallel=2)
    expected = answers(engine, mixed())
    for folder in folders.values():
        shutil.rmtree(folder)
    os.kill(ranks_of(engine).process_ids[0], signal.SIGKILL)
    engine.add(mixed()[0])
    engine.flush()
    with pytest.raises(EngineDownError):
        drain(engine)
    engine.restart()
    assert answers(engine, mixed()) == expected


def test_an_adapter_that_was_read_before_a_restart_is_refused(make_ranks, folders):  # noqa: F811
    engine = make_ranks(max_adapters=2, tensor_parallel=2)
    info = engine.adapters.begin_load("all", folders["all"])
    packed = engine.adapters.read(info)
    os.kill(ranks_of(engine).process_ids[0], signal.SIGKILL)
    wait_until(lambda: ranks_of(engine).fault is not None)
    with pytest.raises(EngineDownError):
        engine.advance()
    engine.restart()
    with pytest.raises(ModelError, match="the ranks were started again"):
        engine.adapters.install(info, packed)
    engine.adapters.drop(info)
    engine.adapters.load("all", folders["all"])
    assert len(answers(engine, mixed(("", "all")))) == 9


def test_a_rank_that_hangs_fails_the_load_in_time(make_ranks, folders, monkeypatch):  # noqa: F811
    monkeypatch.setattr(lead, "LOAD_S", 0.2)
    engine = make_ranks(max_adapters=1, tensor_parallel=2)
    (other,) = ranks_of(engine).process_ids
    os.kill(other, signal.SIGSTOP)
    with pytest.raises(ModelError, match="rank 1: it ended, or did not read the adapter in time"):
        engine.adapters.load("all", folders["all"])
    os.kill(other, signal.SIGCONT)
    monkeypatch.setattr(lead, "LOAD_S", adapter_socket.LOAD_S)
    engine.adapters.load("some", folders["some"])
    assert [info.name for info in engine.adapters.list()] == ["some"]
    assert len(answers(engine, mixed(("", "some")))) == 9


def test_what_is_wrong_with_an_adapter_is_told_as_by_one_process(make_ranks, folders):  # noqa: F811
    (folders["all"] / "adapter_model.safetensors").write_bytes(b"\x10")
    (folders["some"] / "adapter_config.json").unlink()
    missing = folders["some"].parent / "missing"
    messages = []
    for num_ranks in (1, 2):
        engine = make_ranks(max_adapters=1, tensor_parallel=num_ranks)
        for folder in (folders["all"], folders["some"], missing):
            with pytest.raises(ModelError) as refused:
                engine.adapters.load("a", folder)
            messages.append(str(refused.value))
    assert messages[:3] == messages[3:]


def num_open():
    """Return how many files this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


def test_an_adapter_that_is_given_up_leaves_nothing_open(make_ranks, folders):  # noqa: F811
    engine = make_ranks(max_adapters=1, tensor_parallel=2)
    before = num_open()
    for _ in range(3):
        info = engine.adapters.begin_load("all", folders["all"])
        engine.adapters.read(info)
        engine.adapters.drop(info)
    assert num_open() == before


def test_an_engine_that_is_dropped_ends_its_ranks(make_engine, folders):
    engine = make_engine(adapters={"all": str(folders["all"])}, tensor_parallel=2)
    process_ids = ranks_of(engine).process_ids
    del engine
    gc.collect()
    wait_until(lambda: all(map(is_gone, process_ids)))
