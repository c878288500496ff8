"""The process of a rank other than 0: it loads its part, and computes until its group ends."""

import ctypes
import logging
import os
import signal
import socket
import sys
from typing import Any, Final

import torch

from chairlift import _core
from chairlift.api.errors import ChairliftError
from chairlift.api.logs import fields
from chairlift.engine.loading.rank_part import load_rank
from chairlift.engine.ranks.processes import READY
from chairlift.engine.ranks.segment import Layout
from chairlift.kernels.cuda.device import Accelerator, CudaDevice

_PR_SET_PDEATHSIG: Final = 1

_log = logging.getLogger(__name__)


def main(settings: dict[str, Any], accelerator: Accelerator | None = None) -> None:
    """Load the part of a rank, say that it is ready, and compute until the group ends.

    Args:
        settings: What rank 0 sent.
        accelerator: In the place of the rank's GPU.
    """
    _end_with(settings["parent"])
    # A terminal and a service manager signal all processes: this one goes on while rank 0 drains.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    rank = settings["rank"]
    layout = Layout(*settings["layout"])
    descriptor = settings["descriptor"]
    group = layout.open(descriptor, rank, settings["spin_s"], settings["timeout_s"])
    os.close(descriptor)
    try:
        adapters = socket.socket(fileno=settings["adapters"])
        if settings["on_gpus"] and accelerator is None:
            torch.cuda.set_device(rank)
            accelerator = CudaDevice(rank)
        run = load_rank(settings, group, adapters, accelerator)
    # A GPU that fails, or has no memory left, raises a RuntimeError.
    except (ChairliftError, MemoryError, OSError, RuntimeError) as error:
        print(" ".join(str(error).split()) or type(error).__name__, flush=True)
        sys.exit(1)
    print(READY, flush=True)
    # No process reads the pipe any more: what a library writes must not fill it.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    code = 0
    try:
        run()
    except _core.RankError as error:
        _log.warning("a rank ends with its group: %s", error, extra=fields(rank=rank))
    except BaseException:
        group.fail(rank)
        _log.exception("a rank fails", extra=fields(rank=rank))
        code = 1
    if accelerator is not None:
        # The destructors of NCCL may wait for a device that waits for another rank.
        os._exit(code)
    sys.exit(code)


def _end_with(parent: int) -> None:
    """Have the kernel kill this process when the thread that started it ends.

    A process that is stopped ends, too.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        # It ended before.
        os._exit(1)
