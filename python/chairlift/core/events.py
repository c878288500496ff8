"""From the core's events to those of `chairlift.api.types`, and from refusals to `RequestError`."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from chairlift import _core
from chairlift.api.answer_collector import AnswerCollector
from chairlift.api.errors import Reason, RequestError
from chairlift.api.types import (
    Answer,
    Event,
    Failed,
    Finished,
    FinishReason,
    Logprobs,
    Output,
    PromptAnswer,
    PromptPiece,
    Timeline,
    Tokens,
    ToolCallDelta,
    Usage,
    WaitCause,
)

NEVER_QUEUED = -1
"""`Failed.request_id` of a request that was refused before it got an id."""

_NS = 1e-9

CoreEvent = _core.TokensEvent | _core.PromptEvent | _core.FinishedEvent | _core.FailedEvent


@dataclass(frozen=True, slots=True)
class PromptScores:
    """The log probabilities of prompts of one step, N tokens."""

    logprobs: Tensor
    """float32 `[N]`"""
    ranks: Tensor
    """int32 `[N]`"""
    candidate_ids: Tensor
    """int32 `[N, C]`: the likeliest tokens, as many as one of the requests asks for."""
    candidate_logprobs: Tensor
    """float32 `[N, C]`"""

    def of(self, start: int, count: int, num_candidates: int) -> Logprobs:
        """Cut the part of one event."""
        part = slice(start, start + count)
        logprobs, ranks = self.logprobs[part].tolist(), self.ranks[part].tolist()
        if num_candidates == 0:
            return Logprobs(logprobs, ranks)
        ids = self.candidate_ids[part, :num_candidates].tolist()
        values = self.candidate_logprobs[part, :num_candidates].tolist()
        pairs = zip(ids, values, strict=True)
        return Logprobs(logprobs, ranks, [list(zip(*pair, strict=True)) for pair in pairs])

    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return logprobs and ranks `[N]`, candidate ids and their logprobs `[N, C]`."""
        return self.logprobs, self.ranks, self.candidate_ids, self.candidate_logprobs


@dataclass(frozen=True, slots=True)
class SampledLogprobs:
    """The sampler's arrays of one step, which events of that step point into."""

    logprobs: Tensor
    """float32 `[S]`"""
    ranks: Tensor
    """int32 `[S]`"""
    candidates: _core.Candidates | None = None
    prompt: PromptScores | None = None

    def of(self, start: int, count: int, num_candidates: int = 0) -> Logprobs:
        """Cut the part of one event."""
        end, found = start + count, self.candidates
        logprobs, ranks = self.logprobs[start:end].tolist(), self.ranks[start:end].tolist()
        if found is None or num_candidates == 0:
            return Logprobs(logprobs, ranks)
        parts = (found.of(draw, num_candidates) for draw in range(start, end))
        return Logprobs(logprobs, ranks, [list(zip(*part, strict=True)) for part in parts])


NO_LOGPROBS = SampledLogprobs(torch.empty(0), torch.empty(0, dtype=torch.int32))


def to_event(event: CoreEvent, output: Output, sampled: SampledLogprobs) -> Event:
    """Convert one event of the core.

    Args:
        event: From `_core.Events`.
        output: What its request asked for.
        sampled: Log probabilities of the step that gave the event.
    """
    if isinstance(event, _core.TokensEvent):
        logprobs = None
        if output.logprobs:
            logprobs = sampled.of(event.sample_slot, len(event.token_ids), output.candidates)
        text = event.text if output.text else ""
        return Tokens(
            request_id=event.request_id,
            index=event.index,
            text=text,
            token_ids=event.token_ids,
            logprobs=logprobs,
            reasoning=event.reasoning,
            tool_calls=[ToolCallDelta(*part) for part in event.tool_calls],
        )
    if isinstance(event, _core.PromptEvent):
        return _prompt_piece(event, output, sampled.prompt)
    account = event.account
    usage = Usage(
        account.prompt_tokens,
        account.cached_tokens,
        account.output_tokens,
        account.transferred_tokens,
    )
    timeline = _timeline(account)
    if isinstance(event, _core.FailedEvent):
        return failed(event.request_id, Reason[event.reason], usage, timeline)
    return Finished(
        request_id=event.request_id,
        index=event.index,
        reason=FinishReason(event.reason),
        stop=event.stop,
        stop_token_id=event.stop_token_id,
        usage=usage,
        timeline=timeline,
        last=event.last,
    )


