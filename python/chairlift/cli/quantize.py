"""`chairlift quantize`: a model with quantized layers, computed once and stored."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from chairlift.checkpoints.files.folder import MODEL_HELP, check_model
from chairlift.cli.progress import Progress


class WeightFormat(StrEnum):
    """What linear layers become."""

    INT8 = "int8"
    INT4 = "int4"


def quantize(
    model: Annotated[str, typer.Argument(help=MODEL_HELP)],
    out: Annotated[Path, typer.Argument(help="The new folder.")],
    *,
    weight_format: Annotated[
        WeightFormat, typer.Option("--format", help="Of the linear layers; the head has 8 bits.")
    ] = WeightFormat.INT4,
    tokens: Annotated[
        int | None,
        typer.Option(
            help="Tokens of the text that the model writes; default: 8192. 0 rounds each weight"
            " alone.",
            min=0,
        ),
    ] = None,
) -> None:
    """Quantize a model, and store it as a folder that loads without quantizing again.

    Errors of weights are compensated by weights of later inputs, for the inputs that the layers get
    in a text that the model writes itself.
    """
    check_model(model)
    from chairlift.engine.quantizing import NUM_TOKENS, quantize_model

    num_tokens = NUM_TOKENS if tokens is None else tokens
    progress = Progress("layers", doing="quantizing")

    def on_progress(done: int, total: int) -> None:
        if done == 0:
            progress.expect(total)
        else:
            progress.tick()

    with progress:
        quantize_model(
            model, out, weight_format, num_tokens=num_tokens or None, on_progress=on_progress
        )
