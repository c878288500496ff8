"""The step: a scheduler says what to compute, a runner computes it, the scheduler hears of it.

    launch   schedule -> Plan -> apply -> forward, sample
    finish   wait for the tokens -> update -> events

Where the model runs beside this thread (on a GPU), two steps are in flight: the later one is
planned and launched before the tokens of the earlier one are known, and goes on from them where
they are, on the device. A step that fails takes the later one with it.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import torch

from chairlift import _core
from chairlift.config import EngineConfig
from chairlift.engine.assembly import new_runner, runner_shape, scheduler_of, steps_in_flight
from chairlift.engine.events import NO_LOGPROBS, SampledLogprobs
from chairlift.engine.flight import Flight
from chairlift.engine.loading import LoadedModel
from chairlift.engine.model_runner import Launched, ModelRunner, StepInputs
from chairlift.engine.quarantine import judge
from chairlift.engine.request_table import RequestTable
from chairlift.engine.sampler import Sampled
from chairlift.engine.step_record import StepRecord
from chairlift.errors import EngineDownError
from chairlift.plan import PlanView

logger = logging.getLogger(__name__)

_NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What `Engine.advance` gave, not yet Python objects: that is the receiver's work."""

    events: _core.Events
    sampled: SampledLogprobs
    """Where the events find their log probabilities."""
    load: _core.Load
    """After the step."""
    record: StepRecord | None
    """None when there was nothing to run."""


