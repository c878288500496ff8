"""`chairlift plan`: the memory plan of a model, in bytes, before anything is loaded."""

from typing import Annotated, Any

import typer

from chairlift.cli.bench.report import Json, Result, report
from chairlift.cli.config_options import engine_options
from chairlift.cli.values import format_size

SIZES = (
    *("max_num_seqs", "max_num_batched_tokens", "max_model_len"),
    *("kv_cache_memory", "swap_memory", "device", "dtype", "quantize", "kv_cache_dtype"),
)


@engine_options(only=frozenset(SIZES))
def plan(
    model: Annotated[str, typer.Argument(help="demo, a folder or a Hugging Face id.")] = "demo",
    *,
    as_json: Json = False,
    settings: dict[str, Any],
) -> None:
    """Say where the memory of a model goes: weights, KV cache, activations, swap."""
    figures = _figures(model, settings)
    if as_json:
        report([figures], title=model, as_json=True)
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title=model, title_justify="left", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name, value in list(figures.items())[1:]:
        text = format_size(int(value)) if name.endswith("_bytes") else f"{value:,}"
        table.add_row(name.removesuffix("_bytes").replace("_", " "), text)
    Console().print(table)


def _figures(model: str, settings: dict[str, Any]) -> Result:
    from chairlift.config import engine_config
    from chairlift.engine.loading import replan_memory
    from chairlift.machine import memory_limit
    from chairlift.model.config import ModelConfig, resolve_model

    config = engine_config(**settings)
    memory, free = replan_memory(config, ModelConfig.load(resolve_model(model), config.dtype))
    return {
        "model": model,
        "weight_bytes": memory.weight_bytes,
        "kv_cache_bytes": memory.kv_cache_bytes,
        "activation_bytes": memory.activation_bytes,
        "swap_bytes": memory.swap_bytes,
        "total_bytes": memory.total_bytes,
        "limit_bytes": memory_limit() if free is None else free,
        "block_bytes": memory.block_bytes,
        "num_blocks": memory.num_blocks - 1,
        "num_kv_tokens": (memory.num_blocks - 1) * config.block_size,
        "num_host_blocks": memory.num_host_blocks,
    }
