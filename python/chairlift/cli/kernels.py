"""`chairlift kernels`: the CUDA kernels, compiled ahead of time and listed."""

from typing import Annotated

import typer

from chairlift.checkpoints.files.folder import check_model
from chairlift.cli.command import add_command, new_app

Model = Annotated[
    str | None,
    typer.Argument(help="Only what this model needs: demo, a folder or an id. Default: all."),
]


def build(
    model: Model = None,
    *,
    arch: Annotated[
        list[str] | None,
        typer.Option(
            help="Such as sm_90a; may be repeated. Default: this machine's GPU, or all supported."
        ),
    ] = None,
) -> None:
    """Compile the kernels into the cache on disk; neither a GPU nor nvcc is needed."""
    _check(model)
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from chairlift.kernels.cuda.build import ARCHITECTURES, kernel_folder, local_architectures
    from chairlift.kernels.cuda.build import build as compile_kernels

    names, architectures = _names(model), arch or local_architectures() or list(ARCHITECTURES)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns) as progress:
        for architecture in architectures:
            task = progress.add_task(architecture, total=len(names))
            compile_kernels(
                names,
                architecture,
                lambda done, _, __: progress.update(task, completed=done),  # noqa: B023, at once
            )
    typer.echo(f"{len(names)} kernels for {', '.join(architectures)} in {kernel_folder()}")


def list_kernels(model: Model = None) -> None:
    """Name the instantiations, one a line, as C++ and the launcher call them."""
    _check(model)
    for name in _names(model):
        typer.echo(name)


def _check(model: str | None) -> None:
    """Check the model before torch is imported."""
    if model is not None:
        check_model(model)


def _names(model: str | None) -> list[str]:
    from chairlift.kernels.cuda.sources import all_kernels, kernels_of

    if model is None:
        return all_kernels()

    from chairlift.api.config import EngineConfig
    from chairlift.api.errors import ConfigError
    from chairlift.checkpoints.checkpoint import check_files
    from chairlift.checkpoints.files.folder import resolve_model
    from chairlift.engine.loading.devices import compute_dtype, gpu_unsupported_reason
    from chairlift.model.config import ModelConfig

    folder = resolve_model(model)
    settings, config = EngineConfig(), ModelConfig.load(folder)
    check_files(folder, may_lack_all=True)
    if (unsupported_reason := gpu_unsupported_reason(settings, config)) is not None:
        raise ConfigError(unsupported_reason)
    spec, dtype = config.spec, compute_dtype(settings, config)
    parts = {"has_experts": spec.router_size > 0, "has_states": spec.has_state}
    return kernels_of(dtype, spec.head_dims, **parts)


app = new_app("The CUDA kernels: compile them ahead of time, list them.")
add_command(app, "build", build)
add_command(app, "list", list_kernels)