class Stepper:
    """A scheduler and a model runner, and the step that joins them.

    Attributes:
        config: Settings, validated.
        scheduler: Owns requests and KV blocks.
        runner: Owns the row tables and runs the model.
        clock: Gives monotonic nanoseconds; the only clock of the engine.
        alive_ns: When the last turn or forward pass began; a step in parts has many.
        num_waiting: Requests without a row since the last step was planned; any thread may read it.
        down: The scheduler raised, or the model fails whatever it is given.
        fault: What ended the engine's thread, if one did since the last restart.
    """

    def __init__(self, config: EngineConfig, loaded: LoadedModel, clock: Callable[[], int]) -> None:
        """Builds an idle scheduler and the runner of its plans.

        Raises:
            ConfigError: A setting is out of range.
        """
        self.config = config
        self.clock = clock
        self.alive_ns = clock()
        self._loaded = loaded
        self._watchers: list[Callable[[StepRecord], None]] = []
        self._num_steps = 0
        self._between: Callable[[_core.Scheduler], _core.Scheduler] = lambda scheduler: scheduler
        self._max_flights = steps_in_flight(config)
        self.restart()
        capacity = self.scheduler.plan_capacity
        # A step keeps its plan until it ends: as many as there may be steps, in turn.
        self._plans = [torch.zeros(capacity, dtype=torch.int32) for _ in range(self._max_flights)]

    def restart(self) -> None:
        """Begins anew, idle and with an empty prefix cache; the weights and the KV memory stay.

        Requests are forgotten without an event, and ids count from the start again.
        """
        self.down = False
        self.fault: BaseException | None = None
        self.num_waiting = 0
        self._flights: deque[Flight] = deque()
        self._num_launched = 0
        self._last_end_ns = self.clock()
        self.scheduler = self._between(scheduler_of(self.config, self._loaded))
        self.runner = self.new_runner()
        self._requests = RequestTable(
            num_slots=self.scheduler.num_slots, num_rows=self.config.max_num_seqs
        )

    def new_runner(self) -> ModelRunner:
        """Builds the runner of the scheduler's plans, with empty tables."""
        shape = runner_shape(self.config, self._loaded, self.scheduler)
        return new_runner(self._loaded, shape, self.clock, self._loaded.on_capture)

    def intercept(self, wrap: Callable[[_core.Scheduler], _core.Scheduler]) -> None:
        """Puts something between this and its scheduler, now and after each restart.

        Args:
            wrap: Gives what to call instead of an idle scheduler.
        """
        self._between = wrap
        self.scheduler = wrap(self.scheduler)

    def flush(self) -> None:
        """Lets the requests that wait now run in a partial batch (static, dynamic)."""
        with self.trusted_core():
            self.scheduler.flush()

    def load(self) -> _core.Load:
        """Gives a snapshot of queue, batch and KV cache."""
        return self.scheduler.load()

    @property
    def num_in_flight(self) -> int:
        """Steps that were launched and have not ended; 0 between two steps of a CPU."""
        return len(self._flights)

    def advance(self) -> StepOutput:
        """Launches what there is to run, ends the oldest step, and leaves what it gave as it is.

        A step that fails is run again in parts. Requests that fail alone fail, and the others of
        the step are computed again from their start: what such a step wrote is not trusted.

        Raises:
            EngineDownError: The scheduler failed or the model fails for everybody, now or before.
        """
        if self.down:
            message = "the engine is down"
            raise EngineDownError(message)
        while len(self._flights) < self._max_flights and self._launch():
            pass
        if self._flights:
            return self._finish(self._flights[0])
        with self.trusted_core():
            events = self.scheduler.take_events()
            return StepOutput(events, NO_LOGPROBS, self.scheduler.load(), None)

    def settle(self) -> None:
        """Ends the steps in flight and launches none; nobody hears of what they brought.

        Raises:
            EngineDownError: As `advance`.
        """
        while self._flights:
            self._finish(self._flights[0])

    def watch_steps(self, callback: Callable[[StepRecord], None]) -> Callable[[], None]:
        """Calls back after every step, on the same thread; gives a function that ends this."""
        self._watchers.append(callback)
        return lambda: self._watchers.remove(callback)

    def check_invariants(self) -> None:
        """Checks the scheduler's state; takes time in proportion to the blocks.

        Raises:
            EngineDownError: It is broken.
        """
        with self.trusted_core():
            self.scheduler.check_invariants()

    def not_started(self) -> list[int]:
        """Gives the live requests that never ran; ids that have ended may be among them."""
        return self._requests.not_started()

    def _launch(self) -> bool:
        """Plans a step and starts it; false where there is none to run now."""
        if self._flights and self._flights[-1].sampled is None:
            # Whoever goes on from that step must know first what came of it.
            return False
        started = self.alive_ns = self.clock()
        buffer = self._plans[self._num_launched % self._max_flights]
        with self.trusted_core():
            step = self.scheduler.schedule(started, buffer)
            self.num_waiting = self.scheduler.num_waiting
            if step is None:
                return False
            planned = self.clock()
            plan = PlanView.of(buffer.numpy())
            self._requests.seat(plan)
            inputs = self.runner.apply(buffer)
            self.runner.move_blocks(inputs)
        self._num_launched += 1
        flight = Flight(step, plan, inputs, started, planned, ready_ns=self.clock())
        self._flights.append(flight)
        try:
            flight.sampled = self._pass(inputs)
        except (KeyboardInterrupt, SystemExit):
            self._roll_back()
            raise
        except BaseException as error:
            # A panic in a kernel is no Exception.
            logger.error("step %d failed and runs again in parts", step, exc_info=error)
        flight.sample_ns, self.runner.sample_ns = self.runner.sample_ns, 0
        return True

    def _finish(self, flight: Flight) -> StepOutput:
        """Waits for the oldest step and tells the scheduler what came of it."""
        try:
            outcome = self._outcome(flight)
        except BaseException:
            self._roll_back()
            raise
        computed = self.clock()
        logprobs = NO_LOGPROBS
        with self.trusted_core():
            if isinstance(outcome, list):
                events = self.scheduler.fail(computed, flight.step, outcome)
                self._drop_flights()
            else:
                events = self.scheduler.update(
                    computed, flight.step, outcome.tokens, outcome.counts
                )
                logprobs = SampledLogprobs(outcome.logprobs, outcome.ranks)
                self._flights.popleft()
            load = self.scheduler.load()
        record = self._record(flight, computed, load)
        for watcher in self._watchers:
            watcher(record)
        return StepOutput(events, logprobs, load, record)

    def _outcome(self, flight: Flight) -> Sampled | list[int]:
        """Gives what a step drew, or the requests for which it and its successor fail."""
        if flight.sampled is not None:
            try:
                return flight.sampled.wait()
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:
                text = "step %d failed on the device and runs again in parts"
                logger.error(text, flight.step, exc_info=error)
        try:
            guilty, sampled = judge(
                flight.inputs, lambda part: self._pass(part).wait(), self.runner.probe
            )
        except EngineDownError:
            self.down = True
            raise
        flight.sample_ns, self.runner.sample_ns = flight.sample_ns + self.runner.sample_ns, 0
        if not guilty:
            logger.warning("step %d passed in parts: no request is to blame", flight.step)
            # A later step has read what this one wrote at first.
            return sampled if len(self._flights) == 1 else []
        ids: list[int] = self._requests.request_ids(flight.plan)[guilty].tolist()
        text = "%d of %d requests of step %d fail, the others are computed again"
        logger.error(text, len(ids), len(flight.plan.rows), flight.step)
        return ids

    def _pass(self, inputs: StepInputs) -> Launched:
        self.alive_ns = self.clock()
        return self.runner.run(inputs)

    def _roll_back(self) -> None:
        """Forgets the steps in flight; their requests are computed again."""
        step = self._flights[0].step
        self._drop_flights()
        with self.trusted_core():
            self.scheduler.fail(self.clock(), step, [])

    def _drop_flights(self) -> None:
        for flight in self._flights:
            if flight.sampled is not None:
                # Nobody wants what it drew, but its buffers are free only then.
                with suppress(BaseException):
                    flight.sampled.wait()
        self._flights.clear()

    def _record(self, flight: Flight, computed_ns: int, load: _core.Load) -> StepRecord:
        """Notes a step that has ended."""
        self._num_steps += 1
        previous, self._last_end_ns = self._last_end_ns, self.clock()
        started = max(flight.started_ns, previous)
        return StepRecord(
            step=self._num_steps,
            started_ns=started,
            duration_s=(self._last_end_ns - started) / _NS_PER_S,
            times=flight.times(previous, computed_ns, self._last_end_ns),
            num_waiting=load.num_waiting,
            row_numbers=flight.plan.rows.copy(),
            request_ids=self._requests.request_ids(flight.plan),
            num_tokens=flight.plan.num_tokens.copy(),
            sampled=flight.plan.sampled(),
        )

    @contextmanager
    def trusted_core(self) -> Iterator[None]:
        """Takes the engine down if the scheduler raises anything but a refusal."""
        try:
            yield
        except _core.Refused:
            raise
        except (KeyboardInterrupt, SystemExit):
            self.down = True
            raise
        except BaseException as error:
            self.down = True
            message = f"the scheduler failed: {type(error).__name__}: {error}"
            raise EngineDownError(message) from error
