"""`POST /v1/responses/input_tokens`: how many tokens the input of a response has."""

import time

from chairlift.api.errors import RequestError
from chairlift.api.types import Chat, Request
from chairlift.engine.prepare.text_queue import caller, size_of
from chairlift.server.calls.context import ServerContext
from chairlift.server.http.errors import HttpError
from chairlift.server.http.exchange import Exchange
from chairlift.server.http.http_call import deadline_of
from chairlift.server.http.json_pieces import to_json
from chairlift.server.protocols.openai.logprobs import TokenTexts
from chairlift.server.protocols.openai.responses import responses_job
from chairlift.server.protocols.openai.served import served_names


async def input_tokens(server: ServerContext, exchange: Exchange, texts: TokenTexts) -> None:
    """Count the tokens of a body of `/v1/responses`, also where they are too many to answer.

    Raises:
        HttpError: It is refused.
        RequestError: A field is wrong, or the tenant has used up a quota.
        Disconnected: The client is gone.
    """
    server.gate.admit()
    tenant = exchange.tenant
    job = await exchange.json(
        lambda value: responses_job(value, served_names(server, tenant, value), texts, tenant)
    )
    chat = job.requests[0].prompt
    assert isinstance(chat, Chat), "invariant: the prompt of a response is a conversation"
    engine = server.gate.engine()
    preparer = engine.engine.preparer
    deadline = deadline_of(exchange)
    within_s = None if deadline is None else max(deadline - time.monotonic(), 0.0)
    lease = server.quotas.acquire(exchange.tenant, exchange.peer)
    try:
        size = size_of(Request(chat), 2 * preparer.text_limits.max_bytes)
        num = await engine.texts.run(
            lambda: preparer.num_chat_tokens(chat),
            tenant=caller(exchange.tenant, exchange.peer),
            size=size,
            within_s=within_s,
        )
    except RequestError as error:
        raise HttpError.of(job.names.translate(error)) from None
    finally:
        lease.release()
    await exchange.respond(to_json({"object": "response.input_tokens", "input_tokens": num}))
