"""The event streams of a server and the sockets that publish them, as its settings say."""

import asyncio
from concurrent.futures import Future
from typing import TYPE_CHECKING

from chairlift.api.config import EngineConfig
from chairlift.api.errors import ConfigError
from chairlift.engine.block_reports import BlockSnapshot
from chairlift.server.config import ServerConfig
from chairlift.server.kv_events.address import published
from chairlift.server.kv_events.kv_events import KvEvents

if TYPE_CHECKING:
    from chairlift.engine.async_engine import AsyncEngine
    from chairlift.engine.engine import Engine
    from chairlift.server.kv_events.publisher import Publisher


class KvPublishing:
    """Streams of events, and sockets that publish them; without the setting there are none.

    Attributes:
        events: The streams.
    """

    def __init__(self, config: ServerConfig, engine_config: EngineConfig) -> None:
        """Check the setting.

        Raises:
            ConfigError: It is malformed or not safe, or its packages are missing.
        """
        self._published = published(config, prefix_cache=engine_config.prefix_cache)
        self._block_size = engine_config.block_size
        self._publishers: list[Publisher] = []
        self.events = KvEvents(value.tenant for value in self._published)
        if any(value.endpoint is not None for value in self._published):
            _check_packages()

    def open(self) -> None:
        """Bind the sockets; consumers hear of blocks once there is a model.

        Raises:
            ConfigError: An address cannot be used.
        """
        for value in self._published:
            if value.endpoint is not None:
                from chairlift.server.kv_events.publisher import Publisher

                stream = self.events.streams[value.tenant]
                publisher = Publisher(self.events, stream, value.endpoint, self._block_size)
                self._publishers.append(publisher)

    @property
    def addresses(self) -> list[str]:
        """Return, after `open`, the ZeroMQ addresses that publish."""
        return [publisher.address for publisher in self._publishers]

    async def begin(self, engine: "AsyncEngine") -> None:
        """Let an engine report from now on; no effect where nothing is published."""
        if not self._published:
            return
        tenants, events = list(self.events.streams), self.events
        streams = tuple(events.streams.values())
        await asyncio.wrap_future(engine.call(lambda idle: idle.report_blocks(tenants, events)))

        def ask(place: int) -> "Future[tuple[int, BlockSnapshot]]":
            def take(idle: "Engine") -> tuple[int, BlockSnapshot]:
                snapshot = idle.block_snapshot()
                # What the snapshot has was put into the stream before.
                return streams[place].number, snapshot

            return engine.call(take)

        events.begin(ask)

    def close(self) -> None:
        """Close the sockets; takes up to some seconds, so not on the event loop."""
        for publisher in self._publishers:
            publisher.close()


def _check_packages() -> None:
    try:
        import msgpack  # noqa: F401, the modules that use it are imported later
        import zmq  # noqa: F401
    except ModuleNotFoundError as error:
        message = f"kv_events: {error.name} is missing: pip install 'chairlift[kv-events]'"
        raise ConfigError(message) from None
