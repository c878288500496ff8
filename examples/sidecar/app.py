"""A web service that writes stories, with a language model in the process beside it.

    chairlift serve --listen unix:/run/chairlift/server.sock
    uvicorn --app-dir examples/sidecar app:app

    curl -N 127.0.0.1:8000/story -d '{"about": "a lift", "max_tokens": 60}'

All requests share one stream over a Unix socket, and each is bounded in three ways: it has a
deadline, it ends when its reader is gone, and it never computes more than `WINDOW` tokens that its
reader has not taken.
"""

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from chairlift.api.errors import Reason, RequestError, ServerError
from chairlift.client import AsyncGeneration, connect_async
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

TARGET = os.environ.get("CHAIRLIFT_TARGET", "unix:/run/chairlift/server.sock")
WINDOW = 32
"""Tokens that may be on their way to one reader."""
DEADLINE_S = 20.0
"""An answer ends by then with what it has."""
FIRST_TOKEN_S = 5.0
"""A request that would start later is refused at once: the reader can go elsewhere."""
MAX_BODY_BYTES = 16_384

STATUSES = {
    Reason.QUEUE_FULL: 503,
    Reason.QUEUE_TIMEOUT: 503,
    Reason.DEADLINE_UNREACHABLE: 503,
    Reason.STARTING: 503,
    Reason.DRAINING: 503,
    Reason.ENGINE_DOWN: 503,
    Reason.QUOTA_EXCEEDED: 429,
}


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    """Keep one connection for as long as the service runs."""
    async with connect_async(TARGET) as client:
        app.state.client = client
        yield


async def story(request: Request) -> Response:
    """Stream a story; a request that is refused has a status of its own."""
    try:
        about, max_tokens = await read(request)
    except ValueError as error:
        return PlainTextResponse(f"{error}\n", status_code=400)
    generation = request.app.state.client.generate(
        [{"role": "user", "content": f"Write a short story about {about}."}],
        max_tokens=max_tokens,
        time_limit_s=DEADLINE_S,
        time_to_first_token_s=FIRST_TOKEN_S,
        credit=WINDOW,
    )
    pieces = text_of(generation)
    try:
        # The first piece comes before the status, which can still say that there is none.
        first = await anext(pieces, "")
    except RequestError as error:
        wait = {"retry-after": str(round(error.retry_after_s))} if error.retry_after_s else None
        status = STATUSES.get(error.reason, 400)
        return PlainTextResponse(f"{error.message}\n", status_code=status, headers=wait)
    except ServerError:
        return PlainTextResponse("the model is not there\n", status_code=503)
    return StreamingResponse(joined(first, pieces), media_type="text/plain")


async def read(request: Request) -> tuple[str, int]:
    """Read the body.

    Raises:
        ValueError: It is too long or malformed.
    """
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY_BYTES:
            message = f"expected at most {MAX_BODY_BYTES} bytes"
            raise ValueError(message)
    given = json.loads(body or b"{}")
    if not isinstance(given, dict):
        message = "expected a JSON object"
        raise ValueError(message)
    about, max_tokens = given.get("about", "a lift"), given.get("max_tokens", 100)
    if not isinstance(about, str) or not isinstance(max_tokens, int) or not 0 < max_tokens <= 1000:
        message = "expected about, a text, and max_tokens, 1 to 1000"
        raise ValueError(message)
    return about, max_tokens


async def text_of(generation: AsyncGeneration) -> AsyncIterator[str]:
    """Yield the text, and allow as many more tokens as the reader has taken.

    The caller asks for the next piece only when the last one is written: a reader that stops leaves
    the request without credit, suspended, and others have its row.
    """
    async for event in generation.events():
        if event.HasField("tokens"):
            yield event.tokens.text
            if event.tokens.num_tokens:
                await generation.credit(event.tokens.num_tokens)


async def joined(first: str, rest: AsyncIterator[str]) -> AsyncIterator[str]:
    """Yield all pieces; closing this early closes the request."""
    yield first
    # The status is sent: what fails from here on can only cut the text.
    with suppress(RequestError, ServerError):
        async for piece in rest:
            yield piece


async def health(request: Request) -> Response:
    """Say whether the model answers."""
    try:
        await request.app.state.client.load()
    except (RequestError, ServerError):
        return JSONResponse({"status": "waiting for the model"}, status_code=503)
    return JSONResponse({"status": "serving"})


app = Starlette(
    routes=[Route("/story", story, methods=["POST"]), Route("/health", health)],
    lifespan=lifespan,
)
