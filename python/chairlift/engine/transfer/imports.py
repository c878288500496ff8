"""Blocks that come to an engine: those of prompts that another server computes.

```text
request queued   many blocks missing? -> held (suspended), a fetcher asks a prefill server
any thread       BlockImport.put      -> blocks that were received and are right
each turn        blocks in their order -> free blocks of the pool, known to the prefix cache
                 the pieces of a state -> a snapshot, when all have come
all placed, late, failed, cancelled   -> released: in the queue, computes what is missing
```

A request draws its tokens here, from its last prompt token on: no state of a sampler moves.
"""

import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from chairlift import _core
from chairlift.engine.prepare.block_export import HeldBytes
from chairlift.engine.prepare.block_source import scope_of
from chairlift.engine.prepare.prepared import Prepared
from chairlift.engine.transfer.block_import import BlockImport, Fetcher
from chairlift.engine.transfer.exchange import Used
from chairlift.engine.transfer.layout import pool_bytes
from chairlift.engine.transfer.states import StatePieces

logger = logging.getLogger(__name__)

MIN_TOKENS: Final = _core.MIN_TRANSFERRED_TOKENS
MIN_SAVED_NS: Final = _core.MIN_TRANSFER_SAVED_NS
_MAX_PLACED: Final = 64
"""Blocks that are copied into the pool between two steps, over all imports."""
_WAIT_S: Final = 0.001
_NS_PER_S: Final = 1_000_000_000
_MAX_WAIT_S: Final = 1e9
"""A longer wait is as good as none: its nanoseconds might not fit 64 bits."""


@dataclass(frozen=True, slots=True)
class ImportStats:
    """Counts since the start."""

    num_transferred_blocks: int
    num_whole: int
    """Prompts whose blocks all came."""
    num_partial: int
    """Prompts of which some blocks were missing and were computed here."""
    num_local: int
    """Prompts long enough to be computed elsewhere, for which no server could be asked."""


def _limit_ns(predicted: int | None, start_within_s: float | None) -> int:
    """Return how long a transfer may take, in nanoseconds.

    Args:
        predicted: How long computing here is predicted to take; None is unknown.
        start_within_s: How long the request may wait: half of it is left for computing here.
    """
    if start_within_s is None or start_within_s > _MAX_WAIT_S:
        return _core.transfer_limit(predicted, None)
    return _core.transfer_limit(predicted, round(start_within_s * _NS_PER_S))


@dataclass(slots=True)
class _Loading:
    """A request that waits for its blocks."""

    request_id: int
    blocks: BlockImport
    state_number: int
    """Number of the first piece of the state, which follows the blocks."""
    deadline_ns: int
    state: list[bytes] = field(default_factory=list)
    """The pieces that have come."""
    holds_state: bool = False
    """Whether there is memory for all of them."""


