"""The step: a scheduler says what to compute, a runner computes it, the scheduler hears of it.

schedule -> Plan -> apply -> forward -> sample -> update -> events
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from chairlift import _core
from chairlift.config import EngineConfig
from chairlift.engine.assembly import runner_shape, scheduler_of
from chairlift.engine.events import NO_LOGPROBS, SampledLogprobs
from chairlift.engine.loading import LoadedModel
from chairlift.engine.model_runner import ModelRunner, StepInputs
from chairlift.engine.quarantine import judge
from chairlift.engine.request_table import RequestTable
from chairlift.engine.sampler import Sampled
from chairlift.engine.step_record import StepRecord, StepTimes
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
        self.restart()
        self._plan = torch.zeros(self.scheduler.plan_capacity, dtype=torch.int32)

    def restart(self) -> None:
        """Begins anew, idle and with an empty prefix cache; the weights and the KV memory stay.

        Requests are forgotten without an event, and ids count from the start again.
        """
        self.down = False
        self.num_waiting = 0
        self.scheduler = self._between(scheduler_of(self.config, self._loaded))
        self.runner = self.new_runner()
        self._requests = RequestTable(
            num_slots=self.scheduler.num_slots, num_rows=self.config.max_num_seqs
        )

    def new_runner(self) -> ModelRunner:
        """Builds the runner of the scheduler's plans, with empty tables."""
        shape = runner_shape(self.config, self._loaded, self.scheduler)
        return ModelRunner(self._loaded.transformer, self._loaded.kv_cache, shape, self.clock)

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

    def advance(self) -> StepOutput:
        """Runs one step if there is work, and leaves what it gave as it is.

        A step that fails is run again in parts. Requests that fail alone fail, and the others of
        the step are computed again from their start: what such a step wrote is not trusted.

        Raises:
            EngineDownError: The scheduler failed or the model fails for everybody, now or before.
        """
        if self.down:
            message = "the engine is down"
            raise EngineDownError(message)
        started = self.alive_ns = self.clock()
        with self.trusted_core():
            step = self.scheduler.schedule(started, self._plan)
            self.num_waiting = self.scheduler.num_waiting
            if step is None:
                events = self.scheduler.take_events()
                return StepOutput(events, NO_LOGPROBS, self.scheduler.load(), None)
            planned = self.clock()
            plan = PlanView.of(self._plan.numpy())
            self._requests.seat(plan)
            inputs = self.runner.apply(self._plan)
        ready = self.clock()
        events, sampled, computed = self._run(step, plan, inputs)
        load = self.scheduler.load()
        record = self._record((started, planned, ready, computed, self.clock()), plan, load)
        for watcher in self._watchers:
            watcher(record)
        return StepOutput(events, sampled, load, record)

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

    def _run(
        self, step: int, plan: PlanView, inputs: StepInputs
    ) -> tuple[_core.Events, SampledLogprobs, int]:
        """Gives what a planned step brought, and when the model was done with it."""
        try:
            sampled = self._sample(step, plan, inputs)
        except BaseException:
            with self.trusted_core():
                self.scheduler.fail(self.clock(), step, [])
            raise
        computed = self.clock()
        with self.trusted_core():
            if isinstance(sampled, list):
                return self.scheduler.fail(computed, step, sampled), NO_LOGPROBS, computed
            events = self.scheduler.update(computed, step, sampled.tokens, sampled.counts)
        return events, SampledLogprobs(sampled.logprobs, sampled.ranks), computed

    def _sample(self, step: int, plan: PlanView, inputs: StepInputs) -> Sampled | list[int]:
        """Gives what the step drew, or the requests for which it fails."""
        try:
            return self._pass(inputs)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            # A panic in a kernel is no Exception.
            logger.error("step %d failed and runs again in parts", step, exc_info=error)
        try:
            guilty, sampled = judge(inputs, self._pass, self.runner.probe)
        except EngineDownError:
            self.down = True
            raise
        if not guilty:
            logger.warning("step %d passed in parts: no request is to blame", step)
            return sampled
        ids: list[int] = self._requests.request_ids(plan)[guilty].tolist()
        text = "%d of %d requests of step %d fail, the others are computed again"
        logger.error(text, len(ids), len(plan.rows), step)
        return ids

    def _pass(self, inputs: StepInputs) -> Sampled:
        self.alive_ns = self.clock()
        return self.runner.run(inputs)

    def _record(
        self, marks: tuple[int, int, int, int, int], plan: PlanView, load: _core.Load
    ) -> StepRecord:
        """Notes a step; the marks are when it began, was planned, had inputs, tokens, its end."""
        self._num_steps += 1
        started, planned, ready, computed, ended = marks
        sample_ns, self.runner.sample_ns = self.runner.sample_ns, 0
        return StepRecord(
            step=self._num_steps,
            started_ns=started,
            duration_s=(ended - started) / _NS_PER_S,
            times=StepTimes(
                schedule_s=(planned - started) / _NS_PER_S,
                inputs_s=(ready - planned) / _NS_PER_S,
                forward_s=(computed - ready - sample_ns) / _NS_PER_S,
                sample_s=sample_ns / _NS_PER_S,
                update_s=(ended - computed) / _NS_PER_S,
            ),
            num_waiting=load.num_waiting,
            row_numbers=plan.rows.copy(),
            request_ids=self._requests.request_ids(plan),
            num_tokens=plan.num_tokens.copy(),
            sampled=plan.sampled(),
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
