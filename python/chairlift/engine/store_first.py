"""A prefix store beside a role: what is on disk is loaded, and then the role begins with the rest.

```text
request queued   on disk? -> held by the store ... released -> the role begins with it
                 else     ----------------------------------->
each step        what was used -> the store's queue, and the calls of others
```
"""

from chairlift import _core
from chairlift.engine.prefix_store import PrefixStore
from chairlift.engine.prepare.prepared import Prepared
from chairlift.engine.transfer.exchange import BlockExchange, Used


class StoreFirst:
    """A store, and what moves blocks between servers: a `BlockExchange`."""

    def __init__(self, store: PrefixStore, role: BlockExchange) -> None:
        """Join both.

        Args:
            store: Loads what it has of a request.
            role: Begins with the request afterwards.
        """
        self._store, self._role = store, role
        self._waiting: dict[int, Prepared] = {}

    @property
    def names_key(self) -> bytes:
        """32 secret bytes by which the scheduler has to name blocks: those of the store."""
        return self._store.names_key

    @property
    def is_loading(self) -> bool:
        """Whether a request waits for blocks."""
        return self._store.is_loading or self._role.is_loading

    def attach(self, scheduler: _core.Scheduler) -> None:
        """Begin with a new scheduler; what was under way for the one before ends."""
        self._waiting.clear()
        self._store.attach(scheduler)
        self._role.attach(scheduler)

    def begin(self, scheduler: _core.Scheduler, request_id: int, prepared: Prepared) -> None:
        """Load what is on disk of a new request; without such blocks the role begins at once."""
        self._store.begin(scheduler, request_id, prepared)
        if self._store.holds(request_id):
            self._waiting[request_id] = prepared
        else:
            self._role.begin(scheduler, request_id, prepared)

    def turn(self, scheduler: _core.Scheduler) -> None:
        """Place blocks that have arrived, and hand requests on; before a step is planned."""
        self._store.turn(scheduler)
        released = [waiting for waiting in self._waiting if not self._store.holds(waiting)]
        for request_id in released:
            self._role.begin(scheduler, request_id, self._waiting.pop(request_id))
        self._role.turn(scheduler)

    def keep(self, used: Used) -> None:
        """Take what was used, for both; before anything is written to the pool."""
        self._store.keep(used)
        self._role.keep(used)

    def wait(self) -> None:
        """Wait a moment for a block, where there is no step to run."""
        if self._store.is_loading:
            self._store.wait()
        else:
            self._role.wait()

    def close(self) -> None:
        """End both; a second call has no effect."""
        self._role.close()
        self._store.close()
