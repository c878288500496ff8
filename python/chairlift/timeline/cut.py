"""The first part of a timeline."""

from dataclasses import fields, replace

from chairlift.timeline.values import Steps, Timeline


def cut(timeline: Timeline, seconds: float) -> Timeline:
    """Return the steps that end within so many seconds after the start of the first, one at least.

    Spans keep the tokens of their whole length in proportion to the steps that are left.
    """
    steps = timeline.steps
    ends_s = (steps.end_ns - steps.start_ns[:1].sum()) * 1e-9
    return first_steps(timeline, int((ends_s <= seconds).sum()))


def first_steps(timeline: Timeline, count: int) -> Timeline:
    """Return the first steps of a timeline, at least one; spans as in `cut`."""
    steps, count = timeline.steps, max(1, count)
    if count >= timeline.num_steps:
        return timeline
    spans = []
    for span in timeline.spans:
        num_steps = min(span.end, count) - span.first_step
        if num_steps > 0:
            num_tokens = span.num_tokens * num_steps // span.num_steps
            num_accepted = span.num_accepted * num_steps // span.num_steps
            spans.append(
                span._replace(num_steps=num_steps, num_tokens=num_tokens, num_accepted=num_accepted)
            )
    arrays = {field.name: getattr(steps, field.name)[:count] for field in fields(Steps)}
    return replace(
        timeline,
        steps=replace(steps, **arrays),
        spans=tuple(spans),
        preemptions=tuple(lost for lost in timeline.preemptions if lost.step < count),
        gaps=tuple(gap for gap in timeline.gaps if gap.before_step < count),
    )