def _prompt_piece(
    event: _core.PromptEvent, output: Output, scores: PromptScores | None
) -> PromptPiece:
    logprobs = None
    if output.prompt_logprobs:
        logprobs = Logprobs([], [])
        if scores is not None:
            count, num_candidates = event.num_scores, output.prompt_candidates
            logprobs = scores.of(event.score_slot, count, num_candidates)
    text = event.text if output.text else ""
    return PromptPiece(event.request_id, event.offset, text, event.token_ids, logprobs)


@dataclass(slots=True)
class AnswerBuilder:
    """Collects the output of one sequence into an `Answer`."""

    position: int
    """Index of the request among all."""
    output: Output
    collected: AnswerCollector = field(default_factory=AnswerCollector)
    logprobs: list[float] = field(default_factory=list)
    candidates: list[Sequence[tuple[int, float]]] = field(default_factory=list)
    pieces: list[PromptPiece] = field(default_factory=list)

    def add(self, event: Tokens) -> None:
        """Append new output."""
        self.collected.add(event.text, event.reasoning, event.token_ids)
        for part in event.tool_calls:
            self.collected.add_call(part.position, part.id, part.name, part.arguments)
        if event.logprobs is not None:
            self.logprobs.extend(event.logprobs.logprobs)
            self.candidates.extend(event.logprobs.candidates)

    def finish(self, event: Finished) -> Answer:
        """Return the complete answer."""
        return Answer(
            text=str(self.collected.text),
            token_ids=self.collected.token_ids,
            reason=event.reason,
            usage=event.usage,
            timeline=event.timeline,
            logprobs=self.logprobs if self.output.logprobs else None,
            candidates=self.candidates if self.output.candidates else None,
            index=event.index,
            reasoning=str(self.collected.reasoning),
            tool_calls=self.collected.tool_calls,
            prompt=self._prompt() if self.output.has_prompt else None,
        )

    def _prompt(self) -> PromptAnswer:
        parts = [piece.logprobs for piece in self.pieces if piece.logprobs is not None]
        logprobs = [value for part in parts for value in part.logprobs]
        candidates = [entries for part in parts for entries in part.candidates]
        return PromptAnswer(
            text="".join(piece.text for piece in self.pieces),
            token_ids=[token for piece in self.pieces for token in piece.token_ids],
            # The first token has none.
            logprobs=[None, *logprobs] if self.output.prompt_logprobs else [],
            candidates=[(), *candidates] if self.output.prompt_candidates else [],
        )


def failed(
    request_id: int | None,
    reason: Reason,
    usage: Usage | None = None,
    timeline: Timeline | None = None,
) -> Failed:
    """Return the end of a request by a fault that its own fields did not cause."""
    return Failed(
        request_id=NEVER_QUEUED if request_id is None else request_id,
        reason=reason,
        message=reason.message,
        usage=usage,
        timeline=timeline,
        retry_after_s=reason.retry_after_s,
    )


def refused(error: RequestError) -> Failed:
    """Return the end of a request that was never queued."""
    return Failed(
        request_id=NEVER_QUEUED,
        reason=error.reason,
        message=error.message,
        field=error.field,
        retry_after_s=error.retry_after_s,
    )


def core_refusal(error: _core.Refused) -> RequestError:
    """Return the error for a request that the scheduler does not take."""
    reason = Reason[error.reason]
    return RequestError(
        reason, error.message, field=error.field, retry_after_s=reason.retry_after_s
    )


def _timeline(account: _core.Account) -> Timeline:
    scheduled, first, finished = account.first_scheduled, account.first_token, account.finished
    return Timeline(
        queued_s=((finished if scheduled is None else scheduled) - account.arrival) * _NS,
        queued_by_cause_s={WaitCause(cause): time * _NS for cause, time in account.waits},
        prefill_s=None if scheduled is None or first is None else (first - scheduled) * _NS,
        decode_s=None if first is None else (finished - first) * _NS,
        num_preemptions=account.num_preemptions,
        num_recomputed_tokens=account.num_recomputed_tokens,
    )
