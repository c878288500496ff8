"""The step: the scheduler plans it, the runner computes it, the scheduler takes the tokens.

    launch   schedule -> Plan -> apply -> forward, sample
    finish   wait for the tokens -> update -> events

Where the model runs beside this thread (on a GPU), two steps are in flight: the later one is
planned and launched before the tokens of the earlier one are known, and reads them where they are,
on the device. A step that fails takes the later one with it.
"""

import logging
import secrets
from collections import deque
from collections.abc import Callable

import torch

from chairlift import _core
from chairlift.api.config import EngineConfig
from chairlift.api.errors import EngineDownError
from chairlift.api.machine import available_cores
from chairlift.core.events import NO_LOGPROBS, SampledLogprobs
from chairlift.core.plan import PlanView
from chairlift.core.step_rows import StepRows
from chairlift.engine.bisection import bisect
from chairlift.engine.block_reports import BlockReports, BlockSnapshot
from chairlift.engine.core import Core, steps_in_flight
from chairlift.engine.draft_model import DraftModel
from chairlift.engine.loading.loaded import LoadedModel
from chairlift.engine.prepare.prepared import Prepared
from chairlift.engine.runner.model_runner import Launched, ModelRunner
from chairlift.engine.runner.sampler import Sampled
from chairlift.engine.runner.shape import RunnerShape
from chairlift.engine.runner.step_inputs import StepInputs
from chairlift.engine.step import InFlightStep, StepOutput, StepRecord
from chairlift.engine.transfer.exchange import BlockExchange, Used

logger = logging.getLogger(__name__)

_NS_PER_S = 1_000_000_000
_MAX_FRUITLESS_STEPS = 3
"""Steps that fail and pass in parts, while no token is drawn."""


