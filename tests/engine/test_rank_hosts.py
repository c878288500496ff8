"""One model on several hosts: the bits of one process, and an end of all when one is lost.

The hosts are processes of `chairlift rank` on this machine, which share nothing but connections.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from chairlift.api.errors import ConfigError, EngineDownError, ModelError
from chairlift.engine.ranks import hosts, lead
from chairlift.engine.ranks.facts import Facts

from tests.engine import tiny_model
from tests.engine.drive import drain, greedy, run, token_ids
from tests.engine.test_ranks import NUM_TOKENS, answers, assert_same_draws, ranks_of, wait_until
from tests.model import families

ALWAYS = ("llama",)
"""Families that `make test` compares, too."""


@pytest.fixture
def key(tmp_path):
    return write_key(tmp_path / "key", b"k" * 32)


def write_key(path, secret):
    path.write_bytes(secret)
    path.chmod(0o600)
    return path


@pytest.fixture
def address():
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = server.getsockname()
    return f"{host}:{port}"


@pytest.fixture
def host_rank(key, address):
    """Start processes of other hosts, which are killed at the end."""
    with ExitStack() as stack:

        def start(folder, rank=1, **options):
            options = {"leader": address, "rank": rank, "rank-key": key} | options
            arguments = [f"--{name}={value}" for name, value in options.items()]
            process = subprocess.Popen(
                [sys.executable, "-m", "chairlift", "rank", folder, "--num-threads=1", *arguments],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            stack.callback(end, process)
            return process

        yield start


def end(process):
    process.kill()
    process.stdout.close()
    process.wait()


@pytest.fixture
def make_lead(make_engine, key, address):
    """Build engines whose other ranks are on other hosts; they are closed at the end."""
    with ExitStack() as stack:

        def make(folder, num_ranks=2, **settings):
            settings = {"rank_listen": address, "rank_key": str(key)} | settings
            engine = make_engine(folder, tensor_parallel=num_ranks, num_threads=1, **settings)
            stack.callback(engine.close)
            return engine

        yield make


@pytest.fixture
def folder(tmp_path):
    return tiny_folder(tmp_path / "model")


def tiny_folder(folder, **sizes):
    folder.mkdir()
    families.save(families.build("llama", **sizes), folder)
    tiny_model.write_tokenizer(folder, families.SIZES["vocab_size"] - 5)
    return folder


def prompts_of(num):
    return tiny_model.prompts(num=num, vocab_size=families.SIZES["vocab_size"])


def answer(engine):
    """Return the tokens of one request."""
    request = greedy(prompts_of(1)[0], NUM_TOKENS, ignore_eos=True)
    return token_ids(run(engine, [request])[0])


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(family, marks=pytest.mark.always if family in ALWAYS else pytest.mark.slow)
        for family in ("llama", "gpt-oss, sinks, windows, clamped gates", "qwen3.5", "granite 4")
        if family in families.FAMILIES
    ],
)
def test_two_hosts_draw_from_the_bits_of_one_process(
    make_engine, make_lead, host_rank, tmp_path, family
):
    families.save(families.build(family), tmp_path)
    tiny_model.write_tokenizer(tmp_path, families.SIZES["vocab_size"] - 5)
    settings = {"max_num_batched_tokens": 24, "kv_cache_memory": 10**6}
    expected = answers(make_engine(tmp_path, **settings), prompts_of(4))
    host_rank(tmp_path)
    assert_same_draws(answers(make_lead(tmp_path, **settings), prompts_of(4)), expected)


@pytest.mark.slow
def test_four_hosts_draw_from_the_bits_of_one_process(make_engine, make_lead, host_rank, tmp_path):
    folder = tiny_folder(tmp_path / "model", num_key_value_heads=4)
    settings = {"dtype": "bfloat16", "quantize": "int8"}
    expected = answers(make_engine(folder, **settings), prompts_of(5))
    for rank in (3, 1, 2):
        host_rank(folder, rank)
    assert_same_draws(answers(make_lead(folder, 4, **settings), prompts_of(5)), expected)


@pytest.mark.parametrize(
    ("lose", "timeout_s", "reason"),
    [
        pytest.param(signal.SIGKILL, lead.TIMEOUT_S, "rank 1 ended", id="killed"),
        pytest.param(
            signal.SIGSTOP,
            0.5,
            "rank 1 did not arrive in time",
            id="stopped",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_lost_host_takes_the_engine_down_and_another_one_takes_its_place(
    make_lead, host_rank, folder, monkeypatch, lose, timeout_s, reason
):
    monkeypatch.setattr(lead, "TIMEOUT_S", timeout_s)
    lost = host_rank(folder)
    engine = make_lead(folder)
    expected = answer(engine)
    engine.add(greedy(prompts_of(1)[0], NUM_TOKENS, ignore_eos=True))
    engine.flush()
    engine.advance()
    lost.send_signal(lose)
    with pytest.raises(EngineDownError) as down:
        drain(engine)
    assert reason in f"{down.value} {down.value.__cause__}"
    host_rank(folder)
    engine.restart()
    assert answer(engine) == expected


@pytest.mark.slow
def test_an_idle_engine_notices_that_a_host_is_gone(make_lead, host_rank, folder):
    process = host_rank(folder)
    engine = make_lead(folder)
    process.kill()
    wait_until(lambda: ranks_of(engine).fault is not None)
    with pytest.raises(EngineDownError, match="the connection to rank 1 ended"):
        engine.advance()


def test_a_host_joins_the_next_server(make_lead, host_rank, folder):
    host_rank(folder)
    first = make_lead(folder)
    expected = answer(first)
    first.close()
    assert answer(make_lead(folder)) == expected


@pytest.mark.slow
def test_a_fork_of_the_host_program_ends_no_group(make_lead, host_rank, folder):
    host_rank(folder)
    engine = make_lead(folder)
    with warnings.catch_warnings():
        # Python warns of forks of a process with threads, which host programs do.
        warnings.simplefilter("ignore", DeprecationWarning)
        fork = os.fork()
    if fork == 0:
        ranks_of(engine).close()
        os._exit(0)
    assert os.waitpid(fork, 0)[1] == 0
    assert len(answer(engine)) == NUM_TOKENS


def test_sigterm_ends_a_host_when_its_group_has_ended(make_lead, host_rank, folder):
    process = host_rank(folder)
    engine = make_lead(folder)
    expected = answer(engine)
    process.send_signal(signal.SIGTERM)
    assert answer(engine) == expected
    engine.close()
    assert process.wait(60) == 0


def test_sigterm_ends_a_host_that_waits_for_its_server(host_rank, folder):
    process = host_rank(folder)
    assert process.stdout.readline().startswith("joining ")
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0


def test_a_host_with_another_model_is_refused_and_says_why(make_lead, host_rank, folder, tmp_path):
    process = host_rank(tiny_folder(tmp_path / "other", intermediate_size=96))
    with pytest.raises(ModelError, match=r"^rank 1: model: expected \w+, as rank 0 has, got \w+$"):
        make_lead(folder)
    assert process.wait(60) == 1
    assert "refused by rank 0: model: expected" in process.stdout.read()


def test_a_host_with_another_key_is_refused_and_the_right_one_is_taken(
    make_lead, host_rank, folder, tmp_path
):
    stranger = host_rank(folder, **{"rank-key": write_key(tmp_path / "other", b"o" * 32)})
    refused = host_rank(folder, rank=2)
    with ThreadPoolExecutor() as threads:
        engine = threads.submit(make_lead, folder)
        assert stranger.wait(60) == 2
        assert refused.wait(60) == 2
        host_rank(folder)
        assert len(answer(engine.result())) == NUM_TOKENS
    assert "--rank-key: expected the key of the other ranks" in stranger.stdout.read()
    assert "--rank: expected 1 or more and fewer than rank 0 has ranks" in refused.stdout.read()


def test_a_host_that_does_not_come_ends_the_start(make_lead, folder, monkeypatch):
    monkeypatch.setattr(hosts, "START_S", 0.1)
    with pytest.raises(ModelError, match="rank_listen: rank 1 did not join in time"):
        make_lead(folder)


@pytest.mark.parametrize("text", ["", "5", "[1]", '{"a": 1}', '["0", "0", "0", "0"]'])
def test_a_rank_of_another_version_may_say_anything(text, folder):
    difference = Facts.of(folder).difference(Facts.of_text(text))
    assert re.fullmatch("version: expected [0-9.]+, as rank 0 has, got another", difference)


def test_an_address_in_use_is_named(make_lead, folder, address):
    host, port = address.split(":")
    with (
        socket.create_server((host, int(port))),
        pytest.raises(ModelError, match=f"^rank_listen: {address}: address already in use"),
    ):
        make_lead(folder)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rank_listen": None}, "rank_key: expected none without rank_listen"),
        ({"rank_key": None}, "rank_key: expected a file with rank_listen, got None"),
        ({"num_ranks": 1}, "tensor_parallel: expected 2 or more with rank_listen, got 1"),
        ({"max_adapters": 3}, "max_adapters: expected none with rank_listen, got 3"),
        ({"rank_listen": "unix:/x"}, "rank_listen: expected HOST or HOST:PORT, got 'unix:/x'"),
        ({"rank_listen": "host:99999"}, "rank_listen: expected HOST:PORT or unix:PATH, got"),
        ({"rank_key": "/dev/null"}, "rank_key: /dev/null: not a regular file"),
    ],
    ids=str,
)
def test_settings_that_do_not_fit_are_refused_by_name(make_lead, folder, settings, message):
    with pytest.raises(ConfigError) as refused:
        make_lead(folder, **settings)
    assert str(refused.value).startswith(message)


def test_a_group_of_another_size_is_refused(make_lead, folder, monkeypatch):
    monkeypatch.setenv("LWS_GROUP_SIZE", "3")
    with pytest.raises(ConfigError) as refused:
        make_lead(folder)
    assert str(refused.value) == "tensor_parallel: expected 3, which is LWS_GROUP_SIZE, got 2"


def test_the_key_may_be_read_by_its_group_and_by_no_others(make_lead, folder, key):
    key.chmod(0o644)
    with pytest.raises(ConfigError, match=r"^rank_key: .* got mode 0644$"):
        make_lead(folder)


@pytest.mark.slow
def test_a_host_reads_the_environment_of_a_leader_worker_set(make_lead, key, folder, address):
    environment = os.environ | {
        "LWS_LEADER_ADDRESS": address,
        "LWS_WORKER_INDEX": "1",
        "CHAIRLIFT_RANK_KEY": str(key),
    }
    command = [sys.executable, "-m", "chairlift", "rank", folder]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert len(answer(make_lead(folder))) == NUM_TOKENS
    finally:
        end(process)
