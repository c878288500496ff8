"""The synchronous engine: a model, a scheduler, and the step that joins them.

    schedule -> plan -> ModelRunner (forward, sample) -> update -> events

One thread owns an engine; `prepare` alone may be called from any.
"""

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from chairlift import _core
from chairlift.config import engine_config
from chairlift.engine.assembly import new_preparer, new_runner, scheduler_of, set_threads
from chairlift.engine.commands import add_request, change_request
from chairlift.engine.events import (
    NO_LOGPROBS,
    CoreEvent,
    SampledLogprobs,
    core_refusal,
    refusal,
    to_event,
)
from chairlift.engine.loading import Progress, load_model
from chairlift.engine.model_runner import StepInputs
from chairlift.engine.offline import answer_all
from chairlift.engine.prepare import Prepared, PreparedChange
from chairlift.engine.quarantine import judge
from chairlift.engine.request_table import RequestTable
from chairlift.engine.sampler import Sampled
from chairlift.engine.step_record import StepRecord
from chairlift.errors import EngineDownError, Reason
from chairlift.plan import PlanView
from chairlift.types import (
    Accepted,
    Answer,
    Change,
    Chat,
    Event,
    Output,
    Prompt,
    Request,
    Sampling,
    Schedule,
    Stopping,
)

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