class BlockImports:
    """The imports of one engine: a `BlockExchange`; belongs to its thread, `stats` excepted.

    Attributes:
        names_key: 32 secret bytes by which the scheduler names blocks.
    """

    def __init__(
        self,
        pool: Tensor,
        states: StatePieces | None,
        fetcher: Fetcher,
        block_size: int,
        clock: Callable[[], int],
        *,
        is_strict: bool,
    ) -> None:
        """Import into a pool.

        Args:
            pool: The KV pool, `[planes, blocks, ...]` in memory of the CPU.
            states: Copies recurrent states; None for a model without.
            fetcher: Asks other servers.
            block_size: Tokens of a block.
            clock: Nanoseconds.
            is_strict: Whether a request whose blocks do not come fails.
        """
        self.names_key = secrets.token_bytes(32)
        self._pool: NDArray[np.uint8] = pool_bytes(pool).numpy()
        self._states, self._held = states, HeldBytes()
        self._fetcher = fetcher
        self._block_size = block_size
        self._clock = clock
        self._is_strict = is_strict
        self._scope_key = secrets.token_bytes(32)
        self._loading: list[_Loading] = []
        self._can_import = states is None or self._held.may_hold(states.num_bytes)
        if states is not None and not self._can_import:
            logger.warning(
                "prompts are computed here: the recurrent state of one has %d bytes, more than may"
                " be on their way",
                states.num_bytes,
            )
        self._num_blocks = self._num_whole = self._num_partial = self._num_local = 0

    def attach(self, scheduler: _core.Scheduler) -> None:
        """Begin with a new scheduler; imports for the one before end."""
        self._cancel_all()
        scheduler.track_block_uses()

    @property
    def is_loading(self) -> bool:
        """Whether a request waits for blocks."""
        return bool(self._loading)

    def begin(self, scheduler: _core.Scheduler, request_id: int, prepared: Prepared) -> None:
        """Hold a new request that lacks many blocks, and let another server compute them."""
        missing = scheduler.missing_blocks(request_id)
        first, count = missing.first, missing.num_indices
        size, source = self._block_size, prepared.source
        # What another server has computed already is no work there.
        if count * size < (1 if source is not None else MIN_TOKENS):
            return
        predicted = scheduler.predict_prompt(first * size, count * size)
        if source is None and predicted is not None and predicted < MIN_SAVED_NS:
            return
        limit = _limit_ns(predicted, prepared.times.start_within_s)
        token_ids = prepared.prompt[: (first + count) * size + 1]
        scope = scope_of(prepared.tenant, prepared.prefix_cache.salt, self._scope_key)
        state_number = missing.number + len(missing)
        num_pieces = 0 if self._states is None else self._states.num_pieces
        numbers = range(missing.number, state_number + num_pieces)
        blocks = BlockImport(token_ids, first, numbers, scope, limit / _NS_PER_S, source)
        now = self._clock()
        loading = _Loading(request_id, blocks, state_number, now + limit)
        is_free = self._can_import and len(self._loading) < _core.MAX_LIVE_TRANSFERS
        if not is_free or not self._fetcher.fetch(blocks):
            self._num_local += 1
            if self._is_strict:
                self._fail(scheduler, request_id)
        elif scheduler.hold(now, request_id):
            self._loading.append(loading)
        else:
            blocks.cancel()

    def turn(self, scheduler: _core.Scheduler) -> None:
        """Place blocks that have come, and release requests whose imports are over."""
        room, still = _MAX_PLACED, []
        for loading in self._loading:
            is_over = loading.blocks.is_over
            num_placed = self._place(scheduler, loading, room)
            if num_placed is None:
                # It was cancelled, or has ended otherwise.
                self._forget(loading)
                continue
            room -= num_placed
            is_late = self._clock() >= loading.deadline_ns
            has_ended = loading.blocks.is_whole or (is_over and not loading.blocks.has_next)
            if is_late or has_ended:
                loading.blocks.was_late = not has_ended
                self._release(scheduler, loading)
            else:
                still.append(loading)
        self._loading = still

    def _place(self, scheduler: _core.Scheduler, loading: _Loading, room: int) -> int | None:
        """Return how many blocks and pieces were placed; None if the request is held no more."""
        received = loading.blocks.next_run(room)
        first = loading.blocks.next_number
        num_blocks = min(len(received), max(0, loading.state_number - first))
        blocks = scheduler.insert_blocks(loading.request_id, first, num_blocks)
        if blocks is None:
            return None
        # The null block stands for one that needs no filling.
        filled = [(block, data) for block, data in zip(blocks, received, strict=False) if block]
        if filled:
            numbers = np.array([block for block, _ in filled])
            data = np.frombuffer(b"".join(data for _, data in filled), np.uint8)
            planes, _, width = self._pool.shape
            self._pool[:, numbers] = data.reshape(-1, planes, width).transpose(1, 0, 2)
        self._num_blocks += len(filled)
        loading.blocks.drop(len(blocks))
        if self._states is None or len(blocks) < num_blocks:
            return len(blocks)
        return len(blocks) + self._collect(scheduler, loading, received[num_blocks:], self._states)

    def _collect(
        self,
        scheduler: _core.Scheduler,
        loading: _Loading,
        pieces: list[bytes],
        states: StatePieces,
    ) -> int:
        """Add pieces of a state, which follows its blocks; return how many were added."""
        if pieces and not loading.holds_state:
            loading.holds_state = self._held.take(states.num_bytes)
        if not loading.holds_state:
            # Nothing more can be placed: the prompt is computed here.
            if pieces:
                loading.blocks.cancel()
            return 0
        loading.state += pieces
        loading.blocks.drop(len(pieces))
        if loading.blocks.is_whole:
            snapshot = scheduler.insert_state(loading.request_id)
            if snapshot is not None:
                states.write(snapshot, loading.state)
        return len(pieces)

    def _release(self, scheduler: _core.Scheduler, loading: _Loading) -> None:
        self._forget(loading)
        if loading.blocks.is_whole:
            self._num_whole += 1
        else:
            self._num_partial += 1
            if self._is_strict:
                self._fail(scheduler, loading.request_id)
                return
        scheduler.release_held(self._clock(), loading.request_id)

    def _fail(self, scheduler: _core.Scheduler, request_id: int) -> None:
        scheduler.abort(self._clock(), request_id, "PREFILL_UNAVAILABLE")

    def keep(self, used: Used) -> None:
        """Keep nothing."""

    def wait(self) -> None:
        """Wait a moment for a block, where there is no step to run."""
        if self._loading:
            self._loading[0].blocks.wait(_WAIT_S)

    def stats(self) -> ImportStats:
        """Return the counts; any thread may call this."""
        return ImportStats(self._num_blocks, self._num_whole, self._num_partial, self._num_local)

    def close(self) -> None:
        """End all imports."""
        self._cancel_all()
        self._fetcher.close()

    def _cancel_all(self) -> None:
        for loading in self._loading:
            self._forget(loading)
        self._loading.clear()

    def _forget(self, loading: _Loading) -> None:
        """Want nothing more for a request, and hold nothing of it."""
        loading.blocks.cancel()
        if loading.holds_state:
            assert self._states is not None, "invariant: a model without states holds none"
            self._held.give_back(self._states.num_bytes)
