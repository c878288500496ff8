"""`chairlift plan`: the memory plan of a model, in bytes, before anything is loaded."""

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from chairlift.api.errors import ChairliftError
from chairlift.checkpoints.files.folder import MODEL_HELP, check_model
from chairlift.cli.config_options import engine_options
from chairlift.cli.report import Json, Result, report
from chairlift.cli.values import format_size

if TYPE_CHECKING:
    from chairlift.api.config import EngineConfig
    from chairlift.model.config import ModelConfig
    from chairlift.model.encoders.spec import EncoderConfig

SIZES = (
    *("max_num_seqs", "max_num_batched_tokens", "max_model_len"),
    *("adapters", "adapter_folder", "max_adapters", "max_adapter_rank"),
    *("kv_cache_memory", "swap_memory", "device", "dtype", "quantize", "kv_cache_dtype"),
    *("model_impl", "draft", "draft_quantize", "prefix_cache", "state_snapshots"),
    *("tensor_parallel", "rank_listen", "rank_key"),
)

_WORDS: Final = {
    "weight_bytes": ("weights", "as loaded, and the table of positions"),
    "active_weight_bytes": ("active", "what one token reads of the weights: not all experts"),
    "kv_cache_bytes": ("KV cache", "keys and values of all requests"),
    "activation_bytes": ("activations", "intermediate values of the largest step"),
    "state_bytes": ("states", "recurrent states of all rows, of a hybrid, and their snapshots"),
    "adapter_bytes": ("adapters", "as many as there may be, of the largest rank"),
    "draft_bytes": ("draft model", "its weights, KV cache and activations"),
    "swap_bytes": ("swap", "host memory for preempted requests"),
    "total_bytes": ("total", "where the model runs"),
    "limit_bytes": ("limit", "{limit}"),
    "block_bytes": ("block", "keys and values of {block_size} tokens, in all layers"),
    "num_blocks": ("blocks", "of the KV cache, for all requests"),
    "num_kv_tokens": ("tokens", "of prompts and answers that these blocks hold"),
    "num_host_blocks": ("host blocks", "of the swap"),
}
"""The name of each figure, and its meaning."""

_WAYS: Final = {
    "all_ranks": "one machine for all {num_ranks} ranks",
    "one_rank": "a machine for each rank (--rank-listen)",
}
"""What machines the ranks may have."""


@engine_options(only=frozenset(SIZES))
def plan(
    model: Annotated[str, typer.Argument(help=MODEL_HELP)] = "demo",
    *,
    as_json: Json = False,
    settings: dict[str, Any],
) -> None:
    """Say where the memory of a model goes: weights, KV cache, activations, swap.

    Exit code 1 says that it does not fit. The limit is what the process may use: the memory of the
    machine or of its cgroup, or what is free on the GPU that would run the model. A block is the
    unit in which requests get memory of the KV cache. With several ranks the figures are those of
    each, and the limit is its part of the memory: all of it with --rank-listen, where each rank has
    a machine as large as this one. Two more lines judge both ways.
    """
    check_model(model)
    figures, unsupported_reason = _figures(model, settings)
    if as_json:
        report([figures], title=model, as_json=True)
    else:
        _print(model, figures, "free on the GPU" if figures["device"] == "cuda" else "")
    if unsupported_reason:
        raise ChairliftError(unsupported_reason)


def _print(model: str, figures: Result, limit: str) -> None:
    from rich.console import Console
    from rich.table import Table

    words = {
        "limit": limit or "of this machine, or of the process's cgroup",
        "block_size": int(figures["num_kv_tokens"]) // max(1, int(figures["num_blocks"])),
    }
    num_ranks = int(figures["num_ranks"])
    title = model if num_ranks == 1 else f"{model}: each of {num_ranks} ranks"
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column(style="bright_black")
    for key, (name, meaning) in _WORDS.items():
        value = int(figures[key])
        if key == "active_weight_bytes" and value == figures["weight_bytes"]:
            continue
        text = format_size(value) if key.endswith("_bytes") else f"{value:,}"
        table.add_row(name, text, meaning.format(**words), end_section=key == "limit_bytes")
    console = Console()
    console.print(table)
    if num_ranks > 1:
        for way in _WAYS:
            if f"{way}_bytes" in figures:
                console.print(_judged(way, figures), highlight=False)
    elif figures["fits"]:
        total, allowed = int(figures["total_bytes"]), int(figures["limit_bytes"])
        console.print(f"fits: {format_size(total)} of {format_size(allowed)}", highlight=False)


