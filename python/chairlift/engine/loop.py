"""The engine thread: commands in through one queue, one delivery out per step.

    event loop thread                        engine thread
    put, call ── queue ───────────────────▶  commands, schedule, run, update
    deliver(delivery) ◀── one hop ─────────  events of the step, not yet converted

Nothing else touches the engine while the thread runs.
"""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final, TypeVar

from chairlift import _core
from chairlift.api.errors import EngineDownError, RequestError
from chairlift.api.types import Accepted
from chairlift.engine.engine import Engine
from chairlift.engine.step import StepOutput
from chairlift.engine.submitted_request import SubmittedRequest

logger = logging.getLogger(__name__)

IDLE_BEAT_S = 1.0
"""An idle thread wakes this often, as a sign of life."""

_SHORTEST_WAIT_S = 0.001
_MIN_COMMANDS: Final = 64
"""Commands of a turn, where rows are fewer: a delivery has the events of that many, so that a
thousand requests that end together do not hold the event loop for a quarter of a second."""

_MAX_UNDELIVERED = 64
"""Steps that the event loop may lag behind before the engine waits for it."""

_NS = 1e-9


Answer = tuple[SubmittedRequest, Accepted | RequestError]
"""The engine's answer to a request that was submitted."""

Command = SubmittedRequest | Callable[[Engine], object]
"""A request to queue, or a function to run between two steps."""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Delivery:
    """The result of one turn of the thread, for the event loop."""

    answers: list[Answer]
    """Answers to the requests submitted before this turn; they precede the events."""
    output: StepOutput | None
    """None when the engine is down: no event follows for any request."""
    sent_ns: int
    """When, on the engine's clock."""


@dataclass(frozen=True, slots=True)
class LoopProgress:
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
        """Prepare the thread.

        Args:
            engine: Idle.
            deliver: Called on the thread, must not block; raises RuntimeError when the event
                loop is closed, which ends the thread.
            num_steps: Steps of the threads that ran the engine before.
        """
        self.engine = engine
        self.load: _core.Load = engine.load()
        now = engine.clock()
        self.progress = LoopProgress(num_steps, now, now, has_work=False)
        self.watched = False
        self._deliver = deliver
        self._commands: list[Command] = []
        self._max_commands = max(engine.config.max_num_seqs, _MIN_COMMANDS)
        self._condition = threading.Condition()
        self._stopping = False
        self._num_submitted = self._num_taken = 0
        self._credits = threading.Semaphore(_MAX_UNDELIVERED)
        self._checked_idle = False
        self._thread = threading.Thread(target=self._main, name="chairlift-engine", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def put(self, command: Command) -> None:
        """Execute a command on the thread, between two steps; commands keep their order.

        The next delivery holds the answer to a request.
        """
        self._num_submitted += isinstance(command, SubmittedRequest)
        with self._condition:
            self._commands.append(command)
            self._condition.notify()

    def call(self, work: Callable[[Engine], Result]) -> "Future[Result]":
        """Run a function as `put`, and return the future of its result.

        An error of the function is the future's. The thread goes on, unless the scheduler has
        failed (`EngineDownError`) or the error is no `Exception`, such as a panic.
        """
        future: Future[Result] = Future()

        def run(engine: Engine) -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(work(engine))
            except BaseException as error:
                future.set_exception(error)
                if isinstance(error, EngineDownError) or not isinstance(error, Exception):
                    raise

        self.put(run)
        return future

    def delivered(self) -> None:
        """Count a delivery that the event loop has received."""
        self._credits.release()

    def stop(self) -> None:
        """Tell the thread to end after its current step."""
        with self._condition:
            self._stopping = True
            self._condition.notify()

    @property
    def num_waiting(self) -> int:
        """Requests that wait for a row, those included that the thread has not seen yet.

        Exact while a step runs; too few for a moment while one is planned.
        """
        return self.engine.stepper.num_waiting + self._num_submitted - self._num_taken

    @property
    def heartbeat_age_s(self) -> float:
        """Seconds since the last heartbeat of the thread; 0 when it has ended."""
        if not self._thread.is_alive():
            return 0.0
        return (self.engine.clock() - self.engine.stepper.alive_ns) * _NS

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread; return whether it ended."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _main(self) -> None:
        try:
            while not self._stopping:
                self._turn()
            self.engine.stepper.settle()
        except BaseException as error:
            # A panic in the core is no Exception. Every request has to end, whatever was raised.
            self.engine.take_down(error)
            logger.critical("the engine is down", exc_info=True)
            self._send(Delivery([], None, self.engine.clock()))

    def _turn(self) -> None:
        with self._condition:
            commands = self._commands[: self._max_commands]
            del self._commands[: self._max_commands]
        answers: list[Answer] = []
        for command in commands:
            if isinstance(command, SubmittedRequest):
                answers.append((command, self._enqueue(command)))
            else:
                command(self.engine)
        output = self.engine.advance()
        self._note(output)
        if answers or len(output.events) or (self.watched and output.record is not None):
            self._wait_for_credit()
            self._send(Delivery(answers, output, self.engine.clock()))
        if output.record is None and not self.engine.is_loading:
            self._rest()

    def _enqueue(self, request: SubmittedRequest) -> Accepted | RequestError:
        self._num_taken += 1
        try:
            accepted = self.engine.enqueue(request.prepared)
        except RequestError as error:
            logger.debug("request %s refused: %s", request.handle, error.reason)
            return error
        request.engine_id = accepted.request_id
        return accepted

    def _note(self, output: StepOutput) -> None:
        now = self.engine.clock()
        self.load = output.load
        has_work = output.load.num_waiting + output.load.num_running > 0
        if output.record is None:
            self.progress = LoopProgress(
                self.progress.num_steps, self.progress.last_step_ns, now, has_work
            )
        else:
            self.progress = LoopProgress(self.progress.num_steps + 1, now, now, has_work)
            self._checked_idle = False

    def _send(self, delivery: Delivery) -> None:
        try:
            self._deliver(delivery)
        except RuntimeError:
            # The event loop is closed: no client is left.
            self._stopping = True

    def _wait_for_credit(self) -> None:
        while not self._credits.acquire(timeout=IDLE_BEAT_S):
            # The engine waits for the event loop; it is not stuck.
            self.engine.stepper.alive_ns = self.engine.clock()
            if self._stopping:
                return

    def _rest(self) -> None:
        """Wait for a command, or for the time the scheduler names."""
        if not self.progress.has_work and not self._checked_idle:
            self.engine.check_invariants()
            self._checked_idle = True
        wait_s = IDLE_BEAT_S
        wake_at = self.engine.stepper.core.scheduler.wake_at
        if wake_at is not None:
            due_s = (wake_at - self.engine.clock()) * _NS
            wait_s = min(wait_s, max(due_s, _SHORTEST_WAIT_S))
        with self._condition:
            if not self._commands and not self._stopping:
                self._condition.wait(wait_s)
