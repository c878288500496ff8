"""`chairlift rerank`: documents in the order in which they answer a query."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from chairlift.api.errors import ChairliftError
from chairlift.cli.embed import Dtype, Model, Quantize, TruncateEnd, lines_of, opened


def rerank(
    query: Annotated[str, typer.Argument(help="What is looked for.")],
    documents: Annotated[list[str] | None, typer.Argument(metavar="[DOCUMENT]...")] = None,
    *,
    model: Model = "minilm",
    input_file: Annotated[
        Path | None,
        typer.Option("--input", metavar="FILE", help="A file in UTF-8 with a document per line."),
    ] = None,
    top: Annotated[int | None, typer.Option(help="Print so many documents.", min=1)] = None,
    truncate_end: TruncateEnd = False,
    dtype: Dtype = "auto",
    quantize: Quantize = "none",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
) -> None:
    """Order documents by a cross-encoder's scores, or by the cosine of vectors."""
    if bool(documents) == (input_file is not None):
        message = "expected documents, or --input with a file of them"
        raise ChairliftError(message)
    texts = documents or (list(lines_of(input_file)) if input_file else [])
    with opened(model, dtype, quantize) as engine:
        from chairlift.engine.embed_all import pool_all
        from chairlift.engine.pooling.ranking import ranking, rerank_requests

        requests = rerank_requests(query, texts, engine.pooling, truncate_end=truncate_end)
        results = dict(pool_all(engine, requests))
        ranked = ranking([results[place] for place in range(len(requests))], engine.pooling)
    for index, score, num_tokens in ranked[:top]:
        if as_json:
            entry = {"index": index, "score": score, "tokens": num_tokens, "text": texts[index]}
            sys.stdout.write(json.dumps(entry) + "\n")
        else:
            typer.echo(f"{score:.4f}  [{index + 1}] {texts[index]}")
