"""`chairlift rank`: one process of a model that several hosts compute."""

import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from chairlift.api.addresses import rank_address
from chairlift.api.config import checked
from chairlift.api.logs import LogConfig, configure, fields
from chairlift.api.machine import available_cores
from chairlift.checkpoints.files.folder import MODEL_HELP, check_model, resolve_model
from chairlift.checkpoints.files.key_file import read_key
from chairlift.cli.config_options import config_options

_log = logging.getLogger(__name__)


@config_options(LogConfig, LogConfig.model_fields, into="log_settings", panel="Log")
def rank(
    model: Annotated[str, typer.Argument(help=MODEL_HELP)],
    *,
    leader: Annotated[
        str,
        typer.Option(
            envvar="LWS_LEADER_ADDRESS",
            show_envvar=False,
            help="Address of rank 0, HOST or HOST:PORT: the --rank-listen of its server. Default:"
            " LWS_LEADER_ADDRESS, the leader of a LeaderWorkerSet.",
        ),
    ],
    rank: Annotated[
        int,
        typer.Option(
            envvar="LWS_WORKER_INDEX",
            show_envvar=False,
            min=1,
            max=63,
            help="Number of this rank, 1 or more. Default: LWS_WORKER_INDEX, of a LeaderWorkerSet.",
        ),
    ],
    rank_key: Annotated[
        Path,
        typer.Option(
            envvar="CHAIRLIFT_RANK_KEY",
            show_envvar=False,
            help="File with 32 secret bytes or more, the same on all hosts.",
        ),
    ],
    num_threads: Annotated[
        int | None,
        typer.Option(
            envvar="CHAIRLIFT_NUM_THREADS",
            show_envvar=False,
            min=1,
            help="Threads of the kernels; default: the cores this process may use.",
        ),
    ] = None,
    log_settings: dict[str, Any],
) -> None:
    """Compute a part of a model whose server runs on another host.

    The server is `chairlift serve MODEL --tensor-parallel N --rank-listen ADDRESS`. When it ends or
    starts again, this process joins again, for ten minutes at most. SIGTERM ends it when its group
    has ended, a second one at once.
    """
    configure(checked(LogConfig, **log_settings))
    address = rank_address(leader, "leader")
    key = read_key("rank_key", str(rank_key), may_group_read=True)
    check_model(model)
    ending = _Ending()
    from chairlift.engine.loading.host_rank import HostRank

    num_threads = num_threads or available_cores()
    host_rank = HostRank(resolve_model(model), address, key, rank, num_threads)

    def on_ready(num_ranks: int) -> None:
        typer.echo(f"rank {rank} of {num_ranks} computes for {address}")

    while True:
        typer.echo(f"joining {address} as rank {rank}")
        group = host_rank.join()
        with ending.deferred():
            host_rank.compute(group, on_ready)
        del group
        _log.info("the group has ended", extra=fields(rank=rank))


class _Ending:
    """Ends the process at SIGTERM: amid a group when that has ended, or at the second signal.

    The server drains meanwhile: an orchestrator signals all processes of a group together.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_deferred = self._is_ending = False
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        # The main thread waits for other ranks outside of the interpreter, where no handler runs.
        self._read_end, write_end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(write_end, False)
        signal.set_wakeup_fd(write_end)
        signal.signal(signal.SIGTERM, lambda *_: None)
        threading.Thread(target=self._wait, name="chairlift-signals", daemon=True).start()

    def _wait(self) -> None:
        while os.read(self._read_end, 1):
            with self._lock:
                if self._is_ending or not self._is_deferred:
                    os._exit(0)
                self._is_ending = True

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """End the process behind this context where a signal comes amid it."""
        with self._lock:
            self._is_deferred = True
        try:
            yield
        finally:
            with self._lock:
                self._is_deferred = False
                if self._is_ending:
                    os._exit(0)
