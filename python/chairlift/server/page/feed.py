"""`GET /page/feed`: the batch, the queue and the KV cache as they change, as server-sent events.

A reader that does not read misses frames, which say so; it holds a bounded number of bytes and no
other reader waits for it.
"""

import asyncio
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs

from chairlift.api.errors import EngineState, RequestError
from chairlift.server.calls.context import ServerContext
from chairlift.server.http.errors import Disconnected, HttpError, refused
from chairlift.server.http.exchange import Exchange
from chairlift.server.http.http_call import KEEP_ALIVE_S
from chairlift.server.page.access import SIGN_OF_LIFE, STREAM_HEADERS, check_page, event
from chairlift.server.page.frames import MAX_PLAIN_ROWS, FrameSource, View
from chairlift.server.page.panels import Panels
from chairlift.server.page.step_history import StepHistory
from chairlift.server.page.subscriber import Subscriber
from chairlift.server.services.overview import Overview

if TYPE_CHECKING:
    from chairlift.engine.async_engine import AsyncEngine
    from chairlift.engine.step import StepRecord

VERSION: Final = 1
"""Version of the format; it rises when a field changes its meaning or goes."""
MAX_FPS: Final = 10
MAX_ROWS: Final = 128
"""Rows of a large batch whose spans are sent."""
_DEFAULT_ROWS: Final = 64
_CHECK_EACH_S: Final = 1.0
"""How often a reader's token is looked at again."""

_NUMBER: Final = re.compile(r"[0-9]{1,9}")
_SERVER: Final = (
    *("version", "device", "kernels", "batching", "max_num_seqs", "max_num_batched_tokens"),
    *("batch_size", "max_queued_requests", "block_size", "num_blocks", "prefix_cache"),
)
_MODEL: Final = (
    *("name", "architecture", "dtype", "quantization", "kv_cache_dtype", "max_context_len"),
    "has_chat_template",
)


class Feeds:
    """What all feeds of a server share; for one event loop."""

    def __init__(self, server: ServerContext, overview: Overview) -> None:
        """Start without readers.

        Args:
            server: The state that all calls share.
            overview: Which counts watches and has the load.
        """
        self._server = server
        self._overview = overview
        self._readers: set[Subscriber] = set()
        self._sources: dict[View, FrameSource] = {}
        self._panels: dict[str, Panels] = {}
        self._history = StepHistory(0)
        self._end: Callable[[], None] = lambda: None

    @contextmanager
    def open(self, view: View, engine: "AsyncEngine") -> Iterator[Subscriber]:
        """Open a feed, from the next step on."""
        reader = Subscriber()
        if not self._readers:
            self._begin(engine)
        self._readers.add(reader)
        source = self._sources.get(view)
        if source is None:
            source = self._sources[view] = FrameSource(
                view,
                self._history,
                self._server.live,
                self._overview.started_ns,
                engine.config.max_num_seqs,
                num_sources=lambda: len(self._sources),
            )
        source.readers.append(reader)
        panels = self._panels.get(view.tenant)
        if panels is None:
            panels = self._panels[view.tenant] = Panels(self._server, self._overview, view.tenant)
        panels.add(reader)
        try:
            yield reader
        finally:
            source.readers.remove(reader)
            if not source.readers:
                source.close()
                del self._sources[view]
            panels.readers.remove(reader)
            if not panels.readers:
                panels.close()
                del self._panels[view.tenant]
            self._readers.remove(reader)
            if not self._readers:
                self._end()

    def _begin(self, engine: "AsyncEngine") -> None:
        self._history = StepHistory(engine.config.max_num_seqs)
        unsubscribe = engine.deliveries.watch_steps(self._add)
        drain = asyncio.create_task(self._wake_at_drain())

        def end() -> None:
            unsubscribe()
            drain.cancel()
            self._history = StepHistory(0)

        self._end = end

    def _add(self, record: "StepRecord") -> None:
        self._history.add(record)
        self._history.forget(min(source.position for source in self._sources.values()))

    async def _wake_at_drain(self) -> None:
        await self._server.gate.draining.wait()
        for reader in self._readers:
            reader.wake()


