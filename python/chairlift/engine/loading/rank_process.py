"""The process of a rank other than 0: it loads its part, and computes until its group ends."""

import ctypes
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch

from chairlift import _core
from chairlift.api.config import engine_config
from chairlift.api.errors import ChairliftError
from chairlift.api.logs import fields
from chairlift.engine.loading.ranks import load_part
from chairlift.engine.ranks.adapter_socket import ReadAdapters
from chairlift.engine.ranks.processes import READY
from chairlift.engine.ranks.segment import Layout
from chairlift.engine.ranks.worker import RankWorker
from chairlift.engine.runner.shape import RunnerShape
from chairlift.model.forward.kv_cache import allocate_kv_cache
from chairlift.model.forward.transformer import Transformer
from chairlift.model.lora.load import load_adapter
from chairlift.model.lora.tables import AdapterTables
from chairlift.model.weights.resident import trim_heap

_PR_SET_PDEATHSIG: Final = 1

_log = logging.getLogger(__name__)


def main(settings: dict[str, Any]) -> None:
    """Load the part of a rank, say that it is ready, and compute until the group ends."""
    _end_with(settings["parent"])
    # A terminal and a service manager signal all processes: this one goes on while rank 0 drains.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    rank, shape = settings["rank"], RunnerShape(*settings["shape"])
    layout = Layout(*settings["layout"])
    descriptor = settings["descriptor"]
    group = layout.open(descriptor, rank, settings["spin_s"], settings["timeout_s"])
    os.close(descriptor)
    try:
        run = _load(settings, group, shape)
    except (ChairliftError, MemoryError, OSError) as error:
        print(" ".join(str(error).split()) or type(error).__name__, flush=True)
        sys.exit(1)
    print(READY, flush=True)
    try:
        run()
    except _core.RankError as error:
        _log.warning("a rank ends with its group: %s", error, extra=fields(rank=rank))
    except BaseException:
        group.fail(rank)
        _log.exception("a rank fails", extra=fields(rank=rank))
        sys.exit(1)


def _load(
    settings: dict[str, Any], group: _core.RankGroup, shape: RunnerShape
) -> Callable[[], None]:
    """Return what computes until the group is closed; see `RankWorker.run`."""
    config = engine_config(**settings["config"])
    torch.set_num_threads(1)
    _core.set_num_threads(settings["num_threads"])
    part = load_part(Path(settings["model"]), config, settings["max_model_len"], settings["rank"])
    worker = RankWorker(group, part.scratch, shape)
    num_slots = part.resolved.settings.num_adapter_slots
    tables = AdapterTables(part.config.spec.num_layers, num_slots) if num_slots else None
    transformer = part.transformer(worker, Transformer, tables)
    trim_heap()
    num_blocks = settings["num_blocks"]
    kv_cache = allocate_kv_cache(part.config, part.backend, num_blocks, config.block_size)
    adapters = ReadAdapters(
        socket.socket(fileno=settings["adapters"]),
        lambda load: load_adapter(load.files, part.config, load.max_rank),
    )
    states = part.states(settings["num_snapshots"])
    return partial(worker.run, transformer, kv_cache, states, adapters)


def _end_with(parent: int) -> None:
    """Have the kernel kill this process when the thread that started it ends.

    A process that is stopped ends, too.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        # It ended before.
        os._exit(1)
