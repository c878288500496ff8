"""`chairlift plan`: the memory of a model before anything is loaded."""

import json
from pathlib import Path

import pytest
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

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


def test_a_token_of_a_mixture_reads_some_experts(chairlift: Run, tmp_path: Path) -> None:
    sizes = dict.fromkeys(("vocab_size", "hidden_size", "intermediate_size"), 64)
    config = Qwen3MoeConfig(
        **sizes,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        moe_intermediate_size=32,
        num_experts=8,
        num_experts_per_tok=2,
    )
    Qwen3MoeForCausalLM(config).save_pretrained(tmp_path)
    plan = json.loads(chairlift("plan", tmp_path, "--dtype", "float32", "--json").stdout)
    bytes_of_an_expert = 4 * (3 * 64 * 32 + 2 * 32 + 64)
    assert plan["weight_bytes"] - plan["active_weight_bytes"] == 2 * 6 * bytes_of_an_expert


def test_host_memory_for_swapped_blocks_is_planned(chairlift: Run, tiny_folder: Path) -> None:
    sizes = ("--device", "cpu", "--kv-cache-memory", "1MiB", "--json")
    run = chairlift("plan", tiny_folder, "--swap-memory", "512KiB", *sizes)
    assert run.returncode == 0, run
    plan = json.loads(run.stdout)
    assert plan["swap_bytes"] == plan["num_host_blocks"] * plan["block_bytes"] <= 2**19
    without = json.loads(chairlift("plan", tiny_folder, *sizes).stdout)
    assert plan["total_bytes"] == without["total_bytes"] + plan["swap_bytes"]


def test_a_draft_model_is_planned(chairlift: Run, tiny_folder: Path) -> None:
    sizes = ("--device", "cpu", "--kv-cache-memory", "1MiB", "--json")
    run = chairlift("plan", tiny_folder, "--draft", tiny_folder, *sizes)
    assert run.returncode == 0, run
    plan = json.loads(run.stdout)
    without = json.loads(chairlift("plan", tiny_folder, *sizes).stdout)
    parts = ("weight_bytes", "kv_cache_bytes", "activation_bytes")
    # The same model once more, with as many blocks.
    assert plan["draft_bytes"] == sum(without[part] for part in parts)
    assert plan["total_bytes"] == without["total_bytes"] + plan["draft_bytes"]
    run = chairlift("plan", tiny_folder, "--draft", "demo", *sizes)
    assert run.returncode == 2
    assert run.stderr.startswith(f"error: --draft: expected the tokenizer of {tiny_folder}, got")


def test_a_person_reads_units(chairlift: Run, tiny_folder: Path) -> None:
    run = chairlift("plan", tiny_folder, "--kv-cache-memory", "1MiB")
    assert run.returncode == 0, run
    for words in (
        "KV cache",
        "KiB",
        "limit",
        "this machine",
        "keys and values of 16 tokens",
        "fits",
    ):
        assert words in run.stdout


def test_a_cache_without_blocks_is_refused(chairlift: Run, tiny_folder: Path) -> None:
    run = chairlift("plan", tiny_folder, "--kv-cache-memory", 1)
    assert run.returncode != 0
    assert "--kv-cache-memory: expected at least" in run.stderr


@pytest.mark.parametrize(
    ("option", "words"),
    [
        (("--kv-cache-memory", "3TiB"), ("3.00 TiB of", "lower --kv-cache-memory")),
        (("--swap-memory", "3TiB", "--device", "cpu"), ("3.00 TiB of", "--swap-memory")),
        (
            ("--max-num-batched-tokens", 2**40),
            ("weights and activations take", "--max-num-batched-tokens"),
        ),
    ],
)
def test_what_does_not_fit_is_said_and_ends_with_1(
    chairlift: Run, option: tuple[str, ...], words: tuple[str, ...]
) -> None:
    run = chairlift("plan", "demo", *option)
    assert (run.returncode, run.stderr.count("\n")) == (1, 1)
    assert run.stderr.startswith("error: does not fit: ")
    for word in words:
        assert word in run.stderr
    assert "fits" not in run.stdout
    output = chairlift("plan", "demo", *option, "--json")
    plan = json.loads(output.stdout)
    assert (output.returncode, plan["fits"]) == (1, False)
    assert plan["total_bytes"] > plan["limit_bytes"]