class FeedRoute:
    """The handler."""

    def __init__(self, server: ServerContext, overview: Overview) -> None:
        self._server = server
        self._overview = overview
        self._feeds = Feeds(server, overview)

    async def serve(self, exchange: Exchange) -> None:
        """Write events until the client goes, the server drains or the token is withdrawn.

        Raises:
            HttpError: A parameter is wrong.
            RequestError: The model is still loading, there are too many watches, or the client
                does not read.
            Disconnected: The client is gone.
        """
        check_page(exchange)
        gate = self._server.gate
        engine = gate.engine()
        if gate.draining.is_set():
            raise gate.refusal()
        view = view_of(exchange, engine.config.max_num_seqs)
        exchange.watch()
        watching = self._overview.watching(exchange.peer, exchange.tenant)
        with watching, self._feeds.open(view, engine) as reader:
            exchange.on_disconnect = reader.wake
            await exchange.begin(STREAM_HEADERS)
            await exchange.write(event("hello", self._hello(exchange.tenant, engine)))
            reason = await self._write(exchange, reader)
            await exchange.write(event("bye", {"reason": reason}), more=False)

    async def _write(self, exchange: Exchange, reader: Subscriber) -> str:
        """Write what comes, until the feed ends; return why."""
        checked_at = time.monotonic()
        while not self._server.gate.draining.is_set():
            await reader.wait(KEEP_ALIVE_S)
            if exchange.disconnected:
                raise Disconnected
            if time.monotonic() - checked_at >= _CHECK_EACH_S:
                checked_at = time.monotonic()
                if not self._is_known(exchange):
                    return "unauthenticated"
            await exchange.write(reader.take() or SIGN_OF_LIFE)
        return "draining"

    def _is_known(self, exchange: Exchange) -> bool:
        """Return whether the caller may still see what it sees."""
        authenticator = self._server.authenticator
        try:
            tenant = authenticator.tenant_of(exchange.headers, exchange.certificate)
        except RequestError:
            return False
        return tenant == exchange.tenant

    def _hello(self, tenant: str, engine: "AsyncEngine") -> dict[str, Any]:
        process, model = self._overview.process(), self._overview.model(tenant)
        phase, generates = self._server.gate.phase, engine.engine.pooling.generates
        return {
            "v": VERSION,
            "server": {
                **{name: getattr(process, name) for name in _SERVER},
                "state": phase.value,
                "step_budget_ms": process.step_budget.ToNanoseconds() / 1e6 or None,
                "start_ms": process.start_time.ToMilliseconds(),
            },
            "model": {name: getattr(model, name) for name in _MODEL},
            "caller": {
                "tenant": tenant,
                "sees_all": self._overview.is_open,
                "may_run": phase is EngineState.SERVING and generates,
            },
        }


def view_of(exchange: Exchange, num_rows: int) -> View:
    """Return what a feed asks for.

    Args:
        exchange: Whose query has the parameters.
        num_rows: Rows of the batch. A small batch is always shown whole.

    Raises:
        HttpError: With the parameter that is wrong.
    """
    query = parse_qs(exchange.scope["query_string"].decode("latin-1"), keep_blank_values=True)
    fps = _number(query, "fps", MAX_FPS, 1, MAX_FPS)
    first = _number(query, "first_row", 0, 0, num_rows - 1)
    num = _number(query, "num_rows", _DEFAULT_ROWS, 1, MAX_ROWS)
    for name in query:
        raise _bad(name, "fps, first_row or num_rows alone")
    rows = range(num_rows) if num_rows <= MAX_PLAIN_ROWS else range(first, first + num)
    return View(exchange.tenant, fps, range(rows.start, min(rows.stop, num_rows)))


def _number(query: dict[str, list[str]], name: str, default: int, low: int, high: int) -> int:
    """Take a parameter."""
    texts = query.pop(name, [str(default)])
    is_number = len(texts) == 1 and _NUMBER.fullmatch(texts[0])
    if not is_number or not low <= int(texts[0]) <= high:
        raise _bad(name, f"one whole number from {low} to {high}")
    return int(texts[0])


def _bad(name: str, expected: str) -> HttpError:
    name = name[:100]
    message = f"{name}: expected {expected}"
    return refused(HTTPStatus.BAD_REQUEST, message, "bad_parameter", name)
