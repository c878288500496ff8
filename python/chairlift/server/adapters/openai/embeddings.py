"""`/v1/embeddings`, and `/v1/rerank` as Jina and Cohere have it."""

import asyncio
import base64
import time
from collections.abc import Sequence
from typing import Any, Final

from chairlift.checks import bad
from chairlift.engine.pooling import Pooled
from chairlift.engine.ranking import ranking, rerank_requests
from chairlift.errors import RequestError
from chairlift.server.adapters.openai.fields import Fields
from chairlift.server.adapters.openai.generation import deadline_of
from chairlift.server.context import ServerContext
from chairlift.server.convert import check_model
from chairlift.server.http.errors import Disconnected, HttpError
from chairlift.server.http.exchange import Exchange, to_json
from chairlift.server.pooling_requests import of_tenant, pool
from chairlift.types import Pooling, Request

MAX_INPUTS: Final = 2048


async def embeddings(server: ServerContext, exchange: Exchange) -> None:
    """Answer `/v1/embeddings`.

    Raises:
        HttpError: It is refused or has failed.
        Disconnected: The client is gone.
    """
    server.gate.admit()
    fields = Fields(await exchange.json())
    try:
        model = _model(server, fields)
        inputs = _inputs(fields.take("input"))
        pooling = Pooling(
            dimensions=fields.take("dimensions"),
            truncate=fields.flag("truncate"),
            prompt_name=fields.take("prompt_name"),
        )
        form = fields.one_of("encoding_format", "float", "base64")
        fields.drop("user")
        fields.end()
        requests = [Request(value, pooling=pooling) for value in inputs]
        results = await _run(server, exchange, requests)
    except RequestError as error:
        raise HttpError.of(error) from None
    num_tokens = sum(result.num_tokens for result in results)
    data = [
        {"object": "embedding", "index": number, "embedding": _encoded(result, form)}
        for number, result in enumerate(results)
    ]
    usage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    await exchange.respond(
        to_json({"object": "list", "data": data, "model": model, "usage": usage})
    )


async def rerank(server: ServerContext, exchange: Exchange) -> None:
    """Answer `/v1/rerank`.

    Raises:
        HttpError: It is refused or has failed.
        Disconnected: The client is gone.
    """
    server.gate.admit()
    fields = Fields(await exchange.json())
    abilities = server.gate.engine().engine.pooling
    try:
        model = _model(server, fields)
        query, documents = fields.text("query"), _texts(fields.items("documents"))
        top, returns = fields.take("top_n"), fields.flag("return_documents")
        truncate = fields.flag("truncate")
        fields.drop("user")
        fields.end()
        if top is not None and (not isinstance(top, int) or isinstance(top, bool) or top < 1):
            raise bad("top_n", "a number of at least 1", top)
        requests = rerank_requests(query, documents, abilities, truncate=truncate)
        results = await _run(server, exchange, requests)
    except RequestError as error:
        raise HttpError.of(error) from None
    num_tokens = sum(result.num_tokens for result in results)
    entries = []
    for index, score, _ in ranking(results, abilities)[:top]:
        entry: dict[str, Any] = {"index": index, "relevance_score": score}
        entries.append({**entry, "document": {"text": documents[index]}} if returns else entry)
    usage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    await exchange.respond(to_json({"model": model, "results": entries, "usage": usage}))


def _model(server: ServerContext, fields: Fields) -> str:
    """Return the name by which a request calls the model."""
    name = fields.text("model")
    check_model(name, server.model_names)
    return name or server.model_names[0]


def _inputs(value: object) -> list[Any]:
    """Return the inputs: one text or list of ids, or a list of either."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_INPUTS:
        raise bad("input", f"a text, token ids, or 1 to {MAX_INPUTS} of either", value)
    if all(isinstance(part, int) and not isinstance(part, bool) for part in value):
        return [value]
    if not all(isinstance(part, str | list) for part in value):
        raise bad("input", "texts or lists of token ids", next(iter(value)))
    return value


def _texts(values: list[Any]) -> list[str]:
    if not 1 <= len(values) <= MAX_INPUTS:
        raise bad("documents", f"1 to {MAX_INPUTS} texts", len(values))
    texts: list[str] = []
    for number, value in enumerate(values):
        text = value.get("text") if isinstance(value, dict) else value
        if not isinstance(text, str):
            raise bad(f"documents[{number}]", "a text", text)
        texts.append(text)
    return texts


def _encoded(result: Pooled, form: str) -> "str | list[float]":
    vector = result.vector()
    if form == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    numbers: list[float] = vector.tolist()
    return numbers


async def _run(
    server: ServerContext, exchange: Exchange, requests: Sequence[Request]
) -> list[Pooled]:
    """Run the requests; they are cancelled when the client goes.

    Raises:
        Disconnected: The client is gone.
        RequestError: One is refused or has failed.
    """
    deadline = deadline_of(exchange)
    task = asyncio.ensure_future(
        pool(
            server,
            [of_tenant(request, exchange.tenant) for request in requests],
            tenant=exchange.tenant,
            connection=exchange.peer,
            time_remaining=lambda: None if deadline is None else deadline - time.monotonic(),
        )
    )
    exchange.on_disconnect = task.cancel  # type: ignore[assignment]
    try:
        return await task
    except asyncio.CancelledError:
        if exchange.disconnected:
            raise Disconnected from None
        raise
    finally:
        exchange.on_disconnect = lambda: None
        task.cancel()
