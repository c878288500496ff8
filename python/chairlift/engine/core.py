"""The scheduler of the core, called with the engine's types, and the ids of its requests.

Any exception of the scheduler but a refusal is a bug in it, and takes the engine down.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from chairlift import _core
from chairlift.api.config import Drafts, EngineConfig
from chairlift.api.errors import EngineDownError, Reason, refusal
from chairlift.api.types import Waiting
from chairlift.core.events import core_refusal
from chairlift.core.new_request import NewRequest
from chairlift.core.plan import PlanView
from chairlift.core.scheduler import nanoseconds, new_scheduler
from chairlift.core.tenant_view import TenantView, to_waiting
from chairlift.engine.loading.loaded import LoadedModel
from chairlift.engine.prepare.prepared import Prepared, PreparedChange


def steps_in_flight(config: EngineConfig) -> int:
    """Return how many steps may run before the first of them has ended.

    A CPU computes a step on the thread that plans it: there is nothing to overlap. For a GPU the
    settings say 2 (`devices.py`).
    """
    return config.steps_in_flight or 1


class Core:
    """A scheduler, and a table of its requests by slot and row.

    Attributes:
        scheduler: Owns requests and KV blocks.
        token_table: What each token contributes to text.
        requests: Ids by slot and row.
        is_down: The scheduler raised, or the model fails for every request.
    """

    def __init__(
        self,
        config: EngineConfig,
        loaded: LoadedModel,
        clock: Callable[[], int],
        wrap: Callable[[_core.Scheduler], _core.Scheduler],
        hash_key: bytes,
    ) -> None:
        """Build the scheduler of a model.

        Args:
            config: Settings of the engine.
            loaded: The model.
            clock: Nanoseconds.
            wrap: Returns what to call instead of the scheduler.
            hash_key: 32 secret bytes by which blocks of the prefix cache are named.

        Raises:
            ConfigError: A setting is out of range.
        """
        host_pool = loaded.host_pool
        vocab_size = loaded.config.spec.vocab_size
        self.token_table = loaded.tokenizer.token_table(vocab_size)
        self.scheduler = wrap(
            new_scheduler(
                config,
                max_model_len=loaded.max_model_len,
                vocab_size=vocab_size,
                num_blocks=loaded.num_blocks,
                kv_windows=loaded.config.spec.kv_windows,
                hash_key=hash_key,
                token_table=self.token_table,
                steps_in_flight=steps_in_flight(config),
                num_host_blocks=0 if host_pool is None else host_pool.num_blocks,
                swap_block_time=0 if host_pool is None else host_pool.block_time,
                max_step_drafts=config.max_step_drafts,
                prompt_lookup=config.drafts is not Drafts.OFF,
                state_snapshots=loaded.num_state_snapshots,
            )
        )
        self.requests = RequestTable(
            num_slots=self.scheduler.num_slots, num_rows=config.max_num_seqs
        )
        self.is_down = False
        self._clock = clock

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Take the engine down if the scheduler raises anything but a refusal.

        Raises:
            EngineDownError: The scheduler raised another error, or a rank is lost.
        """
        try:
            yield
        except _core.Refused:
            raise
        except (KeyboardInterrupt, SystemExit):
            self.is_down = True
            raise
        except _core.RankError as error:
            # A plan goes to the other ranks as it is applied.
            self.is_down = True
            raise EngineDownError(str(error)) from error
        except BaseException as error:
            self.is_down = True
            message = f"the scheduler failed: {type(error).__name__}: {error}"
            raise EngineDownError(message) from error

    def add(self, prepared: Prepared) -> _core.Added:
        """Queue a request.

        Raises:
            RequestError: The queue is full, or the engine is down.
        """
        if self.is_down:
            raise refusal(Reason.ENGINE_DOWN)
        now, times, use = self._clock(), prepared.times, prepared.adapter
        try:
            with self.guarded():
                request = NewRequest(
                    prepared.prompt,
                    max_tokens=prepared.max_tokens,
                    num_sequences=prepared.num_answers,
                    min_tokens=prepared.min_tokens,
                    stop=prepared.stop,
                    stop_token_ids=prepared.stop_token_ids,
                    include_stop=prepared.include_stop,
                    detokenize=prepared.output.text or prepared.stops_at_text,
                    skip_special_tokens=prepared.output.skip_special_tokens,
                    tenant=prepared.tenant,
                    salt=prepared.prefix_cache.salt,
                    cache_read=prepared.prefix_cache.read,
                    cache_write=prepared.prefix_cache.write,
                    queue_deadline=_deadline(now, times.queue_timeout_s),
                    first_token_by=_deadline(now, times.time_to_first_token_s),
                    deadline=_deadline(now, times.time_limit_s),
                    credit=prepared.credit,
                    priority=times.priority,
                    turn_delay=nanoseconds(times.turn_delay_s) or 0,
                    adapter=(0, 0) if use is None else (use.slot, use.generation),
                    echo=prepared.output.echo,
                    prompt_logprobs=prepared.output.prompt_logprobs,
                    end_ids=prepared.end_ids,
                    stop_regex=prepared.stop_regex,
                    parser=prepared.parser,
                )
                added = self.scheduler.add(now, request)
        except _core.Refused as error:
            raise core_refusal(error) from None
        self.requests.add(added.slots, added.request_id)
        return added

    def abort(self, request_id: int, reason: str) -> bool:
        """End a request in whatever state it is; return whether it was live.

        Args:
            request_id: From `Accepted`.
            reason: `cancelled`, or a `Reason` with which it fails.
        """
        with self.guarded():
            return self.scheduler.abort(self._clock(), request_id, reason)

    def change(self, request_id: int, change: PreparedChange) -> bool:
        """Change a request in whatever state it is; return whether it was live.

        Args:
            request_id: From `Accepted`.
            change: Holds from the next step on.
        """
        stopping, times = change.stopping, change.times
        with self.guarded():
            return self.scheduler.change(
                self._clock(),
                request_id,
                max_tokens=None if stopping is None else stopping.max_tokens,
                min_tokens=0 if stopping is None else stopping.min_tokens,
                stop=() if stopping is None else stopping.stop,
                stop_token_ids=() if stopping is None else stopping.stop_token_ids,
                include_stop=stopping is not None and stopping.include_stop,
                priority=None if times is None else times.priority,
                queue_timeout=None if times is None else nanoseconds(times.queue_timeout_s),
                time_to_first_token=(
                    None if times is None else nanoseconds(times.time_to_first_token_s)
                ),
                time_limit=None if times is None else nanoseconds(times.time_limit_s),
                credit=change.credit,
                credit_is_final=change.credit_is_final,
                paused=change.paused,
                stop_regex=None if stopping is None else stopping.stop_regex,
            )

    def explain(self, request_id: int) -> Waiting | None:
        """Return why a request waits; None if it has ended or never was."""
        with self.guarded():
            waiting = self.scheduler.explain(request_id)
        return None if waiting is None else to_waiting(waiting)

    def view(self, tenant: str, max_listed: int) -> TenantView:
        """Return the queue and the KV cache as a tenant may see them."""
        with self.guarded():
            return TenantView.of(self.scheduler, tenant, max_listed)

    def adapter_users(self, slot: int) -> list[int]:
        """Return the requests that keep the slot of an adapter in use."""
        with self.guarded():
            return self.scheduler.with_adapter(slot)

    def flush(self) -> None:
        """Let the requests that wait now run in a partial batch (static, dynamic)."""
        with self.guarded():
            self.scheduler.flush()

    def check_invariants(self) -> None:
        """Check the scheduler's state, in time proportional to the number of blocks.

        Raises:
            EngineDownError: The state is inconsistent.
        """
        with self.guarded():
            self.scheduler.check_invariants()


