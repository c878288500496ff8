"""`chairlift bench policies`: the same work under each policy, sweeps, resumption, refusals."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run
from tests.cli.test_bench import POLICY_KEYS, results

# Drafts depend on measured times, and steps would on them.
SMALL = (
    *("--requests", 12, "--max-tokens", 40, "--drafts", "off"),
    *("--max-num-seqs", 3, "--max-num-batched-tokens", 32),
)


def runs_of(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    assert all(line["schema"] == "chairlift.bench/2" for line in lines)
    return [line for line in lines if line["kind"] == "run"]


def test_policies_do_the_same_work(chairlift: Run, tiny_folder: Path) -> None:
    lines = results(chairlift("bench", "policies", tiny_folder, "--json", *SMALL))
    runs = {run["policy"]: run for run in runs_of(lines)}
    assert list(runs) == ["none", "static", "dynamic", "unchunked", "continuous", "cached"]
    assert len({run["output_tokens"] for run in runs.values()}) == 1
    for run in runs.values():
        assert set(POLICY_KEYS) <= run.keys()
        assert (run["requests"], run["rate_per_s"]) == (12, "max")
        for share in ("slot_utilization", "budget_utilization", "kv_waste"):
            assert 0 < run[share] <= 1
        assert run["ttft_p50_s"] <= run["latency_p50_s"] <= run["seconds"]
        assert run["mean_rows"] == pytest.approx(run["slot_utilization"] * run["rows"])
        assert sum(count for _, count, _ in run["step_curve"]) <= run["num_steps"]
    # Rows do not stay empty until the longest answer of a batch ends.
    assert runs["continuous"]["slot_utilization"] > runs["static"]["slot_utilization"]
    assert (runs["none"]["rows"], runs["none"]["slot_utilization"]) == (1, 1)
    # The prompts of three rows have more than 32 tokens, and take one step.
    assert runs["unchunked"]["num_steps"] < runs["continuous"]["num_steps"]
    (gain,) = (line for line in lines if line["kind"] == "gain")
    ratio = runs["continuous"]["tokens_per_s"] / runs["static"]["tokens_per_s"]
    assert gain["measured"] == pytest.approx(ratio)
    assert gain["slot_ratio"] > 1


def test_padding_computes_more_and_counts_the_same(chairlift: Run, tiny_folder: Path) -> None:
    policies = ("--policies", "padded,static")
    padded, static = runs_of(
        results(chairlift("bench", "policies", tiny_folder, "--json", *SMALL, *policies))
    )
    assert padded["output_tokens"] == static["output_tokens"]
    assert padded["num_steps"] > static["num_steps"]


def test_a_cache_computes_equal_beginnings_once(
    chairlift: Run, tiny_folder: Path, tmp_path: Path
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    beginning = list(range(5, 53))
    lines = [{"prompt_token_ids": [*beginning, i], "max_tokens": 4} for i in range(8)]
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    runs = runs_of(
        results(
            chairlift(
                *("bench", "policies", tiny_folder, "--json", "--prompts", prompts),
                *("--policies", "continuous,cached", "--max-num-seqs", 1, "--drafts", "off"),
            )
        )
    )
    plain, cached = ((run["budget_utilization"] * run["num_steps"]) for run in runs)
    # Seven requests find three blocks of 16 tokens each.
    assert round((plain - cached) * 256) == 7 * 48


def test_a_closed_loop_has_so_many_requests_at_a_time(chairlift: Run, tiny_folder: Path) -> None:
    (run,) = runs_of(
        results(
            chairlift(
                *("bench", "policies", tiny_folder, "--json", *SMALL),
                *("--policies", "continuous", "--concurrency", 2),
            )
        )
    )
    assert run["mean_rows"] <= 2
    assert max(rows for rows, _, _ in run["step_curve"]) == 2


def test_a_sweep_is_continued_where_it_ended(
    chairlift: Run, tiny_folder: Path, tmp_path: Path
) -> None:
    command = (
        *("bench", "policies", tiny_folder, "--json", *SMALL, "--into", tmp_path),
        *("--policies", "none,continuous", "--batch-sizes", "1,2", "--rates", "200,max"),
        *("--slo", "itl_p99=1min", "--csv", tmp_path / "runs.csv"),
    )
    first = results(chairlift(*command))
    cases = [(run["policy"], run["rows"], run["rate_per_s"]) for run in runs_of(first)]
    assert cases == [
        (policy, rows, rate)
        for policy, rows in [("none", 1), ("continuous", 1), ("continuous", 2)]
        for rate in (200.0, "max")
    ]
    capacities = [line for line in first if line["kind"] == "capacity"]
    assert [(line["policy"], line["rate_per_s"]) for line in capacities] == [
        *(("none", 200), ("continuous", 200), ("continuous", 200))
    ]
    kept = (tmp_path / "runs.jsonl").read_text().splitlines()
    assert len(kept) == len(cases)
    (tmp_path / "runs.jsonl").write_text("\n".join(kept[:4]) + "\n")
    again = results(chairlift(*command))
    assert again[:4] == first[:4]
    assert again[4] != first[4]
    assert [run["key"] for run in runs_of(again)] == [run["key"] for run in runs_of(first)]
    with (tmp_path / "runs.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["tokens_per_s"] for row in rows] == [str(r["tokens_per_s"]) for r in runs_of(again)]
    assert all(float(row["goodput_per_s"]) > 0 for row in rows)


def test_a_recipe_and_a_trace_bring_their_own_times(
    chairlift: Run, tiny_folder: Path, tmp_path: Path
) -> None:
    path = tmp_path / "burst.jsonl"
    drawn = ("--requests", 6, "--scale", 100)
    assert chairlift("replay", "burst", *drawn, "--rate", 200, "--write", path).returncode == 0
    common = ("bench", "policies", tiny_folder, "--json", "--policies", "continuous")
    (recipe,) = runs_of(results(chairlift(*common, "--recipe", "nano", *drawn)))
    assert recipe["rate_per_s"] is None
    assert recipe["lengths"]["prompt_mean"] == pytest.approx(5.6, abs=3)
    (trace,) = runs_of(results(chairlift(*common, "--trace", path)))
    assert (trace["rate_per_s"], trace["requests"]) == (None, 6)


def test_the_table_fits_a_terminal(chairlift: Run, tiny_folder: Path) -> None:
    run = chairlift("bench", "policies", tiny_folder, *SMALL, "--policies", "static,continuous")
    assert run.returncode == 0
    assert "policy" in run.stdout
    assert "at 3 rows" in run.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--policies", "static,eager"), "--policies: expected some of none, padded, static"),
        (("--rates", "2,fast"), "--rates: expected rates such as 2,4,8,max, got 'fast'"),
        (("--rates", "0"), "--rates: expected rates"),
        (("--rates", "inf"), "--rates: expected rates"),
        (("--batch-sizes", "1,0"), "--batch-sizes: expected rows such as 1,2,4,8, got '0'"),
        (("--slo", "itl=1s"), "--slo: expected bounds such as"),
        (("--recipe", "cake"), "--recipe: expected one of chat"),
        (("--scale", 2), "--scale: expected --recipe beside it"),
        (("--recipe", "chat", "--prompts", "p"), "--recipe: expected no --prompts beside it"),
        (("--prompts", "nowhere"), "--prompts: cannot read nowhere"),
        (("--burstiness", 2), "--burstiness: expected --rates beside it"),
        (("--concurrency", 2, "--rates", 1), "--concurrency: expected no --rates"),
        (("--recipe", "anyscale"), "recipe anyscale: request 1 has"),
    ],
)
def test_a_bad_option_is_named(
    chairlift: Run, tiny_folder: Path, options: tuple[object, ...], message: str
) -> None:
    run = chairlift("bench", "policies", tiny_folder, *options)
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr.startswith("error: ")
    assert message in run.stderr
    assert run.stderr.count("\n") == 1


def test_a_line_that_is_no_prompt_is_named(
    chairlift: Run, tiny_folder: Path, tmp_path: Path
) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "a"}\n\n{"prompt": "b", "max_tokens": 0}\n')
    run = chairlift("bench", "policies", tiny_folder, "--prompts", path)
    assert run.returncode == 2
    assert f"--prompts: {path}:3: expected" in run.stderr
