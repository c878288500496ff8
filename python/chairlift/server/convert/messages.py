"""Proto messages to `chairlift.api.types` and back; no other module knows both.

`to_request` checks what only the proto can get wrong: a oneof that is not set, a malformed
duration, a field of a later version. All other checks are the engine's, so that they hold without a
server too. No field is ignored in silence.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from google.protobuf import duration_pb2

from chairlift.api import types
from chairlift.api.checks import check_count
from chairlift.api.constraints import MAX_CHOICES
from chairlift.api.errors import Reason, RequestError
from chairlift.engine.prepare.stopping import (
    MAX_STOP_PATTERNS,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
)
from chairlift.engine.prepare.text_queue import TextLimits
from chairlift.server.convert.chat import to_chat
from chairlift.server.convert.fields import bad, optional
from chairlift.server.convert.sampling import to_sampling
from chairlift.server.rpc.status import duration
from chairlift.v1 import generation_pb2 as pb

MAX_REQUEST_ID_BYTES: Final = 128

LOGPROBS_INTERVAL: Final = 8
"""Tokens with log probabilities that are delivered at a time to an answer that is sent whole."""

_YEAR_S: Final = 31_536_000.0
_SHORTEST_S: Final = 0.001

_FINISH_REASONS: Final = {
    types.FinishReason.STOP: pb.FINISH_REASON_STOP,
    types.FinishReason.LENGTH: pb.FINISH_REASON_LENGTH,
    types.FinishReason.CANCELLED: pb.FINISH_REASON_CANCELLED,
    types.FinishReason.TIME_LIMIT: pb.FINISH_REASON_TIME_LIMIT,
}

_WAIT_CAUSES: Final = {
    None: pb.WAIT_CAUSE_UNSPECIFIED,
    types.WaitCause.STEP: pb.WAIT_CAUSE_STEP,
    types.WaitCause.ROW: pb.WAIT_CAUSE_ROW,
    types.WaitCause.BLOCKS: pb.WAIT_CAUSE_BLOCKS,
    types.WaitCause.BUDGET: pb.WAIT_CAUSE_BUDGET,
    types.WaitCause.POLICY: pb.WAIT_CAUSE_POLICY,
    types.WaitCause.SHARE: pb.WAIT_CAUSE_SHARE,
    types.WaitCause.SUSPENDED: pb.WAIT_CAUSE_SUSPENDED,
}


@dataclass(frozen=True, slots=True)
class DeliveryOptions:
    """What the server delivers of the output of a request, and how often."""

    text: bool
    token_ids: bool
    logprobs: bool
    timeline: bool
    interval: int
    """Tokens per event after the first; 0 is one event at the end."""
    num_candidates: int = 0
    """The likeliest tokens that come with each log probability."""
    echo: bool = False
    """Whether the text of the prompt is sent."""
    prompt_logprobs: bool = False
    num_prompt_candidates: int = 0


# --- commands in ------------------------------------------------------------------------------


def check_request_id(request_id: str) -> None:
    """Check a client's label.

    Raises:
        RequestError: Longer than 128 bytes, or not printable ASCII.
    """
    if len(request_id) > MAX_REQUEST_ID_BYTES or not (
        request_id.isascii() and request_id.isprintable()
    ):
        message = f"expected at most {MAX_REQUEST_ID_BYTES} printable ASCII characters"
        raise bad("request_id", message)


def check_model(name: str, served: Sequence[str]) -> None:
    """Check a model's name; empty is the served model, which may have several names.

    Raises:
        RequestError: It names another model.
    """
    if name and name not in served:
        message = f"model: this server serves {' and '.join(map(repr, served))} alone"
        raise RequestError(Reason.UNKNOWN_MODEL, message, field="model")


def to_request(
    start: pb.Start,
    *,
    served: Sequence[str],
    tenant: str,
    limits: TextLimits,
) -> tuple[types.Request, DeliveryOptions]:
    """Convert a request.

    Args:
        start: The message.
        served: Names of the served model.
        tenant: Owner of the request.
        limits: A prompt of too many token ids is refused before it is converted.

    Raises:
        RequestError: With the path of the field that is wrong or not supported.
    """
    check_request_id(start.request_id)
    check_model(start.model, served)
    request = types.Request(
        prompt=_prompt(start, limits),
        sampling=to_sampling(start.sampling),
        stopping=_stopping(start.stopping, "stopping."),
        output=types.Output(
            text=optional(start.output, "text", True),
            logprobs=start.output.HasField("logprobs"),
            candidates=start.output.logprobs,
            prompt_logprobs=start.output.HasField("prompt_logprobs"),
            prompt_candidates=start.output.prompt_logprobs,
            echo=start.output.echo,
            skip_special_tokens=optional(start.output, "skip_special_tokens", True),
        ),
        schedule=_schedule(start.schedule),
        prefix_cache=types.PrefixCache(
            read=optional(start.prefix_cache, "read", True),
            write=optional(start.prefix_cache, "write", True),
            salt=start.prefix_cache.salt,
        ),
        add_special_tokens=optional(start, "add_special_tokens", True),
        truncate_prompt=optional(start, "truncate_prompt", None),
        adapter=start.adapter,
        constraint=_constraint(start.constraint) if start.HasField("constraint") else None,
        tenant=tenant,
        credit=optional(start, "credit", None),
    )
    return request, _delivery(start.output)


def to_change(update: pb.Update) -> types.Change:
    """Convert what changes about a live request.

    Raises:
        RequestError: With the path of the field that is wrong or not supported.
    """
    has_stopping, has_schedule = update.HasField("stopping"), update.HasField("schedule")
    if not has_stopping and not has_schedule:
        raise bad("update", "expected stopping or schedule, got none of them")
    return types.Change(
        stopping=_stopping(update.stopping, "update.stopping.") if has_stopping else None,
        schedule=_schedule(update.schedule, "update.") if has_schedule else None,
    )


def _prompt(start: pb.Start, limits: TextLimits) -> types.Prompt:
    kind = start.WhichOneof("prompt")
    if kind == "text":
        return start.text
    if kind == "token_ids":
        # Tokens that are cut off are not converted, however many they are.
        if start.truncate_prompt:
            kept: list[int] = start.token_ids.ids[-start.truncate_prompt :]
            return kept
        # How much room the answer needs is known later.
        limits.check_length(len(start.token_ids.ids), num_answer=0)
        return list(start.token_ids.ids)
    if kind == "chat":
        return to_chat(start.chat)
    raise bad("prompt", "expected text, token_ids or chat, got none of them")


def _constraint(constraint: pb.Constraint) -> types.Constraint:
    """Convert a constraint; one without any is refused by the engine."""
    kind = constraint.WhichOneof("constraint")
    if kind is None:
        return types.Constraint()
    if kind == "json_object":
        return types.Constraint(json_object=True)
    if kind == "choices":
        check_count(constraint.choices.choices, "constraint.choices", MAX_CHOICES)
        if not constraint.choices.choices:
            raise bad("constraint.choices", f"expected 1 to {MAX_CHOICES} texts, got none")
        return types.Constraint(choices=tuple(constraint.choices.choices))
    return types.Constraint(**{kind: getattr(constraint, kind)})


def _stopping(stopping: pb.Stopping, path: str) -> types.Stopping:
    check_count(stopping.stop, f"{path}stop", MAX_STOP_STRINGS)
    check_count(stopping.stop_regex, f"{path}stop_regex", MAX_STOP_PATTERNS)
    check_count(stopping.stop_token_ids, f"{path}stop_token_ids", MAX_STOP_TOKEN_IDS)
    return types.Stopping(
        max_tokens=optional(stopping, "max_tokens", None),
        min_tokens=stopping.min_tokens,
        stop=tuple(stopping.stop),
        stop_token_ids=tuple(stopping.stop_token_ids),
        ignore_eos=stopping.ignore_eos,
        include_stop=stopping.include_stop,
        stop_regex=tuple(stopping.stop_regex),
    )


def _schedule(schedule: pb.Schedule, path: str = "") -> types.Schedule:
    return types.Schedule(
        queue_timeout_s=_seconds(schedule, "queue_timeout", f"{path}schedule.queue_timeout"),
        time_to_first_token_s=_seconds(
            schedule, "time_to_first_token", f"{path}schedule.time_to_first_token"
        ),
        time_limit_s=_seconds(schedule, "time_limit", f"{path}schedule.time_limit"),
        priority=schedule.priority,
    )


def _delivery(output: pb.Output) -> DeliveryOptions:
    return DeliveryOptions(
        text=optional(output, "text", True),
        token_ids=output.token_ids,
        logprobs=output.HasField("logprobs"),
        num_candidates=output.logprobs,
        echo=output.echo,
        prompt_logprobs=output.HasField("prompt_logprobs"),
        num_prompt_candidates=output.prompt_logprobs,
        timeline=output.timeline,
        interval=optional(output, "interval", 1),
    )


def before_deadline(remaining_s: float | None, schedule: types.Schedule) -> types.Schedule:
    """Return a schedule whose first token comes before the call's deadline.

    Args:
        remaining_s: Seconds until the deadline: a first token after it reaches no client. None is
            no deadline.
        schedule: The request's schedule.
    """
    if remaining_s is None:
        return schedule
    within_s, requested_s = max(remaining_s, _SHORTEST_S), schedule.time_to_first_token_s
    return replace(schedule, time_to_first_token_s=min(within_s, requested_s or within_s))


def _seconds(message: Any, name: str, field: str) -> float | None:
    if not message.HasField(name):
        return None
    return seconds(getattr(message, name), field)


def seconds(value: duration_pb2.Duration, field: str) -> float:
    """Convert a duration.

    Raises:
        RequestError: Not a positive time of at most a year.
    """
    total = float(value.ToNanoseconds() * 1e-9)
    # Protobuf converts a duration whose parts have different signs, too.
    if not (0 <= value.nanos < 1_000_000_000 and 0 < total <= _YEAR_S):
        raise bad(field, f"expected a positive time of at most a year, got {total:g} s")
    return total


# --- events out -------------------------------------------------------------------------------


def from_accepted(event: types.Accepted, handle: str) -> pb.Accepted:
    """Convert the event; `handle` is the server's name of the request."""
    return pb.Accepted(
        handle=handle,
        num_prompt_tokens=event.num_prompt_tokens,
        queue_position=event.queue_position,
        seed=event.seed,
    )


