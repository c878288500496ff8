"""The synchronous engine: requests in, steps (`stepper.py`), events out.

One thread owns an engine; `prepare` alone may be called from any.
"""

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from chairlift import _core, checks
from chairlift.config import EngineConfig, engine_config
from chairlift.engine.assembly import new_preparer, set_threads
from chairlift.engine.commands import add_request, change_request, explain_request
from chairlift.engine.events import CoreEvent, SampledLogprobs, core_refusal, refusal, to_event
from chairlift.engine.loading import LoadedModel, Progress, load_model
from chairlift.engine.offline import answer_all
from chairlift.engine.prepare import Prepared, PreparedChange, Times
from chairlift.engine.stepper import StepOutput, Stepper
from chairlift.errors import Reason
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
    Waiting,
)

_NS_PER_S = 1_000_000_000


class Engine(Stepper):
    """A model that answers requests, one step at a time.

    Attributes:
        model_name: As given.
        model_config: Of the model.
        tokenizer: Of the model.
        place: Where the model runs.
        num_kv_blocks: Of the KV cache, the null block included.
        max_model_len: Longest prompt plus answer of the model, or less where the settings say so.
        max_context_len: The same for this server, whose KV cache may hold less.
        text_limits: Of what is tokenized, rendered or turned into text.
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
        config = engine_config(**settings)
        set_threads(config)
        loaded = self.load_model(model, config, on_progress)
        super().__init__(loaded.place.settings, loaded, clock)
        self.model_name = str(model)
        self.model_config = loaded.config
        self.tokenizer = loaded.tokenizer
        self.place = loaded.place
        self.num_kv_blocks = loaded.num_blocks
        self.max_model_len = loaded.max_model_len
        self.max_context_len = self.scheduler.max_context_len
        self._preparer = new_preparer(self.config, loaded, self.scheduler)
        self.text_limits = self._preparer.text_limits

    def restart(self) -> None:
        """As `Stepper.restart`; requests that came through `add` are forgotten too."""
        super().restart()
        self._outputs: dict[int, Output] = {}

    def load_model(
        self, model: str | Path, config: EngineConfig, on_progress: Progress | None
    ) -> LoadedModel:
        """Brings a model into memory."""
        return load_model(model, config, on_progress)

    def prepare(self, request: Request) -> Prepared:
        """Tokenizes and validates a request and fills its defaults; any thread may call this.

        Raises:
            RequestError: With the path of the first field that is wrong.
        """
        return self._preparer.prepare(request)

    def check(self, request: Request) -> Times:
        """Check all of a request that can be wrong without tokenizing; any thread may call this.

        Raises:
            RequestError: With the path of the first field that is wrong.
        """
        return self._preparer.check(request)

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
            with self.trusted_core():
                added = add_request(self.scheduler, self.clock(), prepared)
        except _core.Refused as error:
            raise core_refusal(error) from None
        self._requests.add(added.slots, added.request_id)
        for slot in added.slots:
            self.runner.sampler.set(slot, prepared.drawing)
        return Accepted(
            added.request_id, len(prepared.prompt), added.queue_position, prepared.drawing.seed
        )

    def cancel(self, request_id: int, reason: str = "cancelled") -> bool:
        """Ends a request in whatever state it is; gives whether it was live.

        Args:
            request_id: From `Accepted`.
            reason: `cancelled`, or a `Reason` with which it fails.
        """
        with self.trusted_core():
            return self.scheduler.abort(self.clock(), request_id, reason)

    def change(self, request_id: int, change: Change | PreparedChange) -> bool:
        """Changes a request from its next step on; gives whether it was live.

        Raises:
            RequestError: With the path of the first field that is wrong.
        """
        if isinstance(change, Change):
            change = self.prepare_change(change)
        with self.trusted_core():
            return change_request(self.scheduler, self.clock(), request_id, change)

    def explain(self, request_id: int) -> Waiting | None:
        """Tells why a request waits; None if it has ended or never was."""
        with self.trusted_core():
            return explain_request(self.scheduler, request_id)

    def prepare_change(self, change: Change, num_prompt_tokens: int = 0) -> PreparedChange:
        """Validates a change of a request with such a prompt; any thread may call this."""
        return self._preparer.prepare_change(change, num_prompt_tokens)

    @property
    def has_work(self) -> bool:
        """Whether a step is in flight, or `step` owes the end of some request that was added."""
        return bool(self._outputs) or self.num_in_flight > 0

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
            One answer per prompt, in their order; with `sampling.n` so many per prompt.

        Raises:
            RequestError: A prompt is refused or fails; the others are cancelled.
        """
        requests = [
            Request(
                prompt,
                Sampling() if sampling is None else sampling,
                Stopping() if stopping is None else stopping,
                Output() if output is None else output,
                Schedule(queue_timeout_s=math.inf, time_limit_s=math.inf),
            )
            for prompt in _as_many(prompts)
        ]
        return answer_all(self, requests)

    def _event(self, event: CoreEvent, sampled: SampledLogprobs) -> Event:
        request_id = event.request_id
        is_last = isinstance(event, _core.FailedEvent) or (
            isinstance(event, _core.FinishedEvent) and event.last
        )
        output = self._outputs.pop(request_id) if is_last else self._outputs[request_id]
        return to_event(event, output, sampled)


def _as_many(prompts: Prompt | Sequence[Prompt]) -> Sequence[Prompt]:
    """Tells one prompt from many: a list of numbers is one."""
    checks.prompt(prompts, "prompts")
    if isinstance(prompts, str | Chat):
        return [prompts]
    items: list[Any] = list(prompts)
    is_one = bool(items) and not isinstance(items[0], str | Chat) and not checks.is_list(items[0])
    return [items] if is_one else items
