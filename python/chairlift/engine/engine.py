"""The synchronous engine: requests in, steps (`stepper.py`), events out.

One thread owns an engine; only `prepare` and the preparer may be called from any.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack, cast

from chairlift import _core
from chairlift.api import chats, checks
from chairlift.api.config import EngineSettings, engine_config
from chairlift.api.errors import EngineDownError
from chairlift.api.types import (
    Accepted,
    Answer,
    Change,
    Constraint,
    Event,
    Output,
    Prompt,
    Request,
    Sampling,
    Schedule,
    Stopping,
    Tool,
    ToolChoice,
    Waiting,
)
from chairlift.core.events import CoreEvent, SampledLogprobs, to_event
from chairlift.core.tenant_view import TenantView
from chairlift.engine.answer_all import answer_all
from chairlift.engine.block_reports import BlockReports, BlockSink, BlockSnapshot
from chairlift.engine.loading.load import load_model, new_preparer, set_threads
from chairlift.engine.loading.loaded import LoadedModel, Loader, OnProgress
from chairlift.engine.lora.registry import Adapters, OnBadAdapter
from chairlift.engine.prefix_store import PrefixStore, StoreKeys, open_store, store_keys
from chairlift.engine.prepare.prepared import Prepared, PreparedChange
from chairlift.engine.runner.model_runner import ModelRunner
from chairlift.engine.runner.sampler import NoEnd
from chairlift.engine.step import StepOutput, StepRecord
from chairlift.engine.stepper import Stepper
from chairlift.engine.transfer.layout import check_model, layout_of, probe_prompt, read_used

if TYPE_CHECKING:
    from chairlift.model.config import ModelConfig


class Engine:
    """A model that answers requests, one step at a time; a context manager that closes it.

    Attributes:
        model_name: The name that was given.
        model_config: Configuration of the model.
        config: The settings, with the defaults of the device.
        clock: Returns monotonic nanoseconds.
        tokenizer: Tokenizer of the model.
        device: Where the model runs.
        num_kv_blocks: Blocks of the KV cache, the null block included.
        num_state_snapshots: Snapshots of recurrent states; None for a model without.
        max_model_len: Longest prompt plus output of the model, or less where the settings say so.
        pooling: What the model gives besides text.
        max_context_len: The same for this server, whose KV cache may hold less.
        adapters: Those that requests may name; see `Adapters.load` and `Adapters.unload`.
        text_limits: Limits of what is tokenized, rendered or turned into text.
        draft_folder: Folder or file of the draft model, if there is one.
        preparer: Internal: checks requests and changes; any thread may call it.
        stepper: Internal: the scheduler and the runner.
        fault: What ended the engine's thread, if one did since the last restart.
        prefix_store: Internal: blocks on disk, if there are any.
    """

    def __init__(
        self,
        model: str | Path = "demo",
        *,
        on_progress: OnProgress | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
        loader: Loader = load_model,
        on_bad_adapter: OnBadAdapter | None = None,
        **settings: Unpack[EngineSettings],
    ) -> None:
        """Load a model.

        Args:
            model: Its name, as `resolve_model` takes it.
            on_progress: See `load_model`.
            clock: Time in nanoseconds; tests bring their own.
            loader: Brings the model into memory; benchmarks and tests bring their own.
            on_bad_adapter: Called for one of the settings that cannot be loaded; None raises.
            settings: Fields of `EngineConfig`.

        Raises:
            ConfigError: A setting is wrong.
            ModelError: The model, or an adapter, cannot be loaded.
        """
        config = engine_config(**settings)
        keys = store_keys(config)
        set_threads(config)
        loaded = loader(model, config, on_progress)
        self.config = loaded.resolved.settings
        self.clock = clock
        self.stepper = Stepper(self.config, loaded, clock)
        self.fault: BaseException | None = None
        self.model_name = str(model)
        self.model_config = loaded.config
        self.tokenizer = loaded.tokenizer
        self.device = loaded.resolved
        self.draft_folder = loaded.draft_folder
        self.num_kv_blocks = loaded.num_blocks
        self.num_state_snapshots = loaded.num_state_snapshots
        self.max_model_len = loaded.max_model_len
        self.pooling = loaded.pooling
        self.max_context_len = self.stepper.core.scheduler.max_context_len
        # A model of vectors alone draws one token, which is in no text and in no answer.
        self.num_unseen_tokens = 0 if self.pooling.generates else 1
        self.adapters = Adapters(
            self.config,
            # An encoder has no slot for an adapter.
            cast("ModelConfig", loaded.config),
            loaded.transformer.adapters,
            users=lambda slot: self.stepper.core.adapter_users(slot),
            on_emptied=lambda slot: self.stepper.core.scheduler.remove_adapter(slot),
        )
        self.adapters.load_all(on_bad_adapter)
        core = self.stepper.core
        self.preparer = new_preparer(
            self.config, loaded, core.scheduler, core.token_table, self.adapters
        )
        self.text_limits = self.preparer.text_limits
        self._outputs: dict[int, Output] = {}
        self._is_closed = False
        self.prefix_store: PrefixStore | None = None
        self._layout: bytes | None = None
        if keys is not None:
            self._use_store(loaded, keys)

    def _use_store(self, loaded: LoadedModel, keys: StoreKeys) -> None:
        """Open the prefix store, for blocks as this process computes them.

        Raises:
            ConfigError: The model or a setting does not fit it.
        """
        check_model(loaded, "prefix_store")
        store = open_store(self.config, loaded, keys, self.block_layout())
        if store is not None:
            blocks = PrefixStore(store, self.config, loaded, keys.names, self.clock)
            self.prefix_store = blocks
            self.stepper.use_exchange(blocks)

    def block_layout(self) -> bytes:
        """Return the layout of blocks and states; the first call computes a short prompt."""
        if self._layout is None:
            loaded, scheduler = self.stepper.loaded, self.stepper.core.scheduler
            scheduler.track_block_uses()
            prompt = probe_prompt(loaded.config.spec.vocab_size, self.max_context_len)
            self.generate([prompt], Sampling(temperature=0.0), Stopping(1, ignore_eos=True))
            probed = read_used(self.config, loaded, scheduler)
            self._layout = layout_of(self.config, loaded, probed)
        return self._layout

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the weights and the KV cache; requests end without an event.

        An engine that is closed takes no request and cannot be restarted. A second call has no
        effect.
        """
        if self._is_closed:
            return
        self._is_closed = True
        self._outputs.clear()
        self.stepper.close()

    def restart(self) -> None:
        """Begin again, idle and with an empty prefix cache; the weights and the KV memory stay.

        Requests are forgotten without an event, and ids count from the start again.
        """
        self._check_open()
        self.fault = None
        self._outputs.clear()
        self.stepper.restart()
        # No request is left that could use them.
        self.adapters.end_unloads()

    def report_blocks(self, tenants: Sequence[str], sink: BlockSink) -> None:
        """Tell after each step which blocks of some tenants the prefix cache has.

        Args:
            tenants: Whose blocks: of their requests that are added from now on and have no salt.
            sink: Takes the changes.
        """
        reports = BlockReports(tenants, sink, self._adapter_names)
        self.stepper.report_blocks(reports)

    def block_snapshot(self) -> BlockSnapshot:
        """Return all blocks that were reported, and not removed since; O(blocks)."""
        return self.stepper.block_snapshot()

    def _adapter_names(self) -> dict[int, str]:
        return {adapter.slot: adapter.name for adapter in self.adapters.list()}

    @property
    def runner(self) -> ModelRunner:
        """The runner of the steps, until `restart`."""
        return self.stepper.runner

    @property
    def is_down(self) -> bool:
        """Whether the scheduler or the model failed for every request; see `restart`."""
        return self.stepper.core.is_down

    def take_down(self, fault: BaseException) -> None:
        """Take no request and run no step until `restart`."""
        self.fault = fault
        self.stepper.core.is_down = True

    def prepare(self, request: Request) -> Prepared:
        """Tokenize and validate a request and fill its defaults; any thread may call this.

        Raises:
            RequestError: With the path of the first field that is wrong.
        """
        return self.preparer.prepare(request)

    def add(self, request: Request | Prepared) -> Accepted:
        """Queue a request; its events come from `step`.

        Raises:
            RequestError: The request is wrong, or the queue is full.
        """
        prepared = request if isinstance(request, Prepared) else self.prepare(request)
        accepted = self.enqueue(prepared)
        self._outputs[accepted.request_id] = prepared.output
        return accepted

    def enqueue(self, prepared: Prepared) -> Accepted:
        """Queue a request whose events the caller takes from `advance`.

        Raises:
            RequestError: The queue is full, or the engine is down.
        """
        self._check_open()
        if prepared.adapter is not None:
            self.adapters.check(prepared.adapter)
        added = self.stepper.core.add(prepared)
        no_end = NoEnd(prepared.stop_token_ids, prepared.min_tokens)
        sampler = self.runner.sampler
        for index, slot in enumerate(added.slots):
            sampler.set(
                slot,
                prepared.sampling,
                prepared.prompt,
                no_end,
                self.stepper.core.token_table,
                prepared.output.prompt_candidates,
                scored=prepared.output.logprobs,
            )
            self.runner.set_pooled(slot, prepared.pooled)
            if prepared.grammar is not None:
                sampler.constraints.begin(
                    slot,
                    added.request_id,
                    index,
                    prepared.grammar,
                    num_prompt_tokens=len(prepared.prompt),
                    ends_early=prepared.ends_early,
                )
        self.stepper.begin(added.request_id, prepared)
        return Accepted(
            added.request_id, len(prepared.prompt), added.queue_position, prepared.sampling.seed
        )

    def abort(self, request_id: int, reason: str = "cancelled") -> bool:
        """End a request in whatever state it is; return whether it was live.

        Args:
            request_id: From `Accepted`.
            reason: `cancelled`, or a `Reason` with which it fails.
        """
        return self.stepper.core.abort(request_id, reason)

    def change(self, request_id: int, change: Change | PreparedChange) -> bool:
        """Change a request from its next step on; return whether it was live.

        Raises:
            RequestError: With the path of the first field that is wrong.
        """
        if isinstance(change, Change):
            change = self.preparer.prepare_change(change)
        core, stopping = self.stepper.core, change.stopping
        is_live = core.change(request_id, change)
        if is_live and stopping is not None:
            no_end = NoEnd(stopping.stop_token_ids, stopping.min_tokens)
            ends_early = not stopping.ignore_eos
            self.runner.sampler.set_no_end(core.requests.slots(request_id), no_end, ends_early)
        return is_live

    def explain(self, request_id: int) -> Waiting | None:
        """Tell why a request waits; None if it has ended or never was."""
        return self.stepper.core.explain(request_id)

    def view(self, tenant: str, max_listed: int) -> TenantView:
        """Return the queue and the KV cache as a tenant may see them.

        Args:
            tenant: Whose waiting requests are listed.
            max_listed: How many of them.
        """
        return self.stepper.core.view(tenant, max_listed)

    def abort_waiting(self, reason: str) -> None:
        """End the requests that never ran, as `abort`."""
        for request_id in self.stepper.core.requests.not_started():
            self.abort(request_id, reason)

    def flush(self) -> None:
        """Let the requests that wait now run in a partial batch (static, dynamic)."""
        self.stepper.core.flush()

    def load(self) -> _core.Load:
        """Return a snapshot of queue, batch and KV cache."""
        return self.stepper.core.scheduler.load()

    def watch_steps(self, callback: Callable[[StepRecord], None]) -> Callable[[], None]:
        """Call back after every step, on the same thread; return a function that ends this."""
        return self.stepper.watch_steps(callback)

    def check_invariants(self) -> None:
        """Check the scheduler's state, in time proportional to the number of blocks.

        Raises:
            EngineDownError: The state is inconsistent.
        """
        self.stepper.core.check_invariants()

    @property
    def has_work(self) -> bool:
        """Whether a step is in flight, or `step` owes the end of some request that was added."""
        return bool(self._outputs) or self.num_in_flight > 0

    @property
    def num_in_flight(self) -> int:
        """Steps that were launched and have not ended; 0 between two steps of a CPU."""
        return self.stepper.num_in_flight

    @property
    def is_loading(self) -> bool:
        """Whether a request waits for blocks from disk: `advance` may have no step to run."""
        return self.stepper.is_loading

    def prefix_store_stats(self) -> _core.PrefixStoreStats | None:
        """Return the counts of the prefix store; None without one. Any thread may call this."""
        return None if self.prefix_store is None else self.prefix_store.stats()

    def advance(self) -> StepOutput:
        """Launch what there is to run and end the oldest step; its events stay as they are.

        Raises:
            EngineDownError: The scheduler failed or the model fails for every request, now or
                before.
        """
        self._check_open()
        return self.stepper.advance()

    def step(self) -> list[Event]:
        """Run one step if there is work.

        Returns:
            What happened since the last call.

        Raises:
            EngineDownError: The scheduler failed, now or before.
        """
        return self.events(self.advance())

    def events(self, output: StepOutput) -> list[Event]:
        """Convert the events of requests that came through `add`."""
        return [self._event(event, output.sampled) for event in output.events]

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling: Sampling | None = None,
        stopping: Stopping | None = None,
        output: Output | None = None,
        adapter: str = "",
        constraint: Constraint | None = None,
        *,
        tools: Sequence[Tool | Mapping[str, Any]] | None = None,
        tool_choice: ToolChoice | Mapping[str, Any] | str | None = None,
        parallel_tool_calls: bool | None = None,
    ) -> list[Answer]:
        """Answer prompts, under any batching policy; nothing times out.

        Args:
            prompts: One prompt or many.
            sampling: Parameters of all prompts.
            stopping: When the answers to all prompts end.
            output: What the answers to all prompts have.
            adapter: Adapter of all prompts; empty is the model alone.
            constraint: What each answer must be.
            tools: Functions that the answers may call; each prompt is a conversation then.
            tool_choice: `auto`, `none`, `required`, or a function.
            parallel_tool_calls: Whether an answer may hold more than one call.

        Returns:
            One answer per prompt, in their order; with `sampling.n` so many per prompt.

        Raises:
            RequestError: A prompt is refused or fails; the others are aborted.
        """
        self._check_open()
        requests = [
            Request(
                chats.with_tools(prompt, tools, tool_choice, parallel_tool_calls),
                Sampling() if sampling is None else sampling,
                Stopping() if stopping is None else stopping,
                Output() if output is None else output,
                Schedule(queue_timeout_s=math.inf, time_limit_s=math.inf),
                adapter=adapter,
                constraint=constraint,
            )
            for prompt in checks.prompts(prompts)
        ]
        return answer_all(self, requests)

    def _check_open(self) -> None:
        if self._is_closed:
            message = "the engine is closed"
            raise EngineDownError(message)

    def _event(self, event: CoreEvent, sampled: SampledLogprobs) -> Event:
        request_id = event.request_id
        is_last = isinstance(event, _core.FailedEvent) or (
            isinstance(event, _core.FinishedEvent) and event.last
        )
        output = self._outputs.pop(request_id) if is_last else self._outputs[request_id]
        return to_event(event, output, sampled)
