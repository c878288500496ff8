"""Ends what another thread waits for: a request whose client has gone needs no more work."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock
from typing import TypeVar

from chairlift.api.errors import Reason, refusal

_T = TypeVar("_T")


class Interruption:
    """The work of one thread, which any other thread may interrupt once."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._is_set = False
        self._end: Callable[[], None] | None = None

    @property
    def is_set(self) -> bool:
        """Whether `interrupt` was called."""
        return self._is_set

    def run(self, work: Callable[[], _T]) -> _T:
        """Do work on this thread; what it waits for by `interruptible` can be ended."""
        token = _current.set(self)
        try:
            return work()
        finally:
            _current.reset(token)

    def interrupt(self) -> None:
        """End what the work waits for now, and refuse what it is going to wait for."""
        # Under the lock: what is ended here belongs to this work until the lock is free.
        with self._lock:
            self._is_set = True
            if self._end is not None:
                self._end()

    @contextmanager
    def _ended_by(self, end: Callable[[], None]) -> Iterator[None]:
        with self._lock:
            if self._is_set:
                raise refusal(Reason.DRAINING)
            self._end = end
        try:
            yield
        finally:
            with self._lock:
                self._end = None


_current: ContextVar[Interruption | None] = ContextVar("interruption", default=None)


@contextmanager
def interruptible(end: Callable[[], None]) -> Iterator[None]:
    """Wait inside of this for something that `end`, called on another thread, ends.

    Raises:
        RequestError: `DRAINING`: the work of this thread was interrupted before.
    """
    current = _current.get()
    if current is None:
        yield
        return
    with current._ended_by(end):
        yield


def is_interrupted() -> bool:
    """Return whether the work of this thread was interrupted."""
    current = _current.get()
    return current is not None and current.is_set
