"""`chairlift replay --replicas`: a fleet behind a router."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.cli.test_bench import POLICY_KEYS, results
from tests.cli.test_serve import assert_one_line

KEYS = [
    *("policy", "routing", "replicas", "roles", "seed", "requests", "unanswered", "hit_rate"),
    *("hit_rate_of_ceiling", "load_imbalance", "ttft_p50_s", "ttft_p99_s", "losses", "resent"),
    *("max_replicas", "replica_hours", "transferred_tokens", "whole_prompts"),
    *("partial_prompts", "local_prompts"),
]


@pytest.mark.parametrize(
    "options",
    [
        ("prefix", "--requests", 80),
        ("chat", "--requests", 60, "--scale", 4, "--kv-cache-memory", "60MiB", "--seed", 3),
        ("nano", "--max-queued-requests", 200, "--max-num-seqs", 16),
        ("burst", "--requests", 80, "--batching", "static", "--batching", "dynamic"),
    ],
)
def test_one_replica_prints_the_bytes_of_a_replay(
    chairlift: Run, options: tuple[object, ...]
) -> None:
    alone = chairlift("replay", *options, "--json")
    fleet = chairlift("replay", *options, "--json", "--replicas", 1)
    assert alone.returncode == fleet.returncode == 0
    assert alone.stderr == fleet.stderr
    assert alone.stdout
    assert fleet.stdout.startswith(alone.stdout)
    more = [json.loads(line) for line in fleet.stdout[len(alone.stdout) :].splitlines()]
    assert [list(row) for row in more] == [KEYS] * max(1, options.count("--batching"))


def test_the_last_line_has_the_figures_of_the_fleet(chairlift: Run) -> None:
    command = ("replay", "--trace", "prefix", "--requests", 300, "--replicas", 4, "--json")
    for routing in ("round-robin", "least-load", "prefix", "both"):
        run = chairlift(*command, "--routing", routing, "--blocks-per-replica", 2000)
        *rows, last = results(run)
        assert [list(row) for row in rows] == [POLICY_KEYS]
        assert list(last) == KEYS
        assert (last["routing"], last["replicas"], last["requests"]) == (routing, 4, 300)
        assert 0 < last["hit_rate"] < last["hit_rate_of_ceiling"] <= 1
        assert last["load_imbalance"] >= 1
        assert 0 < last["ttft_p50_s"] < last["ttft_p99_s"]


def test_roles_say_what_prefill_replicas_computed(chairlift: Run) -> None:
    command = ("replay", "long", "--requests", 100, "--roles", "1:3")
    *_, last = results(chairlift(*command, "--json", "--transfer-per-token", "5us"))
    assert (last["roles"], last["replicas"], last["requests"]) == ("1:3", 4, 100)
    assert last["whole_prompts"] > 0
    assert last["transferred_tokens"] >= 256 * last["whole_prompts"]
    assert "whole_prompts" in chairlift(*command).stdout
    plain = ("replay", "prefix", "--requests", 300, "--replicas", 4)
    assert "whole_prompts" not in chairlift(*plain).stdout


def test_infinitely_fast_steps_have_no_times(chairlift: Run) -> None:
    command = ("replay", "prefix", "--requests", 60, "--replicas", 2, "--infinitely-fast")
    *_, last = results(chairlift(*command, "--json"))
    assert (last["ttft_p50_s"], last["ttft_p99_s"]) == (None, None)
    assert last["hit_rate"] > 0
    table = chairlift(*command).stdout
    assert "hit_rate_of_ceiling" in table


def test_the_same_command_prints_the_same_bytes(chairlift: Run) -> None:
    command = ("replay", "chat", "--requests", 200, "--replicas", 5, "--seed", 9, "--json")
    more = ("--failures-per-hour", 400, "--restart", "3s", "--report-interval", "100ms")
    runs = [chairlift(*command, *more, "--routers", 3, "--router-lag", "2ms") for _ in range(2)]
    assert runs[0].stdout == runs[1].stdout
    assert results(runs[0])[-1]["losses"] > 0


def test_a_file_of_mooncakes_format_is_read(chairlift: Run, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    lines = [
        {
            "timestamp": 1000 * i,
            "input_length": 1100,
            "output_length": 5,
            "hash_ids": [0, i % 3 + 1, i % 3 + 11],
        }
        for i in range(60)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = ("replay", "--trace", path, "--replicas", 3, "--infinitely-fast", "--json")
    *_, last = results(chairlift(*command, "--seed", 4))
    assert last["requests"] == 60
    assert last["hit_rate_of_ceiling"] == pytest.approx(1, abs=0.06)
    # Without replicas too.
    assert results(chairlift("replay", path, "--json"))[0]["requests"] == 60


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--routing", "both"), "--routing"),
        (("--blocks-per-replica", 100), "--blocks-per-replica"),
        (("--infinitely-fast",), "--infinitely-fast"),
        (("--day", "1h"), "--day"),
        (("--replicas", 2, "--draw", 5), "--draw"),
        (("--replicas", 2, "--write", "file"), "--write"),
        (("--replicas", 2, "--pad-static"), "--pad-static"),
        (("--replicas", 2, "--detection", "1s"), "--detection"),
        (("--replicas", 2, "--restart", "1s"), "--restart"),
        (("--replicas", 2, "--target-requests", 4), "--target-requests"),
        (("--replicas", 2, "--min-replicas", 3), "--min-replicas"),
        (("--replicas", 0), "--replicas"),
        (("--replicas", 2, "--transfer-per-token", "1us"), "--transfer-per-token"),
        (("--roles", "2"), "--roles"),
        (("--roles", "0:2"), "--roles"),
        (("--roles", "9000:2"), "--roles"),
        (("--roles", "4000:97"), "--roles"),
        (("--roles", "1:2", "--replicas", 4), "--replicas"),
        (("--roles", "1:2", "--failures-per-hour", 1), "--failures-per-hour"),
        (("--roles", "1:2", "--min-replicas", 1), "--min-replicas"),
        (("--roles", "1:2", "--infinitely-fast"), "--infinitely-fast"),
        (("--roles", "1:2", "--no-prefix-cache"), "--roles"),
        (("--replicas", 4097), "--replicas"),
        (("--replicas", 2, "--infinitely-fast", "--step-fixed", "1ms"), "--step-fixed"),
        (
            ("--replicas", 2, "--blocks-per-replica", 9, "--kv-cache-memory", "1GiB"),
            "--kv-cache-memory",
        ),
        (("--trace", "chat"), "--trace"),
    ],
)
def test_an_option_without_a_meaning_is_refused_by_its_name(
    chairlift: Run, options: tuple[object, ...], named: str
) -> None:
    assert_one_line(chairlift("replay", "nano", "--requests", 4, *options), named)


def test_a_trace_must_be_named(chairlift: Run) -> None:
    assert_one_line(chairlift("replay", "--replicas", 2), "trace")