class Engine:
    """A model that answers requests, one step at a time.

    Attributes:
        config: Settings, validated.
        model_name: As given.
        model_config: Of the model.
        tokenizer: Of the model.
        num_kv_blocks: Of the KV cache, the null block included.
        max_model_len: Longest prompt plus answer of the model, or less where the settings say so.
        max_context_len: The same for this server, whose KV cache may hold less.
        scheduler: Owns requests and KV blocks.
        runner: Owns the row tables and runs the model.
        clock: Gives monotonic nanoseconds; the only clock of the engine.
        alive_ns: When the last turn or forward pass began; a step in parts has many.
        down: The scheduler raised, or the model fails whatever it is given.
    """

    def __init__(
        self,
        model: str | Path = "demo",
        *,
        on_progress: Progress | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
        **settings: object,
    ) -> None:
        """Loads a model.

        Args:
            model: `demo`, a local folder, or a Hugging Face id.
            on_progress: Told how many bytes of the weights are read, and how many there are.
            clock: Time in nanoseconds; tests bring their own.
            settings: Fields of `EngineConfig`.

        Raises:
            ConfigError: A setting is wrong.
            ModelError: The model cannot be loaded.
        """
        self.config = engine_config(**settings)
        set_threads(self.config)
        loaded = load_model(model, self.config, on_progress)
        self.model_name = str(model)
        self.model_config = loaded.config
        self.tokenizer = loaded.tokenizer
        self.num_kv_blocks = loaded.num_blocks
        self.max_model_len = loaded.max_model_len
        self.clock = clock
        self.alive_ns = clock()
        self._loaded = loaded
        self.restart()
        self._preparer = new_preparer(self.config, loaded, self.scheduler)
        self.max_context_len = self.scheduler.max_context_len
        self._plan = torch.zeros(self.scheduler.plan_capacity, dtype=torch.int32)
        self._watchers: list[Callable[[StepRecord], None]] = []
        self._num_steps = 0

    def restart(self) -> None:
        """Begins anew, idle and with an empty prefix cache; the weights and the KV memory stay.

        Requests are forgotten without an event, and ids count from the start again.
        """
        self.down = False
        self.scheduler = scheduler_of(self.config, self._loaded)
        self.runner = new_runner(self.config, self._loaded, self.scheduler)
        self._requests = RequestTable(
            num_slots=self.scheduler.num_slots, num_rows=self.config.max_num_seqs
        )
        self._outputs: dict[int, Output] = {}

    def prepare(self, request: Request) -> Prepared:
        """Tokenizes and validates a request and fills its defaults; any thread may call this.

        Raises:
            RequestError: With the path of the first field that is wrong.
        """
        return self._preparer.prepare(request)

    def add(self, request: Request | Prepared) -> Accepted:
        """Queues a request; its events come from `step`.

        Raises:
            RequestError: The request is wrong, or the queue is full.
        """
        prepared = request if isinstance(request, Prepared) else self.prepare(request)
        accepted = self.enqueue(prepared)
        self._outputs[accepted.request_id] = prepared.output
        return accepted

    def enqueue(self, prepared: Prepared) -> Accepted:
        """Queues a request whose events the caller takes from `advance`.

        Raises:
            RequestError: The queue is full, or the engine is down.
        """
        if self.down:
            raise refusal(Reason.ENGINE_DOWN)
        try:
            with self._trusted_core():
                added = add_request(self.scheduler, self.clock(), prepared)
        except _core.Refused as error:
            raise core_refusal(error) from None
        self._requests.add(added.slot, added.request_id)
        self.runner.sampler.set(added.slot, prepared.drawing)
        return Accepted(
            added.request_id, len(prepared.prompt), added.queue_position, prepared.drawing.seed
        )

    def cancel(self, request_id: int, reason: str = "cancelled") -> bool:
        """Ends a request in whatever state it is; gives whether it was live.

        Args:
            request_id: From `Accepted`.
            reason: `cancelled`, or a `Reason` with which it fails.
        """
        with self._trusted_core():
            return self.scheduler.abort(self.clock(), request_id, reason)

    def change(self, request_id: int, change: Change | PreparedChange) -> bool:
        """Changes a request from its next step on; gives whether it was live.

        Raises:
            RequestError: With the path of the first field that is wrong.
        """
        if isinstance(change, Change):
            change = self.prepare_change(change)
        with self._trusted_core():
            return change_request(self.scheduler, self.clock(), request_id, change)

    def prepare_change(self, change: Change, num_prompt_tokens: int = 0) -> PreparedChange:
        """Validates a change of a request with such a prompt; any thread may call this."""
        return self._preparer.prepare_change(change, num_prompt_tokens)

    def flush(self) -> None:
        """Lets the requests that wait now run in a partial batch (static, dynamic)."""
        with self._trusted_core():
            self.scheduler.flush()

    @property
    def has_work(self) -> bool:
        """Whether the end of some request that was added has not come from `step` yet."""
        return bool(self._outputs)

    def load(self) -> _core.Load:
        """Gives a snapshot of queue, batch and KV cache."""
        return self.scheduler.load()

    def step(self) -> list[Event]:
        """Runs one step if there is work.

        Returns:
            What happened since the last call.

        Raises:
            EngineDownError: The scheduler failed, now or before.
        """
        return self.events(self.advance())

    def events(self, output: StepOutput) -> list[Event]:
        """Converts the events of requests that came through `add`."""
        return [self._event(event, output.sampled) for event in output.events]

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling: Sampling | None = None,
        stopping: Stopping | None = None,
        output: Output | None = None,
    ) -> list[Answer]:
        """Answers prompts, under any batching policy; nothing times out.

        Args:
            prompts: One prompt or many.
            sampling: Of all prompts.
            stopping: Of all prompts.
            output: Of all prompts.

        Returns:
            One answer per prompt, in their order.

        Raises:
            RequestError: A prompt is refused or fails; the others are cancelled.
        """
        requests = [
            Request(
                prompt,
                sampling or Sampling(),
                stopping or Stopping(),
                output or Output(),
                Schedule(queue_timeout_s=math.inf, time_limit_s=math.inf),
            )
            for prompt in _as_many(prompts)
        ]
        return answer_all(self, requests)

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
        with self._trusted_core():
            step = self.scheduler.schedule(started, self._plan)
            if step is None:
                events = self.scheduler.take_events()
                return StepOutput(events, NO_LOGPROBS, self.scheduler.load(), None)
            plan = PlanView.of(self._plan.numpy())
            self._requests.seat(plan)
            inputs = self.runner.apply(self._plan)
        events, sampled = self._run(step, plan, inputs)
        load = self.scheduler.load()
        record = self._record(started, plan, load)
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
        with self._trusted_core():
            self.scheduler.check_invariants()

    def not_started(self) -> list[int]:
        """Gives the live requests that never ran; ids that have ended may be among them."""
        return self._requests.not_started()

    def _run(
        self, step: int, plan: PlanView, inputs: StepInputs
    ) -> tuple[_core.Events, SampledLogprobs]:
        try:
            sampled = self._sample(step, plan, inputs)
        except BaseException:
            with self._trusted_core():
                self.scheduler.fail(self.clock(), step, [])
            raise
        with self._trusted_core():
            if isinstance(sampled, list):
                return self.scheduler.fail(self.clock(), step, sampled), NO_LOGPROBS
            events = self.scheduler.update(self.clock(), step, sampled.tokens, sampled.counts)
        return events, SampledLogprobs(sampled.logprobs, sampled.ranks)

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

    def _record(self, started: int, plan: PlanView, load: _core.Load) -> StepRecord:
        self._num_steps += 1
        return StepRecord(
            step=self._num_steps,
            started_ns=started,
            duration_s=(self.clock() - started) / _NS_PER_S,
            num_waiting=load.num_waiting,
            row_numbers=plan.rows.copy(),
            request_ids=self._requests.request_ids(plan),
            num_tokens=plan.num_tokens.copy(),
            sampled=plan.sampled(),
        )

    def _event(self, event: CoreEvent, sampled: SampledLogprobs) -> Event:
        request_id = event.request_id
        if isinstance(event, _core.TokensEvent):
            return to_event(event, self._outputs[request_id], sampled)
        return to_event(event, self._outputs.pop(request_id), sampled)

    @contextmanager
    def _trusted_core(self) -> Iterator[None]:
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


def _as_many(prompts: Prompt | Sequence[Prompt]) -> Sequence[Prompt]:
    """Tells one prompt from many: a sequence of numbers is one."""
    one = isinstance(prompts, str | Chat) or (len(prompts) > 0 and not _is_prompt(prompts[0]))
    return [prompts] if one else prompts  # type: ignore[list-item, return-value]


def _is_prompt(item: object) -> bool:
    return isinstance(item, str | Chat | Sequence)
