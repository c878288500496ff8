"""`/v1/embeddings`, and `/v1/rerank` as Jina and Cohere have it."""

import asyncio
import base64
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from chairlift.api.checks import bad
from chairlift.api.errors import Reason, RequestError
from chairlift.api.pooled import Pooled, Vector
from chairlift.api.types import Pooling, Request
from chairlift.engine.pooling.ranking import ranking, rerank_requests
from chairlift.server.calls.context import ServerContext
from chairlift.server.calls.pooling_requests import of_tenant, pool
from chairlift.server.http.errors import Disconnected, HttpError
from chairlift.server.http.exchange import Exchange
from chairlift.server.http.http_call import deadline_of
from chairlift.server.http.json_pieces import to_json
from chairlift.server.protocols.names import Names
from chairlift.server.protocols.openai import rules
from chairlift.server.protocols.openai.fields import Fields
from chairlift.server.protocols.openai.parts import model_of

MAX_INPUTS: Final = 2048

_NAMES: Final = Names(
    {
        "prompt": "input",
        "prompt_name": "prompt_name",
        "input_type": "input_type",
        "token_ids": "input",
    }
)
_RERANK_NAMES: Final = Names({"prompt": "documents", "input": "documents"})


@dataclass(frozen=True, slots=True)
class EmbeddingsJob:
    """The requests of one body of `/v1/embeddings`."""

    requests: list[Request]
    model: str
    """By which name the body calls the model."""
    form: str
    """How numbers are written: `float` or `base64`."""

    def answer(self, results: Sequence[tuple[Vector, int]]) -> dict[str, Any]:
        """Return the body of the response.

        Args:
            results: The vector and the number of tokens of each request, in their order.
        """
        data = [self._entry(number, vector) for number, (vector, _) in enumerate(results)]
        return {**self._frame(results), "data": data}

    async def body(self, results: Sequence[tuple[Vector, int]]) -> bytes:
        """Return the same as JSON, made in turns with other work of the event loop.

        Thousands of vectors take seconds to write as text.

        Args:
            results: The same as in `answer`.
        """
        entries = []
        for number, (vector, _) in enumerate(results):
            entries.append(to_json(self._entry(number, vector)))
            await asyncio.sleep(0)
        frame = to_json(self._frame(results)).removesuffix(b"}")
        return b'%b,"data":[%b]}' % (frame, b",".join(entries))

    def _entry(self, number: int, vector: Vector) -> dict[str, Any]:
        return {"object": "embedding", "index": number, "embedding": _encoded(vector, self.form)}

    def _frame(self, results: Sequence[tuple[Vector, int]]) -> dict[str, Any]:
        num_tokens = sum(num for _, num in results)
        usage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
        return {"object": "list", "model": self.model, "usage": usage}


def embeddings_job(value: Any, served: Sequence[str]) -> EmbeddingsJob:
    """Convert a body; `served` are the names of the model.

    Raises:
        RequestError: With the path of the field that is wrong or not supported.
    """
    fields = Fields(value)
    model = model_of(fields, served)
    inputs = _inputs(fields.take("input"))
    pooling = Pooling(
        dimensions=fields.take("dimensions"),
        truncate_end=_truncates(fields),
        prompt_name=fields.take("prompt_name"),
        input_type=fields.text("input_type") or None,
    )
    form = fields.one_of("encoding_format", "float", "base64")
    fields.drop(*rules.IGNORED_OF_VECTORS)
    fields.end()
    return EmbeddingsJob([Request(text, pooling=pooling) for text in inputs], model, form)


async def embeddings(server: ServerContext, exchange: Exchange) -> None:
    """Answer `/v1/embeddings`.

    Raises:
        HttpError: It is refused or has failed.
        Disconnected: The client is gone.
    """
    server.gate.admit()
    try:
        job = await exchange.json(lambda value: embeddings_job(value, server.model_names))
        results = await _run(server, exchange, job.requests, "input")
    except RequestError as error:
        raise HttpError.of(_NAMES.translate(error)) from None
    pairs = [(result.vector(), result.num_tokens) for result in results]
    await exchange.respond(await job.body(pairs))


async def rerank(server: ServerContext, exchange: Exchange) -> None:
    """Answer `/v1/rerank`, `/v2/rerank` and `/rerank`.

    Raises:
        HttpError: It is refused or has failed.
        Disconnected: The client is gone.
    """
    server.gate.admit()
    fields = Fields(await exchange.json())
    abilities = server.gate.engine().engine.pooling
    try:
        model = model_of(fields, server.model_names)
        query, documents = _query(fields), _texts(fields.items("documents"))
        top, returns = fields.take("top_n"), fields.flag("return_documents")
        truncate_end = _truncates(fields)
        # A ranking knows which text is the query.
        fields.drop("input_type", *rules.IGNORED_OF_VECTORS)
        fields.end()
        if top is not None and (not isinstance(top, int) or isinstance(top, bool) or top < 1):
            raise bad("top_n", "a number of at least 1", top)
        requests = rerank_requests(query, documents, abilities, truncate_end=truncate_end)
        results = await _run(server, exchange, requests, "documents")
    except RequestError as error:
        raise HttpError.of(_RERANK_NAMES.translate(error)) from None
    num_tokens = sum(result.num_tokens for result in results)
    entries = []
    for index, score, _ in ranking(results, abilities)[:top]:
        entry: dict[str, Any] = {"index": index, "relevance_score": score}
        entries.append({**entry, "document": {"text": documents[index]}} if returns else entry)
    usage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    await exchange.respond(to_json({"model": model, "results": entries, "usage": usage}))


def _inputs(value: object) -> list[Any]:
    """Return the inputs: one text or list of ids, or a list of either."""
    if isinstance(value, str):
        return [value]
    expected = f"a text, token ids, or 1 to {MAX_INPUTS} of either"
    if not isinstance(value, list) or not value:
        raise bad("input", expected, len(value) if isinstance(value, list) else value)
    if all(isinstance(part, int) and not isinstance(part, bool) for part in value):
        return [value]
    if len(value) > MAX_INPUTS:
        raise bad("input", expected, len(value))
    if not all(isinstance(part, str | list) for part in value):
        raise bad("input", "texts or lists of token ids", next(iter(value)))
    return value


def _truncates(fields: Fields) -> bool:
    """Return whether the end of a long input is left out; -1 is vLLM's way to say so."""
    truncate = fields.flag("truncate")
    if "truncate_prompt_tokens" in fields:
        fields.refuse_unless("truncate_prompt_tokens", -1)
        return True
    return truncate


def _query(fields: Fields) -> str:
    query = fields.text("query")
    if not query:
        message = "query: expected a text of at least one character, got none"
        raise RequestError(Reason.BAD_PARAMETER, message, field="query")
    return query


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


def _encoded(vector: Vector, form: str) -> "str | list[float]":
    if form == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    numbers: list[float] = vector.tolist()
    return numbers


async def _run(
    server: ServerContext, exchange: Exchange, requests: Sequence[Request], field: str
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
            field=field,
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
