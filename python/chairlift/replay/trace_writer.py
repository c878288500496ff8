"""Turns the calls of a scheduler into the lines of a trace, without text and token ids."""

import secrets
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chairlift import _core
from chairlift.core.new_request import NewRequest
from chairlift.core.plan import PlanView
from chairlift.core.step_rows import StepRows
from chairlift.replay.format import (
    HASH_BYTES,
    Arrival,
    Cancel,
    End,
    Flush,
    Header,
    Restart,
    Step,
    dump,
)
from chairlift.replay.plan_rows import PlanRows
from chairlift.replay.row_changes import REQUEST, RowChanges


class Added(NamedTuple):
    """A request was queued."""

    now: int
    request_id: int
    request: NewRequest
    slots: list[int]
    """Request slot of each answer."""


class Cancelled(NamedTuple):
    """A client cancelled a request."""

    now: int
    request_id: int


class Flushed(NamedTuple):
    """The input ended for now."""

    now: int


class OtherEvents(NamedTuple):
    """Events that came outside a step."""

    events: _core.Events


class Stepped(NamedTuple):
    """A step ended."""

    started: int
    updated: int
    """The time passed to the scheduler, which is that of the new tokens."""
    ended: int
    plan: NDArray[np.int32]
    events: _core.Events
    load: _core.Load
    """After the step."""
    failed: bool
    done: StepRows | None
    """What its rows did; None of a step that failed with the one before it."""


class Restarted(NamedTuple):
    """An idle scheduler replaced a lost one, and counts ids from the start."""

    now: int


Entry = Added | Cancelled | Flushed | OtherEvents | Restarted | Stepped


@dataclass(slots=True)
class _Live:
    """A request that has not ended."""

    number: int
    chain: "_Chain"
    num_prompt_blocks: int
    num_output: int = 0
    last_token: int | None = None
    """Time of the last token."""


@dataclass(slots=True)
class _Chain:
    """Names full blocks of a growing sequence by keyed hashes, each chained to its parent."""

    key: bytes
    block_size: int
    parent: bytes
    names: list[str] = field(default_factory=list)
    tail: list[int] = field(default_factory=list)

    def extend(self, token_ids: Sequence[int]) -> None:
        tokens, size = [*self.tail, *token_ids], self.block_size
        num_full = len(tokens) - len(tokens) % size
        for start in range(0, num_full, size):
            block = array("i", tokens[start : start + size]).tobytes()
            digest = blake2b(self.parent + block, digest_size=HASH_BYTES, key=self.key)
            self.parent = digest.digest()
            self.names.append(digest.hexdigest())
        self.tail = tokens[num_full:]


