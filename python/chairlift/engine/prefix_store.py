"""Blocks of the prefix cache on disk: what is used is written, what a request lacks is loaded.

```text
request added   missing blocks on disk? faster than computing? -> held (suspended), reads begin
each turn       blocks that were read -> free blocks of the pool, known to the prefix cache
                the pieces of a recurrent state behind them -> a snapshot, when all were read
all read, late, or damaged            -> released: in the queue, computes what is missing
each step       blocks and states that were used -> the store's queue, a copy each
```

Files are read and written on threads of the store (`chairlift-prefix-store`); the engine's thread
copies memory alone.
"""

import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from chairlift import _core
from chairlift.api.config import EngineConfig
from chairlift.api.errors import ConfigError
from chairlift.checkpoints.files.key_file import read_key
from chairlift.engine.loading.loaded import LoadedModel
from chairlift.engine.prepare.block_export import HeldBytes
from chairlift.engine.prepare.prepared import Prepared
from chairlift.engine.transfer.exchange import Used
from chairlift.engine.transfer.layout import BlockContents, block_bytes, pool_bytes
from chairlift.engine.transfer.settings import check_settings
from chairlift.engine.transfer.states import StatePieces

logger = logging.getLogger(__name__)

_MAX_PLACED: Final = 64
"""Blocks and pieces of states that are placed between two steps, over all loads."""
_MIN_LOAD_NS: Final = 50_000_000
"""No load has less time than this: a clock of the system may be as late."""
_MAX_LOAD_NS: Final = 5_000_000_000
"""How long a load may take where no step was measured yet."""
_WAIT_S: Final = 0.001
_CLOSE_S: Final = 5.0
"""How long blocks that wait to be written may take at the end."""


class StoreKeys(NamedTuple):
    """What is derived from the key file."""

    names: bytes
    """32 bytes: the scheduler names blocks by it."""
    checksums: bytes
    """32 bytes: the store's checksums depend on it."""


def store_keys(config: EngineConfig) -> StoreKeys | None:
    """Read the key of the store and check the settings that need no model.

    Returns:
        The keys; None without a store.

    Raises:
        ConfigError: A setting is missing or wrong, or the key can be read by others.
    """
    names = ("prefix_store_bytes", "prefix_store_key")
    if config.prefix_store is None:
        for name in (*names, "prefix_store_uses"):
            if getattr(config, name) is not None:
                message = f"{name}: expected none without prefix_store"
                raise ConfigError(message)
        return None
    for name in names:
        if getattr(config, name) is None:
            message = f"{name}: expected a value beside prefix_store, got none"
            raise ConfigError(message)
    check_settings(config, "prefix_store")
    secret = read_key("prefix_store_key", str(config.prefix_store_key))

    def derived(use: bytes) -> bytes:
        return hashlib.blake2b(secret, digest_size=32, person=use).digest()

    return StoreKeys(names=derived(b"chairlift names"), checksums=derived(b"chairlift sums"))


def open_store(
    config: EngineConfig, loaded: LoadedModel, keys: StoreKeys, layout: bytes
) -> _core.PrefixStore | None:
    """Open the store of a model.

    Args:
        config: Settings of the engine.
        loaded: The model.
        keys: From `store_keys`.
        layout: From `layout_of`.

    Returns:
        The store; None where the folder cannot be used: the server works without.

    Raises:
        ConfigError: The bytes are too few.
    """
    assert config.prefix_store is not None, "invariant: the settings name a folder"
    assert config.prefix_store_bytes is not None, "invariant: the settings were checked"
    num_bytes = block_bytes(loaded.kv_cache)
    states = StatePieces.of(loaded, num_bytes)
    try:
        return _core.PrefixStore(
            config.prefix_store,
            max_bytes=config.prefix_store_bytes,
            block_bytes=num_bytes,
            state_bytes=0 if states is None else states.num_bytes,
            layout=layout,
            key=keys.checksums,
            admits_first=config.prefix_store_uses == 1,
        )
    except _core.ConfigError as error:
        raise ConfigError(str(error)) from None
    except OSError as error:
        logger.error("serving without the prefix store: %s", error)
        return None


@dataclass(slots=True)
class _Loading:
    """A request that waits for its blocks."""

    request_id: int
    load: _core.PrefixLoad
    next_number: int
    """Number of the next block or piece to be placed."""
    state_number: int
    """Number of the first piece of the state, which follows the blocks."""
    end_number: int
    deadline_ns: int
    holds_state: bool = False
    """Whether there is memory for the pieces of its state."""


