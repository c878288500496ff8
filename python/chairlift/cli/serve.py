"""`chairlift serve`: the server, and the time of its start-up."""

import asyncio
import logging
import os
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from chairlift.api.config import checked, engine_config
from chairlift.api.errors import ChairliftError
from chairlift.api.logs import LogConfig, configure, fields
from chairlift.checkpoints.files.folder import MODEL_HELP, check_model
from chairlift.cli.config_options import config_options, engine_options
from chairlift.cli.config_sources import read_config, settings_of
from chairlift.cli.supervisor import Parent, run_supervised
from chairlift.server.config import ServerConfig

_log = logging.getLogger(__name__)


SERVER_SETTINGS = tuple(name for name in ServerConfig.model_fields if name != "model")
"""Settings with an option, in the order of --help; the model is an argument."""


@config_options(LogConfig, LogConfig.model_fields, into="log_settings", panel="Log")
@engine_options()
@config_options(ServerConfig, SERVER_SETTINGS, into="server_settings", panel="Server")
def serve(
    context: typer.Context,
    model: Annotated[
        str,
        typer.Argument(
            envvar="CHAIRLIFT_MODEL",
            show_envvar=False,
            help=MODEL_HELP,
        ),
    ] = "demo",
    *,
    config: Annotated[  # noqa: ARG001, its callback has done the work
        Path | None,
        typer.Option(
            envvar="CHAIRLIFT_CONFIG",
            show_envvar=False,
            help="TOML file: the names of these options, and their values.",
            callback=read_config,
            is_eager=True,
        ),
    ] = None,
    supervise: Annotated[
        bool,
        typer.Option(
            "--supervise",
            envvar="CHAIRLIFT_SUPERVISE",
            show_envvar=False,
            help="Serve in a child process, and start another after a fault.",
        ),
    ] = False,
    print_config: Annotated[
        bool,
        typer.Option(
            "--print-config", help="Print all settings and their sources as TOML, and exit."
        ),
    ] = False,
    log_settings: dict[str, Any],
    server_settings: dict[str, Any],
    settings: dict[str, Any],
) -> None:
    """Serve a model over gRPC, and over HTTP if asked to, until SIGTERM or Ctrl-C.

    Every option is also an environment variable (--max-num-seqs is CHAIRLIFT_MAX_NUM_SEQS) and a
    line of the TOML file (max-num-seqs = 4). A flag goes before a variable, a variable before the
    file.
    """
    startup = Startup()
    engine = engine_config(**settings)
    server = checked(ServerConfig, model=model, **server_settings)
    log = checked(LogConfig, **log_settings)
    resolved = tuple(settings_of(context, (server, engine, log)))
    if print_config:
        typer.echo("\n".join(setting.toml() for setting in resolved))
        return
    configure(log)
    parent = Parent()
    if supervise and not parent:
        raise typer.Exit(run_supervised([sys.executable, "-m", "chairlift", *sys.argv[1:]]))
    for setting in resolved:
        if setting.source:
            details = fields(name=setting.name, value=setting.value, source=setting.source)
            _log.info("setting", extra=details)
    check_model(model)
    # Below this level gRPC writes a line for each TLS handshake that fails: one for each probe of
    # the port (`server/rpc/listener.py`), and one for each connection of a client without TLS.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    from chairlift import _core
    from chairlift.server.app.run import run_server
    from chairlift.server.ops.watchdog import FAULT_EXIT

    # Defaults depend on the device: only what was set is shown.
    units = {"max_num_seqs": "rows", "max_num_batched_tokens": "tokens a step"}
    sizes = [f"{settings[name]} {unit}" for name, unit in units.items() if name in settings]
    typer.echo(f"loading {model}: {', '.join([f'{engine.batching} batching', *sizes])}")

    def on_ready(address: str) -> None:
        # First, so that a reader of the line can rely on the supervision.
        parent.serving()
        typer.echo(f"serving on {address} after {startup.ready()}")

    def on_http(url: str) -> None:
        typer.echo(f"OpenAI API on {url}/v1")

    def on_page(url: str) -> None:
        typer.echo(f"page {url}")

    # The guard outlives the event loop: a thread that never ends must not keep the process alive.
    guard = _core.ProcessGuard(FAULT_EXIT)
    serving = run_server(
        engine,
        server,
        on_ready,
        on_http=on_http,
        on_page=on_page,
        on_progress=startup.progress,
        guard=guard,
    )
    try:
        code = asyncio.run(serving)
    except ChairliftError:
        # Nothing was served. A program that called this command lives on.
        guard.close()
        raise
    raise typer.Exit(code)


class Startup:
    """The parts of the time to SERVING."""

    def __init__(self) -> None:
        # Start-up is all computation so far, so the CPU time is the age of the process.
        self._started = time.monotonic() - time.process_time()
        self._first: float | None = None
        self._last: float | None = None

    def progress(self, done: int, total: int) -> None:  # noqa: ARG002, one of the two is enough
        """Note that bytes of the weights have been read."""
        self._last = time.monotonic()
        self._first = self._first or self._last

    def ready(self) -> str:
        """Return `3.1 s: imports 2.6 s, weights 0.3 s, warm-up 0.2 s`."""
        now = time.monotonic()
        total = f"{now - self._started:.1f} s"
        if self._first is None or self._last is None:
            return total
        return (
            f"{total}: imports {self._first - self._started:.1f} s, "
            f"weights {self._last - self._first:.1f} s, warm-up {now - self._last:.1f} s"
        )