class Stepper:
    """A scheduler and a model runner, and the step that joins them.

    Attributes:
        config: Settings, validated.
        core: The scheduler.
        runner: Owns the row tables and runs the model.
        draft_model: Proposes drafts, if there is one.
        exchange: Moves blocks between this engine and others, or a disk, if anything does.
        clock: Returns monotonic nanoseconds; the only clock of the engine.
        alive_ns: When the last turn or forward pass began; a step in parts has many.
        num_waiting: Requests without a row since the last step was planned; any thread may read it.
    """

    core: Core
    runner: ModelRunner
    draft_model: DraftModel | None

    def __init__(self, config: EngineConfig, loaded: LoadedModel, clock: Callable[[], int]) -> None:
        """Build an idle scheduler and the runner of its plans.

        Raises:
            ConfigError: A setting is out of range.
        """
        self.config = config
        self.clock = clock
        self.alive_ns = clock()
        self._loaded = loaded
        self._watchers: list[Callable[[StepRecord], None]] = []
        self._num_steps = 0
        self._wrap: Callable[[_core.Scheduler], _core.Scheduler] = lambda scheduler: scheduler
        self._block_reports: BlockReports | None = None
        self.exchange: BlockExchange | None = None
        self._max_in_flight = steps_in_flight(config)
        self._has_drafts = config.max_step_drafts > 0
        self.restart()
        capacity = self.core.scheduler.plan_capacity
        # A step keeps its plan until it ends: as many as there may be steps, in turn.
        self._plans = [torch.zeros(capacity, dtype=torch.int32) for _ in range(self._max_in_flight)]

    def restart(self) -> None:
        """Begin again, idle and with an empty prefix cache; weights and KV memory stay.

        Requests are forgotten without an event, and ids count from the start again.
        """
        self.num_waiting = 0
        self._num_fruitless = 0
        self._in_flight: deque[InFlightStep] = deque()
        self._num_launched = 0
        self._last_end_ns = self.clock()
        exchange = self.exchange
        hash_key = secrets.token_bytes(32) if exchange is None else exchange.names_key
        self.core = Core(self.config, self._loaded, self.clock, self._wrap, hash_key)
        if exchange is not None:
            exchange.attach(self.core.scheduler)
        if self._block_reports is not None:
            self._block_reports.begin(self.core.scheduler)
        self.runner = self._loaded.new_runner(self._runner_shape(), self.clock)
        draft = self._loaded.draft
        self.draft_model = None
        if draft is not None:
            self.draft_model = DraftModel(draft, self.runner.sampler, self.clock)

    def _runner_shape(self) -> RunnerShape:
        """Return the sizes of the runner's tables, which are the scheduler's."""
        config, scheduler = self.config, self.core.scheduler
        return RunnerShape(
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            num_kv_groups=len(self._loaded.config.spec.kv_windows),
            max_blocks_per_row=-(-scheduler.max_context_len // config.block_size),
            block_size=config.block_size,
            num_slots=scheduler.num_slots,
            steps_in_flight=self._max_in_flight,
            max_num_drafts=config.max_step_drafts,
            has_idle_cores=self._loaded.resolved.accelerator is not None
            or (config.num_threads is not None and config.num_threads < available_cores()),
        )

    def wrap_scheduler(self, wrap: Callable[[_core.Scheduler], _core.Scheduler]) -> None:
        """Put something between this and its scheduler, now and after each restart.

        Args:
            wrap: Returns what to call instead of an idle scheduler.
        """
        self._wrap = wrap
        self.core.scheduler = wrap(self.core.scheduler)

    def use_exchange(self, exchange: BlockExchange) -> None:
        """Begin again, as `restart`, with something that moves blocks."""
        self.exchange = exchange
        self.restart()

    def begin(self, request_id: int, prepared: Prepared) -> None:
        """Let blocks of a new request move, if anything moves them."""
        if self.exchange is not None:
            with self.core.guarded():
                self.exchange.begin(self.core.scheduler, request_id, prepared)

    @property
    def is_loading(self) -> bool:
        """Whether a request waits for blocks: `advance` may have no step to run."""
        return self.exchange is not None and self.exchange.is_loading

    @property
    def loaded(self) -> LoadedModel:
        """Return the model, until `close`."""
        return self._loaded

    def report_blocks(self, reports: BlockReports) -> None:
        """Report what the prefix cache has, now and after each restart."""
        self._block_reports = reports
        reports.begin(self.core.scheduler)

    def block_snapshot(self) -> BlockSnapshot:
        """Return all blocks that were reported, and not removed since; O(blocks)."""
        assert self._block_reports is not None, "invariant: blocks are reported"
        with self.core.guarded():
            return self._block_reports.snapshot(self.core.scheduler)

    def close(self) -> None:
        """Release the model and the runner; nothing runs any more."""
        self.core.is_down = True
        self._drop_in_flight()
        self.close_exchange()
        self.draft_model = None
        if self._loaded.ranks is not None:
            self._loaded.ranks.close()
        del self.runner, self._loaded

    def close_exchange(self) -> None:
        """Move no more blocks, within a bounded time; a second call has no effect."""
        if self.exchange is not None:
            self.exchange.close()

    @property
    def num_in_flight(self) -> int:
        """Steps that were launched and have not ended; 0 between two steps of a CPU."""
        return len(self._in_flight)

    def advance(self) -> StepOutput:
        """Launch what there is to run and end the oldest step; its events stay as they are.

        A step that fails runs again in parts. Requests that fail alone fail, and the others of the
        step are computed again from their start, since blocks that such a step wrote may be wrong.

        Raises:
            EngineDownError: The scheduler failed or the model fails for every request, now or
                before.
        """
        if self.core.is_down:
            message = "the engine is down"
            raise EngineDownError(message)
        ranks = self._loaded.ranks
        if ranks is not None and (fault := ranks.fault) is not None:
            self.core.is_down = True
            raise EngineDownError(fault)
        while len(self._in_flight) < self._max_in_flight and self._launch():
            pass
        if self._in_flight:
            return self._finish(self._in_flight[0])
        with self.core.guarded():
            events = self.core.scheduler.take_events()
            self._follow(events)
            if self._block_reports is not None:
                self._block_reports.take(self.core.scheduler)
            if self.exchange is not None:
                self.exchange.wait()
            return StepOutput(events, NO_LOGPROBS, self.core.scheduler.load(), None)

    def settle(self) -> None:
        """End the steps in flight and launch none; their events are dropped.

        Raises:
            EngineDownError: See `advance`.
        """
        while self._in_flight:
            self._finish(self._in_flight[0])

    def watch_steps(self, callback: Callable[[StepRecord], None]) -> Callable[[], None]:
        """Call back after every step, on the same thread; return a function that ends this."""
        self._watchers.append(callback)
        return lambda: self._watchers.remove(callback)

    def _launch(self) -> bool:
        """Plan a step and start it; return False where there is none to run now."""
        if self._in_flight and self._in_flight[-1].sampled is None:
            # A later step reads the tokens of that one, which runs again in parts first.
            return False
        started = self.alive_ns = self.clock()
        buffer = self._plans[self._num_launched % self._max_in_flight]
        core = self.core
        if self.draft_model is not None:
            self.draft_model.propose(core)
            self.alive_ns = self.clock()
        with core.guarded():
            if self.exchange is not None:
                self.exchange.turn(core.scheduler)
            number = core.scheduler.schedule(self.alive_ns, buffer)
            if self.exchange is not None:
                self.exchange.keep(Used.take(core.scheduler))
            self.num_waiting = core.scheduler.num_waiting
            if number is None:
                return False
            planned = self.clock()
            plan = PlanView.of(buffer.numpy())
            core.requests.assign_rows(plan)
            inputs = self.runner.apply(buffer)
            self.runner.move_blocks(inputs)
        self._num_launched += 1
        step = InFlightStep(number, plan, inputs, started, planned, ready_ns=self.clock())
        self._in_flight.append(step)
        try:
            step.sampled = self._pass(inputs)
        except (KeyboardInterrupt, SystemExit):
            self._roll_back(self._in_flight[0].number)
            raise
        except BaseException as error:
            # A panic in a kernel is no Exception.
            logger.error("step %d failed and runs again in parts", number, exc_info=error)
        step.sample_ns, self.runner.sample_ns = self.runner.sample_ns, 0
        return True

    def _finish(self, step: InFlightStep) -> StepOutput:
        """Wait for the oldest step and tell the scheduler its tokens, or which requests fail."""
        try:
            outcome = self._outcome(step)
            if isinstance(outcome, list):
                self._drop_in_flight()
        except BaseException:
            self._roll_back(step.number)
            raise
        computed = self.clock()
        logprobs = NO_LOGPROBS
        scheduler = self.core.scheduler
        with self.core.guarded():
            if isinstance(outcome, list):
                events = scheduler.fail(computed, step.number, outcome)
            else:
                events = scheduler.update(computed, step.number, outcome.tokens)
                logprobs = SampledLogprobs(
                    outcome.logprobs, outcome.ranks, outcome.candidates, outcome.prompt
                )
                self._in_flight.popleft()
                self._num_fruitless = 0 if len(outcome.tokens) else self._num_fruitless
            self._follow(events)
            if self.exchange is not None:
                self.exchange.keep(Used.take(scheduler))
            if self._block_reports is not None:
                self._block_reports.take(scheduler)
            load = scheduler.load()
        record = self._record(step, computed, load)
        for watcher in self._watchers:
            watcher(record)
        return StepOutput(events, logprobs, load, record)

    def _follow(self, events: _core.Events) -> None:
        """Let constraints and draft model follow the answers; what is forced becomes drafts."""
        drafts = self.runner.sampler.constraints.observe(events, self._has_drafts)
        if drafts is not None:
            self.core.scheduler.draft_all(drafts)
        if self.draft_model is not None and (ended := events.ended):
            self.draft_model.forget(ended)

    def _outcome(self, step: InFlightStep) -> Sampled | list[int]:
        """Return the draws of a step, or the requests for which it and its successor fail."""
        if step.sampled is not None:
            try:
                return step.sampled.wait()
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:
                text = "step %d failed on the device and runs again in parts"
                logger.error(text, step.number, exc_info=error)
        try:
            failing, sampled = bisect(
                step.inputs, lambda part: self._pass(part).wait(), self.runner.probe
            )
        except EngineDownError:
            self.core.is_down = True
            raise
        step.sample_ns, self.runner.sample_ns = step.sample_ns + self.runner.sample_ns, 0
        if not failing:
            logger.warning("step %d passed in parts: no request fails alone", step.number)
            return self._passed(step, sampled)
        ids: list[int] = self.core.requests.request_ids(step.plan)[failing].tolist()
        text = "%d of %d requests of step %d fail, the others are computed again"
        logger.error(text, len(ids), len(step.plan.rows), step.number)
        return ids

    def _passed(self, step: InFlightStep, sampled: Sampled) -> Sampled | list[int]:
        """Return the draws of a step that failed and passed in parts, or requests that fail."""
        if not self.runner.has_states:
            # A later step has read what this one wrote at first.
            return sampled if len(self._in_flight) == 1 else []
        # Recurrent states have moved on by the tokens twice: all of its requests are computed
        # again, unless they come no further by that.
        self._num_fruitless += 1
        if self._num_fruitless <= _MAX_FRUITLESS_STEPS:
            return []
        self._num_fruitless = 0
        logger.error("%d steps in a row failed that pass in parts", _MAX_FRUITLESS_STEPS + 1)
        ids: list[int] = self.core.requests.request_ids(step.plan).tolist()
        return ids

    def _pass(self, inputs: StepInputs) -> Launched:
        self.alive_ns = self.clock()
        return self.runner.run(inputs)

    def _roll_back(self, number: int) -> None:
        """Drop the steps in flight; their requests are computed again.

        Args:
            number: Number of the oldest step that the scheduler has in flight.
        """
        try:
            self._drop_in_flight()
        finally:
            with self.core.guarded():
                self.core.scheduler.fail(self.clock(), number, [])

    def _drop_in_flight(self) -> None:
        interrupt: BaseException | None = None
        for step in self._in_flight:
            if step.sampled is None:
                continue
            # Its draws are not used, but its buffers are free only when it has ended.
            try:
                step.sampled.wait()
            except (KeyboardInterrupt, SystemExit) as error:
                interrupt = error
            except BaseException:
                logger.debug("step %d failed as it was dropped", step.number, exc_info=True)
        self._in_flight.clear()
        if interrupt is not None:
            raise interrupt

    def _record(self, step: InFlightStep, computed_ns: int, load: _core.Load) -> StepRecord:
        """Record a step that has ended."""
        self._num_steps += 1
        previous, self._last_end_ns = self._last_end_ns, self.clock()
        started = max(step.started_ns, previous)
        return StepRecord(
            step=self._num_steps,
            started_ns=started,
            duration_s=(self._last_end_ns - started) / _NS_PER_S,
            times=step.times(previous, computed_ns, self._last_end_ns),
            num_waiting=load.num_waiting,
            row_numbers=step.plan.rows.copy(),
            request_ids=self.core.requests.request_ids(step.plan),
            num_tokens=step.plan.num_tokens.copy(),
            sampled=step.plan.sampled(),
            done=StepRows.of(self.core.scheduler),
        )
