"""The engine thread: commands in through one queue, one delivery out per step.

    event loop thread                     engine thread
    put(command) ── queue, condition ──▶  drain, schedule, run, update
    deliver(delivery) ◀── one hop ──────  events of the step, not yet converted

Nothing else touches the engine while the thread runs.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from chairlift import _core
from chairlift.engine.engine import Engine
from chairlift.engine.handle import Handle
from chairlift.engine.prepare import PreparedChange
from chairlift.engine.stepper import StepOutput
from chairlift.errors import Reason, RequestError
from chairlift.types import Accepted, Waiting

logger = logging.getLogger(__name__)

IDLE_BEAT_S = 1.0
"""An idle thread wakes this often, to show that it lives."""

_SHORTEST_WAIT_S = 0.001
_MAX_UNDELIVERED = 64
"""Steps that the event loop may lag behind before the engine waits for it."""

_NS = 1e-9


@dataclass(frozen=True, slots=True)
class Submit:
    """Queue a request."""

    handle: Handle


@dataclass(frozen=True, slots=True)
class Abort:
    """End a request in whatever state it is."""

    handle: Handle
    reason: str


@dataclass(frozen=True, slots=True)
class Alter:
    """Change a request in whatever state it is."""

    handle: Handle
    change: PreparedChange


@dataclass(frozen=True, slots=True)
class Flush:
    """Let partial batches run."""


@dataclass(frozen=True, slots=True)
class FailWaiting:
    """End the requests that never ran."""

    reason: Reason


@dataclass(frozen=True, slots=True)
class Explain:
    """Tell how requests stand."""

    handles: Sequence[Handle]
    reply: Callable[[list[Waiting | None]], None]
    """Called on the thread, with one answer per handle; None for one that is not live."""


Command = Submit | Abort | Alter | Flush | FailWaiting | Explain


@dataclass(frozen=True, slots=True)
class Delivery:
    """What one turn of the thread gives to the event loop."""

    answers: list[tuple[Handle, Accepted | RequestError]]
    """To the submits of this turn; they come before the events."""
    output: StepOutput | None
    """None when the engine is down: nothing follows, for no request."""
    sent_ns: int
    """When, on the engine's clock."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Signs of life, for health; nanoseconds of the engine's clock."""

    num_steps: int
    last_step_ns: int
    """End of the last step, or the start of the thread."""
    alive_ns: int
    """Last turn of the thread, also an idle one."""
    has_work: bool


class EngineLoop:
    """Owns the engine on a thread of its own.

    Attributes:
        engine: Not to be touched by other threads, `prepare` excepted.
        load: Snapshot after the last step.
        progress: Signs of life.
        watched: Whether steps without events are delivered too, for their records.
    """

    def __init__(
        self, engine: Engine, deliver: Callable[[Delivery], None], *, num_steps: int = 0
    ) -> None:
        """Prepares the thread.

        Args:
            engine: Idle.
            deliver: Called on the thread, must not block; raises RuntimeError when nobody listens
                any more, which ends the thread.
            num_steps: Of the threads that ran the engine before.
        """
        self.engine = engine
        self.load: _core.Load = engine.load()
        now = engine.clock()
        self.progress = Progress(num_steps, now, now, has_work=False)
        self.watched = False
        self._deliver = deliver
        self._commands: list[Command] = []
        self._condition = threading.Condition()
        self._stopping = False
        self._num_submits = self._num_obeyed = 0
        self._credits = threading.Semaphore(_MAX_UNDELIVERED)
        self._checked_idle = False
        self._thread = threading.Thread(target=self._main, name="chairlift-engine", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def put(self, command: Command) -> None:
        """Queues a command and wakes the thread."""
        self._num_submits += isinstance(command, Submit)
        with self._condition:
            self._commands.append(command)
            self._condition.notify()

    def delivered(self) -> None:
        """Tells that a delivery has been taken."""
        self._credits.release()

    def stop(self) -> None:
        """Tells the thread to end after its current step."""
        with self._condition:
            self._stopping = True
            self._condition.notify()

    @property
    def num_waiting(self) -> int:
        """Requests that wait for a row, those included that the thread has not seen yet.

        Exact while a step runs; too few for a moment while one is planned.
        """
        return self.engine.num_waiting + self._num_submits - self._num_obeyed

    @property
    def silence_s(self) -> float:
        """Seconds since the thread was last seen to go on; 0 when it has ended."""
        if not self._thread.is_alive():
            return 0.0
        return (self.engine.clock() - self.engine.alive_ns) * _NS

    def join(self, timeout_s: float) -> bool:
        """Waits for the thread; gives whether it ended."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _main(self) -> None:
        try:
            while not self._stopping:
                self._turn()
            self.engine.settle()
        except BaseException as error:
            # A panic in the core is no Exception. Whatever it is, nobody may wait for this thread.
            self.engine.fault = error
            logger.critical("the engine is down", exc_info=True)
            self.engine.down = True
            self._send(Delivery([], None, self.engine.clock()))

    def _turn(self) -> None:
        with self._condition:
            commands, self._commands = self._commands, []
        answers = [answer for command in commands if (answer := self._obey(command)) is not None]
        output = self.engine.advance()
        self._note(output)
        if answers or len(output.events) or (self.watched and output.record is not None):
            self._wait_for_credit()
            self._send(Delivery(answers, output, self.engine.clock()))
        if output.record is None:
            self._rest()

    def _obey(self, command: Command) -> tuple[Handle, Accepted | RequestError] | None:
        engine = self.engine
        match command:
            case Submit(handle):
                self._num_obeyed += 1
                return handle, self._submit(handle)
            case Abort(handle, reason):
                # Without an id the submit was refused: commands come in the order they were given.
                if handle.request_id is not None:
                    engine.cancel(handle.request_id, reason)
            case Alter(handle, change):
                if handle.request_id is not None:
                    engine.change(handle.request_id, change)
            case Explain(handles, reply):
                reply([self._explain(handle) for handle in handles])
            case Flush():
                engine.flush()
            case FailWaiting(reason):
                for request_id in engine.not_started():
                    engine.cancel(request_id, reason)
        return None

    def _submit(self, handle: Handle) -> Accepted | RequestError:
        try:
            accepted = self.engine.enqueue(handle.prepared)
        except RequestError as error:
            logger.debug("request %s refused: %s", handle.name, error.reason)
            return error
        handle.request_id = accepted.request_id
        return accepted

    def _explain(self, handle: Handle) -> Waiting | None:
        return None if handle.request_id is None else self.engine.explain(handle.request_id)

    def _note(self, output: StepOutput) -> None:
        now = self.engine.clock()
        self.load = output.load
        has_work = output.load.num_waiting + output.load.num_running > 0
        if output.record is None:
            self.progress = Progress(
                self.progress.num_steps, self.progress.last_step_ns, now, has_work
            )
        else:
            self.progress = Progress(self.progress.num_steps + 1, now, now, has_work)
            self._checked_idle = False

    def _send(self, delivery: Delivery) -> None:
        try:
            self._deliver(delivery)
        except RuntimeError:
            # The event loop is closed: nobody is left to serve.
            self._stopping = True

    def _wait_for_credit(self) -> None:
        while not self._credits.acquire(timeout=IDLE_BEAT_S):
            # The event loop lags, the engine does not.
            self.engine.alive_ns = self.engine.clock()
            if self._stopping:
                return

    def _rest(self) -> None:
        """Waits for a command, or for the time the scheduler names."""
        if not self.progress.has_work and not self._checked_idle:
            self.engine.check_invariants()
            self._checked_idle = True
        wait_s = IDLE_BEAT_S
        wake_at = self.engine.scheduler.wake_at
        if wake_at is not None:
            due_s = (wake_at - self.engine.clock()) * _NS
            wait_s = min(wait_s, max(due_s, _SHORTEST_WAIT_S))
        with self._condition:
            if not self._commands and not self._stopping:
                self._condition.wait(wait_s)
