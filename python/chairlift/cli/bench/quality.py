"""`chairlift bench quality`: what a format costs, as perplexity and divergence on a text."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from chairlift.api.choices import Dtype, Quantize
from chairlift.api.errors import ConfigError, ModelError
from chairlift.checkpoints.files.fields import read_file
from chairlift.checkpoints.files.folder import MODEL_HELP, check_model
from chairlift.cli.config_options import engine_options
from chairlift.cli.progress import Progress
from chairlift.cli.report import Json, SparseResult, report

if TYPE_CHECKING:
    from chairlift.bench.quality import ModelFormat

MAX_TEXT_BYTES: Final = 16 << 20
"""Bytes of a text: some four million tokens, which take hours."""


@engine_options(only=frozenset({"dtype", "quantize", "kv_cache_dtype", "num_threads"}))
def quality(
    model: Annotated[str, typer.Argument(help=MODEL_HELP)] = "demo",
    *,
    text: Annotated[Path, typer.Option(help="File of UTF-8 text, such as a part of a test set.")],
    against: Annotated[
        str | None, typer.Option(help="Reference: a model of the same vocabulary, or the same.")
    ] = None,
    against_dtype: Annotated[
        Dtype | None, typer.Option(help="Element type of the reference; default: float32.")
    ] = None,
    against_quantize: Annotated[
        Quantize | None, typer.Option(help="Weights of the reference; default: none.")
    ] = None,
    window: Annotated[
        int | None,
        typer.Option(help="Tokens computed together; default: 512, or the model's most.", min=2),
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="The first of the text.", min=2)] = 8192,
    as_json: Json = False,
    settings: dict[str, Any],
) -> None:
    """Measure how well a model in a format predicts a text, on the CPU.

    perplexity: of each next token. KL per token: the divergence KL(reference || model) in nats.
    agreement: how often the likeliest token is that of the reference.
    """
    reference = _reference(against, against_dtype, against_quantize, settings.get("num_threads"))
    check_model(model)
    if against is not None:
        check_model(against)
    content = _read(text)
    progress = Progress("tokens", as_json=as_json)
    results = _measure(model, settings, reference, content, window, max_tokens, progress)
    title = f"{model}, {text}"
    report(results, title=title, as_json=as_json, by_row=True, progress=progress)


def _reference(
    name: str | None, dtype: Dtype | None, quantize: Quantize | None, num_threads: int | None
) -> dict[str, Any] | None:
    """Return the arguments of `ModelFormat.of` for the reference; None without one."""
    if name is not None:
        return {
            "name": name,
            "dtype": dtype or Dtype.FLOAT32,
            "quantize": quantize or Quantize.NONE,
            "num_threads": num_threads,
        }
    for field, value in (("against_dtype", dtype), ("against_quantize", quantize)):
        if value is not None:
            message = f"{field}: expected only with --against, got {str(value)!r}"
            raise ConfigError(message)
    return None


def _read(path: Path) -> str:
    try:
        # Not `read_text`, which would replace the ends of lines.
        content = read_file(path, MAX_TEXT_BYTES).decode("utf-8")
    except (ModelError, UnicodeDecodeError) as error:
        reason = str(error) if isinstance(error, ModelError) else f"{path}: not UTF-8: {error}"
        message = f"text: {reason}"
        raise ConfigError(message) from None
    if not content:
        message = f"text: {path}: expected a text, got an empty file"
        raise ConfigError(message)
    return content


def _measure(
    model: str,
    settings: dict[str, Any],
    reference: dict[str, Any] | None,
    text: str,
    window: int | None,
    max_tokens: int,
    progress: Progress,
) -> Iterator[SparseResult]:
    from chairlift.bench.quality import (
        ModelFormat,
        WindowModel,
        check_formats,
        cut_windows,
        measure_quality,
    )

    formats = [ModelFormat.of(model, **settings)]
    if reference is not None:
        formats.append(_format_of_reference(reference))
    window = check_formats(formats, window)
    windows = cut_windows(formats[0], text, window, max_tokens)
    progress.expect(len(formats) * sum(map(len, windows)))
    loaded, *others = [WindowModel(each, window) for each in formats]
    qualities = measure_quality(windows, loaded, next(iter(others), None), progress.tick)
    for each, figures in zip(formats, qualities, strict=True):
        row: dict[str, str | int | float | None] = {
            "model": each.name,
            "format": each.description,
            "tokens": figures.num_tokens,
            "perplexity": figures.perplexity,
        }
        if reference is not None:
            row |= {"kl_per_token": figures.kl, "agreement": figures.agreement}
        yield row


def _format_of_reference(arguments: dict[str, Any]) -> "ModelFormat":
    from chairlift.bench.quality import ModelFormat

    try:
        return ModelFormat.of(**arguments)
    except ConfigError as error:
        # The setting of the error is one of the reference's.
        message = f"against_{error}"
        raise ConfigError(message) from None