class TraceWriter:
    """Writes one trace."""

    def __init__(self, header: Header, start: int) -> None:
        """Start a trace at a time of the engine's clock."""
        self._header = header
        self._start = start
        # A reader of the file cannot test prompts: the key never leaves this process.
        self._key = secrets.token_bytes(32)
        self._live: dict[tuple[int, int], _Live] = {}
        # By request and answer: in a trace each answer is a request of its own.
        self._num_requests = 0
        self._tenants: dict[str, int] = {"": 0}
        self._rows = PlanRows(header.max_num_seqs)
        self._changes = RowChanges(header.max_num_seqs)
        # By request slot.
        self._number_of_slot: dict[int, int] = {}

    def header(self) -> str:
        """Return the first line."""
        return dump(self._header)

    def lines(self, entry: Entry) -> Iterator[str]:
        """Yield the lines of one entry, in the order of the events."""
        match entry:
            case Added():
                for index in range(entry.request.num_sequences):
                    yield self._arrival(entry, index)
            case Cancelled(now, request_id):
                t = now - self._start
                for live in self._answers(request_id):
                    yield dump(Cancel(t=t, request=live.number, tokens=live.num_output))
            case Flushed(now):
                yield dump(Flush(t=now - self._start))
            case OtherEvents(events):
                yield from self._ends(events)
            case Restarted(now):
                yield from self._lost(now - self._start)
                yield dump(Restart(t=now - self._start))
            case Stepped():
                gaps = self._take_tokens(entry)
                yield self._step(entry, gaps)
                yield from self._ends(entry.events)

    def _answers(self, request_id: int) -> list[_Live]:
        return [live for (request, _), live in self._live.items() if request == request_id]

    def _arrival(self, entry: Added, index: int) -> str:
        self._num_requests += 1
        request = entry.request
        names = (request.tenant.encode(), request.salt.encode(), repr(request.adapter).encode())
        root = b"".join(len(b).to_bytes(8, "little") + b for b in names)
        chain = _Chain(self._key, self._header.block_size, root)
        chain.extend(request.prompt)
        live = _Live(self._num_requests, chain, len(chain.names))
        self._live[entry.request_id, index] = live
        self._number_of_slot[entry.slots[index]] = live.number
        return dump(
            Arrival(
                t=entry.now - self._start,
                request=live.number,
                prompt=len(request.prompt),
                max_tokens=request.max_tokens,
                tenant=self._tenants.setdefault(request.tenant, len(self._tenants)),
                queue_timeout=_after(entry.now, request.queue_deadline),
                time_to_first_token=_after(entry.now, request.first_token_by),
                time_limit=_after(entry.now, request.deadline),
                priority=request.priority,
                blocks="".join(chain.names),
                cache_read=request.cache_read,
                cache_write=request.cache_write,
            )
        )

    def _take_tokens(self, entry: Stepped) -> Counter[int]:
        """Note the tokens of a step; return the gaps that they closed, and how many of each."""
        gaps: Counter[int] = Counter()
        for event in entry.events:
            if isinstance(event, _core.TokensEvent) and event.token_ids:
                live = self._live[event.request_id, event.index]
                live.chain.extend(event.token_ids)
                if live.last_token is not None:
                    gaps[entry.updated - live.last_token] += 1
                # Tokens of one event have no gap between them.
                more = len(event.token_ids) - 1
                if more:
                    gaps[0] += more
                live.last_token = entry.updated
                live.num_output += len(event.token_ids)
        return gaps

    def _step(self, entry: Stepped, gaps: Counter[int]) -> str:
        work = self._rows.apply(entry.plan)
        preempted = self._preempted(entry)
        return dump(
            Step(
                t=entry.started - self._start,
                duration=max(1, entry.ended - entry.started),
                rows=work.num_rows,
                tokens=work.num_tokens,
                prefill=PlanView.of(entry.plan).num_prefill_tokens(),
                context=work.num_context,
                kv_blocks=entry.load.num_blocks - entry.load.num_free_blocks,
                kv_tokens=entry.load.num_kv_tokens,
                itl=sorted(gaps.items()),
                failed=entry.failed,
                waiting=entry.load.num_waiting,
                changes=self._changed(entry),
                preempted=preempted,
            )
        )

    def _changed(self, entry: Stepped) -> list[list[int]]:
        plan, done = PlanView.of(entry.plan), entry.done
        if done is None:
            return []
        slots = self._rows.slot[plan.rows].tolist()
        numbers = np.array([self._number_of_slot[slot] for slot in slots], dtype=np.int64)
        return self._changes.write(plan.rows, numbers, plan.num_tokens, done)

    def _preempted(self, entry: Stepped) -> list[int]:
        """Return the numbers of the answers that lost a row before the step.

        The core names their requests: an answer that is in the step has kept its row, and those
        that were in the step before lost theirs first.
        """
        if entry.done is None or not entry.done.preempted:
            return []
        rows = self._rows.slot[PlanView.of(entry.plan).rows].tolist()
        kept = {self._number_of_slot[slot] for slot in rows}
        before = set(self._changes.state[:, REQUEST].tolist())
        found: list[int] = []
        for request_id in entry.done.preempted:
            answers = [live.number for live in self._answers(request_id)]
            gone = [number for number in answers if number not in kept and number not in found]
            found += sorted(gone, key=lambda number: number not in before)[:1]
        return found

    def _ends(self, events: _core.Events) -> Iterator[str]:
        for event in events:
            if isinstance(event, _core.TokensEvent | _core.PromptEvent):
                continue
            if isinstance(event, _core.FinishedEvent) and not event.last:
                yield self._end(self._live.pop((event.request_id, event.index)), event)
                continue
            for index in [index for request, index in self._live if request == event.request_id]:
                live = self._live.pop((event.request_id, index))
                yield self._end(live, event)

    def _end(self, live: _Live, event: _core.FinishedEvent | _core.FailedEvent) -> str:
        account = event.account
        first = account.first_token
        return dump(
            End(
                t=account.finished - self._start,
                request=live.number,
                tokens=live.num_output,
                reason=event.reason,
                first_token=None if first is None else first - self._start,
                blocks="".join(live.chain.names[live.num_prompt_blocks :]),
            )
        )

    def _lost(self, t: int) -> Iterator[str]:
        """Yield the ends of the requests of a lost scheduler, which reports none."""
        for live in self._live.values():
            yield dump(End(t=t, request=live.number, tokens=live.num_output, reason="ENGINE_DOWN"))
        self._live.clear()
        self._rows = PlanRows(self._header.max_num_seqs)


def _after(now: int, deadline: int | None) -> int | None:
    return None if deadline is None else max(1, deadline - now)