def _judged(way: str, figures: Result) -> str:
    """Say in one line whether a machine has room for its ranks."""
    total, allowed = int(figures[f"{way}_bytes"]), int(figures["machine_bytes"])
    judgement = "fits" if figures[f"{way}_fits"] else "does not fit"
    name = _WAYS[way].format(num_ranks=figures["num_ranks"])
    return f"{name}: {judgement}, {format_size(total)} of {format_size(allowed)}"


def _figures(model: str, settings: dict[str, Any]) -> tuple[Result, str]:
    """Return the figures, and why the model does not fit; empty if it does."""
    from chairlift.api.config import engine_config
    from chairlift.api.machine import memory_limit
    from chairlift.checkpoints.files.folder import resolve_model
    from chairlift.engine.loading.draft import check_tokenizers
    from chairlift.engine.loading.load import load_config, replan_memory
    from chairlift.text.tokenizer import Tokenizer

    config, folder = engine_config(**settings), resolve_model(model)
    shape = load_config(folder, config)
    memory, free = replan_memory(config, shape)
    if config.draft is not None:
        check_tokenizers(folder, Tokenizer.load(folder), resolve_model(config.draft))
    num_ranks = config.tensor_parallel
    limit = memory_limit() // config.num_local_ranks if free is None else free
    unsupported_reason = _unsupported_reason(
        memory.total_bytes,
        limit,
        fixed=memory.weight_bytes + memory.activation_bytes + memory.draft_bytes,
        states=memory.state_bytes,
        swap=memory.swap_bytes if memory.is_dedicated else 0,
        host_limit=memory_limit(),
    )
    return {
        "model": model,
        "device": "cpu" if free is None else "cuda",
        "num_ranks": num_ranks,
        "fits": not unsupported_reason,
        "weight_bytes": memory.weight_bytes,
        "active_weight_bytes": memory.active_weight_bytes,
        "kv_cache_bytes": memory.kv_cache_bytes,
        "activation_bytes": memory.activation_bytes,
        "state_bytes": memory.state_bytes,
        "adapter_bytes": memory.adapter_bytes,
        "draft_bytes": memory.draft_bytes,
        "swap_bytes": memory.swap_bytes,
        "total_bytes": memory.total_bytes,
        "limit_bytes": limit,
        "block_bytes": memory.block_bytes,
        "num_blocks": memory.num_blocks - 1,
        "num_kv_tokens": (memory.num_blocks - 1) * config.block_size,
        "num_host_blocks": memory.num_host_blocks,
        **({} if num_ranks == 1 else _ways(config, shape)),
    }, unsupported_reason


def _ways(config: "EngineConfig", shape: "ModelConfig | EncoderConfig") -> Result:
    """Return what ranks take of one machine for all, and of one for each, where that is possible.

    A rank that has a machine to itself may have a larger KV cache.
    """
    from chairlift.api.machine import memory_limit
    from chairlift.engine.loading.load import replan_memory

    hosts = config.rank_listen or "0.0.0.0", config.rank_key or "key"
    ways: list[tuple[str, int, str | None, str | None]]
    ways = [("all_ranks", config.tensor_parallel, None, None)]
    # Ranks of several hosts take no adapters.
    if config.num_adapter_slots == 0:
        ways.append(("one_rank", 1, *hosts))
    machine_bytes = memory_limit()
    figures: dict[str, int] = {"machine_bytes": machine_bytes}
    for way, num_ranks, listen, key in ways:
        memory, _ = replan_memory(config, shape, rank_listen=listen, rank_key=key)
        total = num_ranks * memory.total_bytes
        figures |= {f"{way}_bytes": total, f"{way}_fits": total <= machine_bytes}
    return figures


def _unsupported_reason(
    total: int, limit: int, *, fixed: int, states: int, swap: int, host_limit: int
) -> str:
    """Return why a plan does not fit; empty if it does."""
    if states > 0 and fixed <= limit < fixed + states:
        return (
            f"does not fit: weights, activations and recurrent states take"
            f" {format_size(fixed + states)}, the limit is {format_size(limit)}; a lower"
            " --max-num-seqs takes less"
        )
    if fixed > limit:
        return (
            f"does not fit: weights and activations take {format_size(fixed)}, the "
            f"limit is {format_size(limit)}; --quantize and a lower --max-num-batched-tokens "
            "take less"
        )
    if total > limit:
        return (
            f"does not fit: {format_size(total)} of {format_size(limit)}; "
            "lower --kv-cache-memory or --swap-memory"
        )
    if swap > host_limit:
        return (
            f"does not fit: a swap of {format_size(swap)} in host memory of "
            f"{format_size(host_limit)}; lower --swap-memory"
        )
    return ""
