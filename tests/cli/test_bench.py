"""`chairlift bench --json`: one object per line, these keys, and figures that can be true."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from chairlift.api.errors import ChairliftError
from chairlift.cli.bench import embeddings
from chairlift.cli.bench.load import LoadResult, SentRequest
from chairlift.cli.bench.sent_load import figures

from tests.cli.conftest import Result, Run
from tests.engine import tiny_encoder


def results(run: Result) -> list[dict[str, Any]]:
    assert run.returncode == 0, run
    return [json.loads(line) for line in run.stdout.splitlines()]


def test_scheduler(chairlift: Run) -> None:
    run = chairlift("bench", "scheduler", "--json", "--steps", 20, "--running", 3, "--running", 9)
    rows = results(run)
    assert [row["running"] for row in rows] == [3, 9]
    for row in rows:
        assert list(row) == ["running", "step_p50_s", "step_p99_s"]
        assert 0 < row["step_p50_s"] <= row["step_p99_s"]


def test_offline(chairlift: Run, tiny_folder: Path, tmp_path: Path) -> None:
    work = tmp_path / "work.jsonl"
    lengths = [5, 1, 12, 7]
    lines = [{"prompt_token_ids": [3, 4, 5], "max_tokens": length} for length in lengths]
    work.write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = chairlift("bench", "offline", tiny_folder, "--workload", work, "--json", "--repeat", 2)
    rows = results(run)
    assert len(rows) == 2
    for row in rows:
        assert list(row) == ["output_tokens", "seconds", "tokens_per_s"]
        assert row["output_tokens"] == sum(lengths)
        assert row["tokens_per_s"] == pytest.approx(row["output_tokens"] / row["seconds"])


SPECULATION_KEYS = [
    *("requests", "drafts", "acceptance", "tokens per step"),
    *("without_tokens_per_s", "tokens_per_s", "gain"),
]


def test_speculation(chairlift: Run, tiny_folder: Path) -> None:
    run = chairlift(
        *("bench", "speculation", tiny_folder, "--json", "--pairs", 1, "--max-tokens", 6),
    )
    rows = results(run)
    for row in rows:
        assert list(row) == ["workload", "batch", *SPECULATION_KEYS]
        assert row["tokens per step"] >= 1
        assert row["gain"] > 0
    assert {row["batch"] for row in rows} == {1, 8}


def test_speculation_by_a_draft_model(chairlift: Run, tiny_folder: Path) -> None:
    run = chairlift(
        *("bench", "speculation", tiny_folder, "--json", "--pairs", 1, "--max-tokens", 6),
        *("--draft", tiny_folder, "--draft-quantize", "int8", "--max-num-seqs", 1),
    )
    rows = results(run)
    assert {row["batch"] for row in rows} == {1}
    assert all(row["gain"] > 0 for row in rows)


def test_speculation_with_drafts_that_are_right_or_wrong(chairlift: Run, tiny_folder: Path) -> None:
    run = chairlift(
        *("bench", "speculation", tiny_folder, "--proposer", "--json", "--pairs", 1),
        *("--max-tokens", 6),
    )
    rows = results(run)
    assert list(rows[0]) == ["right", "batch", "proposed", *SPECULATION_KEYS]
    drafted = [row for row in rows if row["drafts"]]
    assert {"0%", "100%"} <= {row["right"] for row in drafted}
    for row in drafted:
        assert row["acceptance"] == {"0%": 0, "100%": 1}.get(row["right"], row["acceptance"])


@pytest.mark.parametrize("line", ["nonsense", "{}", '{"prompt_token_ids": 3, "max_tokens": 1}'])
def test_offline_names_the_bad_line(chairlift: Run, tmp_path: Path, line: str) -> None:
    work = tmp_path / "work.jsonl"
    work.write_text('{"prompt_token_ids": [1], "max_tokens": 1}\n' + line + "\n")
    run = chairlift("bench", "offline", "--workload", work)
    assert run.returncode == 2
    assert run.stderr.startswith(f"error: {work}:2: expected")
    assert run.stderr.count("\n") == 1


KERNEL_KEYS = ["name", "shape", "seconds", "gb_per_s", "gflop_per_s", "fraction_of_roofline"]


def test_kernels(chairlift: Run, tiny_folder: Path) -> None:
    run = chairlift("bench", "kernels", tiny_folder, "--json", "--rows", 3, "--repeat", 3)
    rows = results(run)
    for row in rows:
        assert list(row) == KERNEL_KEYS
        assert row["seconds"] > 0
        assert row["fraction_of_roofline"] > 0
    names = {row["name"] for row in rows}
    assert names >= {"read", "float32", "bfloat16", "int8", "int4", "decode_attention", "rms_norm"}
    # The roofline is its own measure.
    assert rows[0]["fraction_of_roofline"] == pytest.approx(1)


def test_kernels_of_chosen_formats(chairlift: Run, tiny_folder: Path) -> None:
    command = ("bench", "kernels", tiny_folder, "--json", "--rows", 3, "--repeat", 3)
    rows = results(chairlift(*command, "--format", "Q8_0", "--format", "Q4_1"))
    names = {row["name"] for row in rows if row["shape"].startswith("3 x ")}
    assert names == {"Q8_0", "Q4_1", "rms_norm", "silu_mul", "rope"}
    run = chairlift(*command, "--format", "Q9_9")
    assert run.returncode == 2
    assert "--format: expected one of float32, " in run.stderr
    assert "got Q9_9" in run.stderr


DURATION_KEYS = [
    f"{name}_{what}_s"
    for name in ("ttft", "tpot", "itl", "latency")
    for what in ("mean", "std", "p50", "p90", "p95", "p99")
]
POLICY_KEYS = [
    *("policy", "requests", "output_tokens", "seconds", "tokens_per_s", "total_tokens_per_s"),
    *("requests_per_s", "slot_utilization", "budget_utilization", "kv_waste"),
    *DURATION_KEYS,
]


SERVE_KEYS = [
    *("run", "rate_per_s", "requests", "failed", "output_tokens", "seconds"),
    *("tokens_per_s", "total_tokens_per_s", "requests_per_s"),
    *DURATION_KEYS,
]


def test_serve_measures_a_server_from_outside(chairlift: Run, target: str) -> None:
    run = chairlift(
        *("bench", "serve", "--target", target, "--json", "--requests", 6, "--max-tokens", 20),
        *("--streams", 2, "--rate", 100),
    )
    (row,) = results(run)
    assert list(row) == SERVE_KEYS
    assert (row["requests"], row["failed"]) == (6, 0)
    assert 6 <= row["output_tokens"] <= 6 * 20
    assert 0 < row["ttft_p50_s"] <= row["latency_p50_s"] <= row["seconds"]


@pytest.mark.skipif(sys.platform != "linux", reason="the server gets a core of its own")
def test_serve_without_a_model_delivers_every_token(chairlift: Run) -> None:
    run = chairlift(
        *("bench", "serve", "--engine", "null", "--json", "--requests", 16, "--streams", 3),
        *("--max-tokens", 25, "--step-time", "2ms"),
    )
    (row,) = results(run)
    assert list(row)[: len(SERVE_KEYS)] == SERVE_KEYS
    assert (row["output_tokens"], row["failed"]) == (16 * 25, 0)
    assert row["messages"] >= 25
    assert 0 < row["delivery_p50_s"] <= 0.002


def test_serve_says_when_every_request_failed() -> None:
    load = LoadResult([SentRequest(0.0, 4, failure=why) for why in ("QUEUE_FULL", "DRAINING")])
    with pytest.raises(ChairliftError, match="every request failed, the first with QUEUE_FULL"):
        figures(load)


def test_embeddings_compares_sizes_policies_and_windows(
    chairlift: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_encoder.write(tmp_path)
    monkeypatch.setattr(embeddings, "SIZES", (1, 4))
    found = results(chairlift("bench", "embeddings", tmp_path, "--texts", 6, "--json"))
    bulk = [result for result in found if result["part"] == "at once"]
    assert [result["size"] for result in bulk] == [1, 4]
    arriving = found[len(bulk) :]
    policies = {result["policy"].split(",")[0] for result in arriving}
    assert policies == {"one at a time", "continuous", "dynamic", "static"}
    rate = 0.7 * max(result["texts_per_s"] for result in bulk)
    for result in arriving:
        assert result["arrivals_per_s"] == pytest.approx(rate)
        assert 0 < result["latency_p50_s"] <= result["latency_p99_s"]
        assert 1 <= result["texts_per_step"] <= 6
    lines = embeddings.picture(arriving)
    assert len(lines) == 1 + len(arriving)
    assert all("█" in line for line in lines[1:])
    assert max(map(len, lines)) <= 80


def test_embeddings_needs_a_model_of_vectors(chairlift: Run, tmp_path: Path) -> None:
    tiny_encoder.write(tmp_path, num_labels=3)
    run = chairlift("bench", "embeddings", tmp_path)
    assert (run.returncode, run.stdout) == (2, "")
    assert "expected one that gives vectors" in run.stderr