class RequestTable:
    """Request ids of slots, and slots of rows, as arrays: no step loops over requests.

    A slot belongs to one sequence of a request from `Scheduler.add` until it ends; then the
    scheduler assigns it again. Entries of ended requests stay until then and are harmless: ids are
    never reused, and every command on an ended id is a no-op.
    """

    def __init__(self, *, num_slots: int, num_rows: int) -> None:
        self._id_of_slot = np.full(num_slots, -1, dtype=np.int64)
        self._started = np.zeros(num_slots, dtype=np.bool_)
        self._slot_of_row = np.zeros(num_rows, dtype=np.int32)

    def add(self, slots: list[int], request_id: int) -> None:
        """Enter the sequences of a new request into free slots."""
        self._id_of_slot[slots] = request_id
        self._started[slots] = False

    def slots(self, request_id: int) -> list[int]:
        """Return the slots of the sequences of a live request."""
        slots: list[int] = np.flatnonzero(self._id_of_slot == request_id).tolist()
        return slots

    def assign_rows(self, plan: PlanView) -> None:
        """Follow the assignments of rows in a plan."""
        if len(plan.assigned):
            slots = plan.assigned[:, 1]
            self._slot_of_row[plan.assigned[:, 0]] = slots
            self._started[slots] = True

    def request_ids(self, plan: PlanView) -> NDArray[np.int64]:
        """Return the request of each of the plan's rows, `[R]`; call after `assign_rows`."""
        return self._id_of_slot[self._slot_of_row[plan.rows]]

    def not_started(self) -> list[int]:
        """Return the requests that never had a row; some may have ended before they got one."""
        ids: list[int] = self._id_of_slot[~self._started & (self._id_of_slot >= 0)].tolist()
        return ids


def _deadline(now: int, after_s: float | None) -> int | None:
    delay = nanoseconds(after_s)
    return None if delay is None else now + delay
