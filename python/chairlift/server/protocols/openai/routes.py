"""The endpoints."""

import asyncio
import functools
import time
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Any

from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.routing import Route

from chairlift.api.errors import EngineState
from chairlift.server.calls.context import ServerContext
from chairlift.server.config import ServerConfig
from chairlift.server.convert.messages import check_model
from chairlift.server.http.app import route
from chairlift.server.http.errors import refused
from chairlift.server.http.exchange import Exchange
from chairlift.server.http.json_pieces import to_json
from chairlift.server.protocols.openai.chat import chat_job
from chairlift.server.protocols.openai.completions import completions_job
from chairlift.server.protocols.openai.embeddings import embeddings, rerank
from chairlift.server.protocols.openai.generation import continue_stream, serve
from chairlift.server.protocols.openai.handing import take_handoff, with_handoff
from chairlift.server.protocols.openai.input_tokens import input_tokens
from chairlift.server.protocols.openai.job import Job
from chairlift.server.protocols.openai.logprobs import TokenTexts
from chairlift.server.protocols.openai.responses import responses_job
from chairlift.server.protocols.openai.served import served_names, with_adapter

ToJob = Callable[[Any, Sequence[str], TokenTexts, str], Job]


def routes(
    server: ServerContext, config: ServerConfig, is_serving: Callable[[], bool]
) -> list[Route]:
    """Return all endpoints of the API, and those of operators.

    Args:
        server: The state that all calls share.
        config: The server's settings.
        is_serving: Returns whether the engine answers requests.
    """
    api = _Api(server, config, is_serving)
    return [
        route("/v1/chat/completions", "POST", functools.partial(api.choices, chat_job)),
        route("/v1/completions", "POST", functools.partial(api.choices, completions_job)),
        route("/v1/responses", "POST", functools.partial(api.generate, responses_job)),
        route("/v1/responses/input_tokens", "POST", api.input_tokens),
        route("/v1/streams/{handle}", "GET", api.stream),
        route("/v1/embeddings", "POST", api.embeddings),
        *(route(f"{version}/rerank", "POST", api.rerank) for version in ("/v1", "/v2", "")),
        route("/v1/models", "GET", api.models),
        route("/v1/models/{model:path}", "GET", api.model),
        route("/health", "GET", api.health),
        route("/metrics", "GET", api.metrics),
    ]


class _Api:
    """The handlers."""

    def __init__(
        self, server: ServerContext, config: ServerConfig, is_serving: Callable[[], bool]
    ) -> None:
        self._server = server
        self._config = config
        self._is_serving = is_serving
        self._created = int(time.time())
        self._texts = TokenTexts(lambda: server.gate.engine().engine.tokenizer)

    async def generate(self, to_job: ToJob, exchange: Exchange) -> None:
        """Answer a request for text."""
        # Before the body: a server that takes no request reads none.
        self._server.gate.admit()
        server, texts, tenant = self._server, self._texts, exchange.tenant
        job = await exchange.json(
            lambda value: to_job(value, served_names(server, tenant, value), texts, tenant)
        )
        await serve(server, exchange, with_adapter(server, job))

    async def choices(self, to_job: ToJob, exchange: Exchange) -> None:
        """Answer a request for text that a gateway may send to two servers."""

        def paired(value: Any, served: Sequence[str], texts: TokenTexts, tenant: str) -> Job:
            body, handoff = take_handoff(self._server, value)
            return with_handoff(to_job(body, served, texts, tenant), handoff)

        await self.generate(paired, exchange)

    async def input_tokens(self, exchange: Exchange) -> None:
        """Count the tokens of the input of a response."""
        await input_tokens(self._server, exchange, self._texts)

    async def stream(self, exchange: Exchange) -> None:
        """Continue a stream whose connection was lost."""
        self._server.gate.admit()
        await continue_stream(self._server, exchange)

    async def embeddings(self, exchange: Exchange) -> None:
        """Return vectors of texts."""
        await embeddings(self._server, exchange)

    async def rerank(self, exchange: Exchange) -> None:
        """Order documents by a query."""
        await rerank(self._server, exchange)

    async def models(self, exchange: Exchange) -> None:
        """List the names of the served model, and the adapters that the caller may name."""
        data = [self._model(name) for name in self._names(exchange.tenant)]
        await exchange.respond(to_json({"object": "list", "data": data}))

    async def model(self, exchange: Exchange) -> None:
        """Return one of them."""
        name = exchange.scope["path_params"]["model"]
        check_model(name, self._names(exchange.tenant))
        await exchange.respond(to_json(self._model(name)))

    def _names(self, tenant: str) -> tuple[str, ...]:
        """Return the names of the model, and of the adapters that are loaded for a tenant."""
        adapters = self._server.gate.engine().engine.adapters.names(tenant)
        return tuple(dict.fromkeys((*self._server.model_names, *adapters)))

    def _model(self, name: str) -> dict[str, Any]:
        engine, names = self._server.gate.engine().engine, self._server.model_names
        return {
            "id": name,
            "object": "model",
            "created": self._created,
            "owned_by": "chairlift",
            # Of an adapter.
            **({} if name in names else {"parent": names[0]}),
            "max_model_len": engine.max_context_len - engine.num_unseen_tokens,
        }

    async def health(self, exchange: Exchange) -> None:
        """Say whether a request sent now would be answered."""
        phase = self._server.gate.phase
        is_serving = phase is EngineState.SERVING and self._is_serving()
        status = HTTPStatus.OK if is_serving else HTTPStatus.SERVICE_UNAVAILABLE
        is_stalled = phase is EngineState.SERVING and not is_serving
        state = "stalled" if is_stalled else phase.value
        await exchange.respond(to_json({"status": state}), status=status)

    async def metrics(self, exchange: Exchange) -> None:
        """Return the metrics of Prometheus, where no tenant would see the names of others."""
        config = self._config
        if config.auth_tokens or config.tls_client_ca or config.trust_tenant_metadata:
            message = "metrics name all tenants: operators read them at --metrics-listen"
            raise refused(HTTPStatus.FORBIDDEN, message, "forbidden")
        body = await asyncio.to_thread(generate_latest, self._server.metrics.registry)
        await exchange.respond(body, headers=(("content-type", CONTENT_TYPE_LATEST),))
