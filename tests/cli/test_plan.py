"""`chairlift plan`: the memory of a model before anything is loaded."""

import json
from pathlib import Path

from tests.cli.conftest import Run


def test_the_plan_adds_up(chairlift: Run, tiny_folder: Path) -> None:
    run = chairlift("plan", tiny_folder, "--kv-cache-memory", "1MiB", "--json")
    assert run.returncode == 0, run
    plan = json.loads(run.stdout)
    parts = ("weight_bytes", "kv_cache_bytes", "activation_bytes")
    assert plan["total_bytes"] == sum(plan[part] for part in parts)
    assert plan["kv_cache_bytes"] == (plan["num_blocks"] + 1) * plan["block_bytes"] <= 2**20
    assert plan["num_kv_tokens"] == 16 * plan["num_blocks"]
    assert (plan["swap_bytes"], plan["num_host_blocks"]) == (0, 0)


def test_host_memory_for_swapped_blocks_is_planned(chairlift: Run, tiny_folder: Path) -> None:
    sizes = ("--device", "cpu", "--kv-cache-memory", "1MiB", "--json")
    run = chairlift("plan", tiny_folder, "--swap-memory", "512KiB", *sizes)
    assert run.returncode == 0, run
    plan = json.loads(run.stdout)
    assert plan["swap_bytes"] == plan["num_host_blocks"] * plan["block_bytes"] <= 2**19
    without = json.loads(chairlift("plan", tiny_folder, *sizes).stdout)
    assert plan["total_bytes"] == without["total_bytes"] + plan["swap_bytes"]


def test_a_person_reads_units(chairlift: Run, tiny_folder: Path) -> None:
    run = chairlift("plan", tiny_folder, "--kv-cache-memory", "1MiB")
    assert run.returncode == 0, run
    assert "kv cache" in run.stdout
    assert "KiB" in run.stdout


def test_a_cache_without_blocks_is_refused(chairlift: Run, tiny_folder: Path) -> None:
    run = chairlift("plan", tiny_folder, "--kv-cache-memory", 1)
    assert run.returncode != 0
    assert "kv_cache_memory: expected at least" in run.stderr