class PrefixStore:
    """The store of one engine; belongs to its thread, `stats` excepted.

    Attributes:
        names_key: 32 bytes by which the scheduler has to name blocks.
        held: The pieces of states that are on their way.
    """

    def __init__(
        self,
        store: _core.PrefixStore,
        config: EngineConfig,
        loaded: LoadedModel,
        names_key: bytes,
        clock: Callable[[], int],
    ) -> None:
        """Join a store and the memory of a model.

        Args:
            store: An open store.
            config: Settings of the engine.
            loaded: The model, in memory of the CPU.
            names_key: From `StoreKeys`.
            clock: Nanoseconds.
        """
        self.names_key = names_key
        self._store = store
        self._pool = pool_bytes(loaded.kv_cache)
        self._group_bytes = BlockContents(config, loaded).num_bytes
        self._states = StatePieces.of(loaded, block_bytes(loaded.kv_cache))
        self.held = HeldBytes()
        self._block_size = config.block_size
        self._clock = clock
        self._loading: list[_Loading] = []

    def attach(self, scheduler: _core.Scheduler) -> None:
        """Begin with a new scheduler; loads for the one before end."""
        self._forget_all()
        scheduler.track_block_uses()

    @property
    def is_loading(self) -> bool:
        """Whether a request waits for blocks."""
        return bool(self._loading)

    def holds(self, request_id: int) -> bool:
        """Return whether a request waits for blocks."""
        return any(loading.request_id == request_id for loading in self._loading)

    def begin(self, scheduler: _core.Scheduler, request_id: int, prepared: Prepared) -> None:
        """Hold a new request whose blocks are on disk, where loading is predicted to be faster."""
        del prepared
        missing = scheduler.stored_blocks(request_id, self._store)
        if len(missing) == 0:
            return
        size = self._block_size
        saves = scheduler.predict_prompt(missing.first * size, missing.num_indices * size)
        load = self._store.begin_load(missing, saves)
        now = self._clock()
        if load is None or not scheduler.hold(now, request_id):
            return
        limit = _MAX_LOAD_NS if saves is None else max(_MIN_LOAD_NS, saves)
        state_number = missing.number + len(missing)
        end_number = state_number
        if self._states is not None:
            end_number += self._states.num_pieces
        self._loading.append(
            _Loading(request_id, load, missing.number, state_number, end_number, now + limit)
        )

    def turn(self, scheduler: _core.Scheduler) -> None:
        """Place blocks that were read, and release requests whose loads are over; before a step."""
        if not self._loading:
            return
        room, still = _MAX_PLACED, []
        for loading in self._loading:
            num_placed = self._place(scheduler, loading, room)
            if num_placed is None:
                self._forget(loading)
                scheduler.release_held(self._clock(), loading.request_id)
            else:
                room -= num_placed
                still.append(loading)
        self._loading = still

    def _place(self, scheduler: _core.Scheduler, loading: _Loading, room: int) -> int | None:
        """Return how many blocks and pieces were placed; None if nothing is to be waited for."""
        if self._clock() >= loading.deadline_ns:
            return None
        count = loading.load.poll(0.0) if room > 0 else 0
        if count is None:
            return None
        if count == 0:
            return 0
        count, at = min(count, room), loading.next_number
        num_blocks = min(count, max(0, loading.state_number - at))
        blocks = scheduler.insert_blocks(loading.request_id, at, num_blocks)
        if blocks is None:
            return None
        loading.load.place(self._pool, blocks)
        loading.next_number += len(blocks)
        num_placed, num_pieces = len(blocks), count - num_blocks
        if self._states is not None and num_placed == num_blocks and num_pieces > 0:
            if not self._collect(scheduler, loading, num_pieces, self._states):
                return None
            num_placed = count
        return None if loading.next_number == loading.end_number else num_placed

    def _collect(
        self,
        scheduler: _core.Scheduler,
        loading: _Loading,
        num_pieces: int,
        states: StatePieces,
    ) -> bool:
        """Keep pieces of a state until all are there; return whether more are waited for."""
        if not loading.holds_state:
            loading.holds_state = self.held.take(states.num_bytes)
            if not loading.holds_state:
                return False
        loading.load.keep_pieces(num_pieces)
        loading.next_number += num_pieces
        if loading.next_number < loading.end_number:
            return True
        snapshot = scheduler.insert_state(loading.request_id)
        if snapshot is not None:
            loading.load.place_state(states.layers, states.row(snapshot))
        return False

    def wait(self) -> None:
        """Wait a moment for a block, where there is no step to run."""
        if self._loading:
            self._loading[0].load.poll(_WAIT_S)

    def keep(self, used: Used) -> None:
        """Offer what was used to the store; before anything is written to memory."""
        if used.blocks is not None:
            self._store.write(self._pool, used.blocks, self._group_bytes)
        if self._states is not None:
            layers, row = self._states.layers, self._states.row
            for name, snapshot, is_hit in used.states:
                self._store.write_state(name, is_hit, layers, row(snapshot))

    def stats(self) -> _core.PrefixStoreStats | None:
        """Return the counts; None once it is closed. Any thread may call this."""
        return self._store.stats()

    def close(self) -> None:
        """Write what waits to be written, for a bounded time, and release the folder."""
        self._forget_all()
        if not self._store.close(_CLOSE_S):
            logger.warning("blocks were left unwritten: the disk is too slow")

    def _forget_all(self) -> None:
        for loading in self._loading:
            self._forget(loading)
        self._loading.clear()

    def _forget(self, loading: _Loading) -> None:
        """Hold nothing more of a load, which ends when it is dropped."""
        if loading.holds_state:
            assert self._states is not None, "invariant: a model without states holds none"
            self.held.give_back(self._states.num_bytes)
