"""`chairlift embed`: vectors of texts, by a model that runs in this process."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from chairlift.api.errors import ChairliftError
from chairlift.checkpoints.files.folder import MODEL_HELP

if TYPE_CHECKING:
    from chairlift.api.types import Pooling
    from chairlift.engine.engine import Engine

Model = Annotated[str, typer.Option(help=f"Model: {MODEL_HELP}")]
Quantize = Annotated[str, typer.Option(help="Weights of linear layers: none, int8 or int4.")]
Dtype = Annotated[str, typer.Option(help="Element type: auto, float32 or bfloat16.")]
TruncateEnd = Annotated[
    bool, typer.Option("--truncate-end", help="Leave out the end of a text that is too long.")
]

_MAX_SHOWN = 6
"""Numbers of a vector that are shown to people."""


def embed(
    texts: Annotated[list[str] | None, typer.Argument(metavar="[TEXT]...")] = None,
    *,
    model: Model = "minilm",
    input_file: Annotated[
        Path | None,
        typer.Option("--input", metavar="FILE", help="A file in UTF-8 with a text per line."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(help="Write the vectors to this file (NumPy, float32), a row per text."),
    ] = None,
    dimensions: Annotated[
        int | None, typer.Option(help="So many numbers at the start of each vector.", min=1)
    ] = None,
    prompt_name: Annotated[
        str | None, typer.Option("--prompt", help="The model's text before each input, by name.")
    ] = None,
    truncate_end: TruncateEnd = False,
    dtype: Dtype = "auto",
    quantize: Quantize = "none",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
) -> None:
    """Compute the vectors of texts."""
    if bool(texts) == (input_file is not None):
        message = "expected texts, or --input with a file of them"
        raise ChairliftError(message)
    from chairlift.api.types import Pooling

    pooling = Pooling(dimensions=dimensions, truncate_end=truncate_end, prompt_name=prompt_name)
    with opened(model, dtype, quantize) as engine:
        if output is not None:
            _write(engine, texts, input_file, output, pooling)
        else:
            source = lines_of(input_file) if input_file else iter(texts or ())
            _print(engine, source, pooling, as_json=as_json)


def opened(model: str, dtype: str, quantize: str) -> "Engine":
    """Load a model for a command that waits for all results."""
    from chairlift.engine.engine import Engine

    settings = {"dtype": dtype, "quantize": quantize}
    return Engine(model, batching="continuous", **settings)  # type: ignore[arg-type]


def lines_of(path: Path) -> Iterator[str]:
    """Yield the lines of a file, without their ends.

    Raises:
        ChairliftError: It cannot be read, or a line is not UTF-8.
    """
    number = 0
    try:
        with path.open(encoding="utf-8-sig", newline="\n") as file:
            for line in file:
                number += 1
                yield line.rstrip("\r\n")
    except UnicodeDecodeError:
        message = f"{path}: line {number + 1} or one soon after it is not UTF-8"
        raise ChairliftError(message) from None
    except OSError as error:
        message = f"{path}: {(error.strerror or 'cannot be read').lower()}"
        raise ChairliftError(message) from None


def _print(engine: "Engine", texts: Iterator[str], pooling: "Pooling", *, as_json: bool) -> None:
    from chairlift.api.types import Request
    from chairlift.engine.embed_all import pool_all

    results = pool_all(engine, (Request(text, pooling=pooling) for text in texts))
    for place, pooled in results:
        vector = pooled.vector().tolist()
        if as_json:
            entry = {"index": place, "vector": vector, "tokens": pooled.num_tokens}
            sys.stdout.write(json.dumps(entry) + "\n")
            continue
        shown = ", ".join(f"{number:.4f}" for number in vector[:_MAX_SHOWN])
        rest = f", ... {len(vector)} numbers" if len(vector) > _MAX_SHOWN else ""
        typer.echo(f"[{place + 1}] [{shown}{rest}]")


def _write(
    engine: "Engine", texts: list[str] | None, path: Path | None, output: Path, pooling: "Pooling"
) -> None:
    """Write a row per text; the file appears when it is whole."""
    import numpy as np

    from chairlift.api.types import Request
    from chairlift.engine.embed_all import pool_all

    num_texts = len(texts) if texts else sum(1 for _ in lines_of(path)) if path else 0
    size = pooling.dimensions or engine.pooling.default_dimensions or engine.pooling.size
    part = output.with_name(f".{output.name}.{os.getpid()}.part")
    source = lines_of(path) if path else iter(texts or ())
    num_done = 0
    try:
        rows = np.lib.format.open_memmap(part, "w+", dtype=np.float32, shape=(num_texts, size))
        requests = (Request(text, pooling=pooling) for text in source)
        for place, pooled in pool_all(engine, requests):
            rows[place] = pooled.vector()
            num_done += 1
        rows.flush()
        if num_done != num_texts:
            message = f"{path}: it had {num_texts} lines at first and {num_done} later"
            raise ChairliftError(message)
        part.replace(output)
    except OSError as error:
        message = f"{output}: {(error.strerror or 'cannot be written').lower()}"
        raise ChairliftError(message) from None
    finally:
        part.unlink(missing_ok=True)
    typer.echo(f"{output}: {num_texts} vectors of {size} numbers")
