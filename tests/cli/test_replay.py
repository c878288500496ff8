"""`chairlift serve --record` and `chairlift replay`: the same traffic, asked again."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Run, environment
from tests.cli.test_bench import POLICY_KEYS, results
from tests.cli.test_serve import assert_one_line
from tests.forked import Python


@pytest.fixture(scope="module")
def trace(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trace of a few requests, recorded by a server that was then stopped."""
    from chairlift.client import connect

    path = tmp_path_factory.mktemp("trace") / "trace.jsonl"
    command = ["-m", "chairlift", "serve", str(tiny_folder)]
    command += ["--listen", "127.0.0.1:0", "--max-num-seqs", "4", "--max-num-batched-tokens", "32"]
    with Python(
        *command, "--record", path, stdout=subprocess.PIPE, text=True, env=environment()
    ) as process:
        assert process.stdout is not None
        address = [process.stdout.readline() for _ in range(2)][1].split()[2]
        with connect(address) as client:
            for length in (9, 3, 14):
                list(client.generate("Once", max_tokens=length, ignore_eos=True))
        process.terminate()
        assert process.wait(30) == 0
    return path


def test_a_server_records_what_it_served(trace: Path) -> None:
    events = [json.loads(line) for line in trace.read_text().splitlines()]
    assert [e["tokens"] for e in events if e["event"] == "end"] == [9, 3, 14]
    assert "Once" not in trace.read_text()


def test_the_recorded_run_is_shown_beside_the_policies(chairlift: Run, trace: Path) -> None:
    run = chairlift("replay", trace, "--json", "--batching", "static", "--batching", "continuous")
    rows = results(run)
    assert [row["policy"] for row in rows] == ["recorded", "static", "continuous"]
    for row in rows:
        assert list(row) == POLICY_KEYS
        assert (row["requests"], row["output_tokens"]) == (3, 26)
        assert row["ttft_p50_s"] <= row["latency_p50_s"] <= row["seconds"]


def test_a_padded_static_run_stands_beside_the_policies(chairlift: Run) -> None:
    run = chairlift(
        *("replay", "anyscale-32", "--requests", 20, "--batching", "static", "--pad-static"),
        "--json",
    )
    padded, static = results(run)
    assert (padded["policy"], static["policy"]) == ("padded", "static")
    assert padded["output_tokens"] == static["output_tokens"]
    assert padded["seconds"] > static["seconds"]
    for row in (padded, static):
        total = row["output_tokens"] + 20 * 512
        assert row["total_tokens_per_s"] == pytest.approx(total / row["seconds"])


def test_what_is_modelled_names_its_device(chairlift: Run) -> None:
    arguments = ("replay", "anyscale-32", "--requests", 4, "--device-model", "a100-40g/opt-13b")
    run = chairlift(*arguments, "--reserve", "own")
    assert run.returncode == 0, run
    assert "model of a100-40g/opt-13b: a step takes 17 ms" in " ".join(run.stdout.split())
    beside = chairlift(*arguments, "--reserve", "own", "--replicas", 2)
    assert_one_line(beside, "--reserve", "--replicas")
    static = chairlift(*arguments, "--reserve", "own", "--batching", "static")
    assert_one_line(static, "--reserve", "continuous")


def test_the_same_trace_twice_prints_the_same_bytes_and_needs_no_torch(trace: Path) -> None:
    code = (
        "import sys\n"
        "from chairlift.cli import app\n"
        f"app(['replay', {str(trace)!r}, '--batching', 'dynamic'], standalone_mode=False)\n"
        "assert 'torch' not in sys.modules\n"
    )
    outputs = [
        subprocess.run(
            [sys.executable, "-c", code], check=True, capture_output=True, env=environment()
        ).stdout
        for _ in range(2)
    ]
    assert outputs[0] == outputs[1]
    assert b"recorded" in outputs[0]


def test_a_recipe_can_be_written_and_replayed(chairlift: Run, tmp_path: Path) -> None:
    path = tmp_path / "chat.jsonl"
    recipe = ("chat", "--requests", 40, "--rate", 8, "--seed", 3, "--scale", 8)
    assert chairlift("replay", *recipe, "--write", path).returncode == 0
    direct, written = (results(chairlift("replay", *what, "--json")) for what in (recipe, (path,)))
    assert direct == written
    assert [row["policy"] for row in direct] == ["continuous"]
    # Every option counts.
    for option in (
        ("--max-num-seqs", 2),
        ("--max-num-batched-tokens", 300),
        ("--kv-cache-memory", "100MiB"),
        ("--block-size", 32),
        ("--step-fixed", "9ms"),
        ("--step-per-token", "9us"),
        ("--step-per-context-token", "900ns"),
    ):
        assert results(chairlift("replay", path, "--json", *option)) != direct, option


def test_batch_options_count(chairlift: Run, tmp_path: Path) -> None:
    path = tmp_path / "chat.jsonl"
    chairlift("replay", "chat", "--requests", 40, "--scale", 8, "--write", path)
    for policy, option in (
        ("static", ("--batch-size", 2)),
        ("static", ("--batch-timeout", "1s")),
        ("dynamic", ("--batch-window", "2s")),
    ):
        plain = results(chairlift("replay", path, "--json", "--batching", policy))
        assert results(chairlift("replay", path, "--json", "--batching", policy, *option)) != plain


def test_the_prefix_cache_can_be_taken_away(chairlift: Run) -> None:
    recipe = ("prefix", "--requests", 40, "--json")
    on, off = (
        results(chairlift("replay", *recipe, flag))[0]
        for flag in ("--prefix-cache", "--no-prefix-cache")
    )
    assert on["ttft_p50_s"] < off["ttft_p50_s"]


def test_requests_without_an_answer_are_listed(chairlift: Run) -> None:
    run = chairlift("replay", "nano", "--max-queued-requests", 200, "--json")
    assert results(run)[0]["requests"] == 200
    assert run.stderr == "continuous: not answered: 56 QUEUE_FULL\n"


def test_mistakes_are_one_line(chairlift: Run, tmp_path: Path, trace: Path) -> None:
    assert_one_line(chairlift("replay", tmp_path / "none"), "cannot read trace", "none")
    assert_one_line(chairlift("replay", trace, "--seed", 1), "--seed", "recipes")
    assert_one_line(chairlift("replay", trace, "--kv-cache-memory", "1"), "--kv-cache-memory")
    broken = tmp_path / "broken.jsonl"
    broken.write_text(trace.read_text()[:-20])
    number = len(trace.read_text().splitlines())
    assert_one_line(chairlift("replay", broken), f"{broken}:{number}:", "cut off")


def test_a_recording_that_cannot_be_written_stops_the_start(
    chairlift: Run, tiny_folder: Path, tmp_path: Path
) -> None:
    run = chairlift("serve", tiny_folder, "--record", tmp_path / "nowhere" / "trace.jsonl")
    assert_one_line(run, "record: cannot write")