def test_the_plan_of_ranks_is_that_of_each(chairlift: Run, tiny_folder: Path) -> None:
    sizes = ("--device", "cpu", "--kv-cache-memory", "1MiB", "--json")
    one = json.loads(chairlift("plan", tiny_folder, *sizes).stdout)
    two = json.loads(chairlift("plan", tiny_folder, "--tensor-parallel", "2", *sizes).stdout)
    assert (one["num_ranks"], two["num_ranks"]) == (1, 2)
    # The ranks share the memory of the cache: as many blocks, of which each has half.
    assert two["num_blocks"] == one["num_blocks"]
    assert two["block_bytes"] == one["block_bytes"] // 2
    assert one["weight_bytes"] // 2 < two["weight_bytes"] < one["weight_bytes"]
    assert two["limit_bytes"] == one["limit_bytes"] // 2


def test_the_plan_of_ranks_judges_one_machine_for_all_and_one_for_each(
    chairlift: Run, tiny_folder: Path
) -> None:
    sizes = ("--device", "cpu", "--tensor-parallel", "2", "--kv-cache-memory", "1MiB")
    hosts = ("--rank-listen", "0.0.0.0", "--rank-key", "ranks.key")

    def plan(*options: str) -> tuple[int, dict[str, int]]:
        run = chairlift("plan", tiny_folder, *sizes, *options, "--json")
        return run.returncode, json.loads(run.stdout)

    code, small = plan("--max-num-batched-tokens", "1000")
    assert (code, small["all_ranks_fits"], small["one_rank_fits"]) == (0, True, True)
    assert small["all_ranks_bytes"] == 2 * small["total_bytes"]
    code, apart = plan("--max-num-batched-tokens", "1000", *hosts)
    assert (code, apart["limit_bytes"]) == (0, small["machine_bytes"])
    assert apart["one_rank_bytes"] == small["one_rank_bytes"] == apart["total_bytes"]
    assert apart["all_ranks_bytes"] == small["all_ranks_bytes"]
    # Steps of which each rank takes seven tenths of the machine.
    num_tokens = 700 * small["machine_bytes"] // small["activation_bytes"]
    large = ("--max-num-batched-tokens", str(num_tokens))
    code, together = plan(*large)
    assert (code, together["fits"]) == (1, False)
    assert (together["all_ranks_fits"], together["one_rank_fits"]) == (False, True)
    code, apart = plan(*large, *hosts)
    assert (code, apart["fits"]) == (0, True)
    run = chairlift("plan", tiny_folder, *sizes, *large)
    assert run.returncode == 1
    lines = run.stdout.splitlines()[-2:]
    assert lines[0].startswith("one machine for all 2 ranks: does not fit, ")
    assert lines[1].startswith("a machine for each rank (--rank-listen): fits, ")


def test_ranks_with_adapters_have_one_machine(chairlift: Run, tiny_folder: Path) -> None:
    sizes = ("--device", "cpu", "--tensor-parallel", "2", "--max-adapters", "2")
    run = chairlift("plan", tiny_folder, *sizes)
    assert run.returncode == 0, run
    assert "one machine for all 2 ranks: fits, " in run.stdout
    assert "--rank-listen" not in run.stdout


def test_ranks_that_cannot_share_the_heads_are_no_plan(chairlift: Run, tiny_folder: Path) -> None:
    run = chairlift("plan", tiny_folder, "--tensor-parallel", "3")
    assert run.returncode == 2
    expected = (
        "--tensor-parallel: expected a divisor or a multiple of the model's 2 KV heads, got 3"
    )
    assert expected in run.stderr
