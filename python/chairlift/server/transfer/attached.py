"""The role of a server: what it adds to the engine once the model is loaded."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from chairlift.api.config import EngineConfig
from chairlift.engine.prepare.block_export import BlockExport
from chairlift.server.config import Role, ServerConfig
from chairlift.server.handoff.handoffs import Handoffs
from chairlift.server.transfer.settings import PeerSettings, peer_settings
from chairlift.server.transfer.sharing import Borrowing, Lending

if TYPE_CHECKING:
    from chairlift.engine.async_engine import AsyncEngine
    from chairlift.engine.engine import Engine
    from chairlift.engine.transfer.exports import BlockExports
    from chairlift.engine.transfer.imports import BlockImports
    from chairlift.server.transfer.peers import PrefillPeers


class Exporting:
    """The exports of a prefill server, which has them from the end of its start on.

    Attributes:
        instance: Another one for each start of the server.
        block_size: Tokens of a block.
        num_sent: Blocks that were sent.
        borrowing: The shared memory of callers.
    """

    def __init__(self, block_size: int, instance: str) -> None:
        self.instance = instance
        self.block_size = block_size
        self.num_sent = 0
        self.borrowing = Borrowing()
        self._exports: BlockExports | None = None
        self._layout = b""

    def begin(self, exports: "BlockExports", layout: bytes) -> None:
        """Export from an engine that is loaded."""
        self._exports, self._layout = exports, layout

    @property
    def layout(self) -> bytes:
        """Return the layout of the engine's blocks."""
        return self._layout

    @property
    def block_bytes(self) -> int:
        """Return the bytes of a block."""
        assert self._exports is not None, "invariant: the gate opens when the model is loaded"
        return self._exports.block_bytes

    @property
    def num_held_bytes(self) -> int:
        """Return the bytes of blocks that no call has sent yet."""
        return 0 if self._exports is None else self._exports.held.num_bytes

    def new_export(self, first: int, wake: Callable[[], None]) -> BlockExport:
        """Return an export of blocks of a prompt, as `BlockExport` takes them."""
        assert self._exports is not None, "invariant: the gate opens when the model is loaded"
        return BlockExport(first, self._exports.held, wake)


class Transfers:
    """What the role of a server adds to it; nothing without one.

    Attributes:
        exporting: The exports of a prefill server.
        imports: The imports of a decode server, once the model is loaded.
    """

    def __init__(
        self, config: ServerConfig, engine_config: EngineConfig, handoffs: Handoffs
    ) -> None:
        """Check the settings.

        Args:
            config: Settings of the server.
            engine_config: Settings of the engine.
            handoffs: Learns the layout of the blocks when the model is loaded.

        Raises:
            ConfigError: One is missing, malformed, not safe, or belongs to another role.
        """
        self._role, self._is_strict = config.role, config.strict_roles
        self._peers: PeerSettings | None = peer_settings(config, engine_config)
        is_prefill = config.role is Role.PREFILL
        size, instance = engine_config.block_size, handoffs.instance
        self._handoffs = handoffs
        self.exporting = Exporting(size, instance) if is_prefill else None
        self.imports: BlockImports | None = None
        self._lending = Lending()

    @property
    def num_shared_blocks(self) -> int:
        """Return how many blocks came or went through shared memory."""
        borrowing = None if self.exporting is None else self.exporting.borrowing
        return (borrowing or self._lending).num_blocks

    async def begin(self, engine: "AsyncEngine") -> None:
        """Move blocks of an idle engine from now on.

        Raises:
            ConfigError: Blocks of its model cannot be moved.
        """
        if self._role is not None:
            await asyncio.wrap_future(engine.call(self._attach))

    def _attach(self, engine: "Engine") -> None:
        """Attach to an engine, on its thread."""
        from chairlift.engine.roles import export_blocks, import_blocks

        if self.exporting is not None:
            exports, layout = export_blocks(engine)
            self._handoffs.layout = layout
            self.exporting.begin(exports, layout)
        peers = self._peers
        if peers is not None:
            self.imports = import_blocks(
                engine,
                lambda layout, num_bytes: self._new_peers(peers, layout, num_bytes),
                is_strict=self._is_strict,
            )

    def _new_peers(self, settings: PeerSettings, layout: bytes, num_bytes: int) -> "PrefillPeers":
        from chairlift.server.transfer.peers import PrefillPeers

        self._handoffs.layout = layout
        return PrefillPeers(settings, layout, num_bytes, self._lending)
