"""When a static batch need not be full: every stream with waiting requests has half-closed."""

from collections.abc import Callable


class BatchEnd:
    """Counts waiting requests of streams that may send more and of streams that will not.

    A static batch waits for as many requests as fit. Once no stream that has requests in the queue
    can send another, waiting longer is in vain, and the batch runs as it is.
    """

    def __init__(self, flush: Callable[[], None]) -> None:
        """Starts with nothing waiting.

        Args:
            flush: Tells the engine to run a partial batch; called after the requests that it is
                for were submitted.
        """
        self._flush = flush
        self._num_waiting_open = 0
        self._num_waiting_closed = 0

    def joined(self, *, half_closed: bool) -> None:
        """A request was submitted."""
        if half_closed:
            self._num_waiting_closed += 1
            self._check()
        else:
            self._num_waiting_open += 1

    def left(self, *, half_closed: bool) -> None:
        """A request no longer waits: it started, or it ended."""
        if half_closed:
            self._num_waiting_closed -= 1
        else:
            self._num_waiting_open -= 1
            self._check()

    def half_closed(self, num_waiting: int) -> None:
        """A stream with this many waiting requests will send no more."""
        self._num_waiting_open -= num_waiting
        self._num_waiting_closed += num_waiting
        self._check()

    def _check(self) -> None:
        if self._num_waiting_closed and not self._num_waiting_open:
            self._flush()