def from_finished(event: types.Finished, output: DeliveryOptions) -> pb.Finished:
    """Convert the event."""
    finished = pb.Finished(
        reason=_FINISH_REASONS[event.reason],
        usage=_usage(event.usage),
        timeline=_timeline(event.timeline) if output.timeline else None,
    )
    if event.stop is not None:
        finished.stop = event.stop
    elif event.stop_token_id is not None:
        finished.stop_token_id = event.stop_token_id
    return finished


def from_failed(event: types.Failed, error: pb.Error, output: DeliveryOptions) -> pb.Failed:
    """Convert the event; `error` is its reason as `status.to_error` renders it."""
    with_timeline = output.timeline and event.timeline is not None
    return pb.Failed(
        error=error,
        usage=None if event.usage is None else _usage(event.usage),
        timeline=_timeline(event.timeline) if with_timeline else None,
    )


def wait_cause(cause: types.WaitCause | None) -> pb.WaitCause:
    """Convert the cause of a wait; None is no wait."""
    return _WAIT_CAUSES[cause]


def _usage(usage: types.Usage) -> pb.Usage:
    return pb.Usage(
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        transferred_tokens=usage.transferred_tokens,
        output_tokens=usage.output_tokens,
    )


def _timeline(timeline: types.Timeline | None) -> pb.Timeline | None:
    if timeline is None:
        return None
    return pb.Timeline(
        queued=duration(timeline.queued_s),
        prefill=None if timeline.prefill_s is None else duration(timeline.prefill_s),
        decode=None if timeline.decode_s is None else duration(timeline.decode_s),
        num_preemptions=timeline.num_preemptions,
        num_recomputed_tokens=timeline.num_recomputed_tokens,
        queued_by_cause=[
            pb.QueuedTime(cause=wait_cause(cause), time=duration(time_s))
            for cause, time_s in timeline.queued_by_cause_s.items()
        ],
    )
