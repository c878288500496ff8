"""Blocks of the prefix cache on disk: what is used is written, what a request lacks is loaded.

```text
request added   missing blocks on disk? faster than computing? -> held (suspended), reads begin
each turn       blocks that were read -> free blocks of the pool, known to the prefix cache
all read, late, or damaged                -> released: in the queue, computes what is missing
each step       blocks that were used -> the store's queue, a copy each
```

Files are read and written on threads of the store (`chairlift-prefix-store`); the engine's thread
copies memory alone.
"""

import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from torch import Tensor

from chairlift import _core
from chairlift.api.config import EngineConfig
from chairlift.api.errors import ConfigError
from chairlift.checkpoints.files.key_file import read_key
from chairlift.engine.loading.loaded import LoadedModel
from chairlift.engine.prepare.prepared import Prepared
from chairlift.engine.transfer.layout import layout_of, pool_bytes
from chairlift.engine.transfer.settings import check_settings

logger = logging.getLogger(__name__)

_MAX_PLACED: Final = 64
"""Blocks that are copied into the pool between two steps, over all loads."""
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
    config: EngineConfig, loaded: LoadedModel, keys: StoreKeys, probed: bytes
) -> _core.PrefixStore | None:
    """Open the store of a model.

    Args:
        config: Settings of the engine.
        loaded: The model.
        keys: From `store_keys`.
        probed: The keys and values of `probe_prompt`, as this process computes them.

    Returns:
        The store; None where the folder cannot be used: the server works without.

    Raises:
        ConfigError: The bytes are too few.
    """
    assert config.prefix_store is not None, "invariant: the settings name a folder"
    assert config.prefix_store_bytes is not None, "invariant: the settings were checked"
    pool = pool_bytes(loaded.kv_cache)
    try:
        return _core.PrefixStore(
            config.prefix_store,
            max_bytes=config.prefix_store_bytes,
            block_bytes=pool.shape[0] * pool.shape[2],
            layout=layout_of(config, loaded, probed),
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
    next_index: int
    """Block index of the next block to be placed."""
    deadline_ns: int


class PrefixStore:
    """The store of one engine; belongs to its thread, `stats` excepted.

    Attributes:
        names_key: 32 bytes by which the scheduler has to name blocks.
    """

    def __init__(
        self,
        store: _core.PrefixStore,
        pool: Tensor,
        names_key: bytes,
        block_size: int,
        clock: Callable[[], int],
    ) -> None:
        """Join a store and a pool.

        Args:
            store: An open store.
            pool: The KV pool, `[planes, blocks, ...]` in memory of the CPU.
            names_key: From `StoreKeys`.
            block_size: Tokens of a block.
            clock: Nanoseconds.
        """
        self.names_key = names_key
        self._store = store
        self._pool = pool_bytes(pool)
        self._block_size = block_size
        self._clock = clock
        self._loading: list[_Loading] = []

    def attach(self, scheduler: _core.Scheduler) -> None:
        """Begin with a new scheduler; loads for the one before end."""
        self._loading.clear()
        scheduler.track_block_uses()

    @property
    def is_loading(self) -> bool:
        """Whether a request waits for blocks."""
        return bool(self._loading)

    def begin(self, scheduler: _core.Scheduler, request_id: int, prepared: Prepared) -> None:
        """Hold a new request whose blocks are on disk, where loading is predicted to be faster."""
        del prepared
        missing = scheduler.missing_blocks(request_id)
        count = self._store.num_known(missing)
        if count == 0:
            return
        size = self._block_size
        saves = scheduler.predict_prompt(missing.first * size, count * size)
        load = self._store.begin_load(missing, saves)
        now = self._clock()
        if load is None or not scheduler.hold(now, request_id):
            return
        limit = _MAX_LOAD_NS if saves is None else max(_MIN_LOAD_NS, saves)
        self._loading.append(_Loading(request_id, load, missing.first, now + limit))

    def turn(self, scheduler: _core.Scheduler) -> None:
        """Place blocks that were read, and release requests whose loads are over; before a step."""
        if not self._loading:
            return
        room, still = _MAX_PLACED, []
        for loading in self._loading:
            num_placed = self._place(scheduler, loading, room)
            if num_placed is None:
                scheduler.release_held(self._clock(), loading.request_id)
            else:
                room -= num_placed
                still.append(loading)
        self._loading = still

    def _place(self, scheduler: _core.Scheduler, loading: _Loading, room: int) -> int | None:
        """Return how many blocks were placed; None if nothing more is to be waited for."""
        if self._clock() >= loading.deadline_ns:
            return None
        count = loading.load.poll(0.0) if room > 0 else 0
        if count is None:
            return None
        if count == 0:
            return 0
        at = loading.next_index
        blocks = scheduler.insert_blocks(loading.request_id, at, min(count, room))
        if blocks is None:
            return None
        loading.load.place(self._pool, blocks)
        loading.next_index += len(blocks)
        return len(blocks)

    def wait(self) -> None:
        """Wait a moment for a block, where there is no step to run."""
        if self._loading:
            self._loading[0].load.poll(_WAIT_S)

    def keep(self, scheduler: _core.Scheduler) -> None:
        """Offer the blocks that were used to the store; before anything is written to the pool."""
        uses = scheduler.take_block_uses()
        if uses is not None:
            self._store.write(self._pool, uses)

    def stats(self) -> _core.PrefixStoreStats | None:
        """Return the counts; None once it is closed. Any thread may call this."""
        return self._store.stats()

    def close(self) -> None:
        """Write what waits to be written, for a bounded time, and release the folder."""
        self._loading.clear()
        if not self._store.close(_CLOSE_S):
            logger.warning("blocks were left unwritten: the disk is too slow")
