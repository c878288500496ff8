"""What a rank other than 0 loads, on the machine of rank 0 or on another."""

import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from chairlift import _core
from chairlift.api.config import engine_config
from chairlift.engine.loading.rank_device import load_device_rank
from chairlift.engine.loading.ranks import load_part
from chairlift.engine.ranks.adapter_socket import ReadAdapters
from chairlift.engine.ranks.worker import RankWorker
from chairlift.engine.runner.shape import RunnerShape
from chairlift.kernels.cuda.device import Accelerator
from chairlift.model.forward.kv_cache import allocate_kv_cache
from chairlift.model.forward.transformer import Transformer
from chairlift.model.lora.load import load_adapter
from chairlift.model.lora.tables import AdapterTables
from chairlift.model.weights.resident import trim_heap


def load_rank(
    settings: dict[str, Any],
    group: _core.RankGroup,
    adapter_socket: socket.socket | None,
    accelerator: Accelerator | None = None,
) -> Callable[[], None]:
    """Load the part of a rank.

    Args:
        settings: What rank 0 sent: `RankSettings`, `shape` and `rank`.
        group: Meets the other ranks.
        adapter_socket: Where rank 0 sends adapters; None where there are none.
        accelerator: The GPU of this rank; None is the CPU.

    Returns:
        What computes until the group is closed; see `RankWorker.run`.

    Raises:
        ChairliftError: The part cannot be loaded.
        MemoryError: There is no memory for it.
        RuntimeError: The GPU has failed.
    """
    shape = RunnerShape(*settings["shape"])
    config = engine_config(**settings["config"])
    torch.set_num_threads(1)
    _core.set_num_threads(settings["num_threads"])
    place = Path(settings["model"]), config, settings["max_model_len"], settings["rank"]
    part = load_part(*place, accelerator)
    if accelerator is not None:
        return load_device_rank(settings, group, part, shape)
    worker = RankWorker(group, part.scratch, shape)
    num_slots = part.resolved.settings.num_adapter_slots
    tables = AdapterTables(part.config.spec.num_layers, num_slots) if num_slots else None
    transformer = part.transformer(worker, Transformer, tables)
    trim_heap()
    num_blocks = settings["num_blocks"]
    kv_cache = allocate_kv_cache(part.config, part.backend, num_blocks, config.block_size)
    adapters = None
    if adapter_socket is not None:
        adapters = ReadAdapters(
            adapter_socket, lambda load: load_adapter(load.files, part.config, load.max_rank)
        )
    states = part.states(settings["num_snapshots"])
    return partial(worker.run, transformer, kv_cache, states, adapters)
