"""Static batches that compute every answer to the length of the longest of all requests.

The baseline of Anyscale's comparison of policies (2023): its driver sets the shortest and the
longest length of every answer to the longest of the workload, and counts the tokens asked for.
"""

from dataclasses import replace

from chairlift.api.config import Batching
from chairlift.replay.format import Header, StepTime
from chairlift.replay.run import OnStep, Replayed, output_lengths, replay
from chairlift.replay.trace import Trace


def replay_padded(
    trace: Trace, settings: Header, step_time: StepTime, on_step: OnStep | None = None
) -> Replayed:
    """Replay a trace under static batching with padded answers.

    The rows compute all tokens of the padding, and the times of the requests include it; the
    output tokens are those that were asked for.

    Args:
        trace: What arrives when, and how long its answers are.
        settings: The scheduler's.
        step_time: Moves the clock.
        on_step: Called after each step.

    Raises:
        ConfigError: A setting is out of range.
    """
    lengths = output_lengths(trace.requests)
    longest = max(lengths)
    requests = [
        replace(request, num_output=longest, max_tokens=longest) for request in trace.requests
    ]
    room = longest + max(request.num_prompt for request in trace.requests)
    wide = {"batching": Batching.STATIC, "max_model_len": max(settings.max_model_len, room)}
    replayed = replay(
        replace(trace, requests=requests), settings.model_copy(update=wide), step_time, on_step
    )
    # Requests are refused for their lengths in both ways alike, or not at all.
    useful = min(sum(lengths), replayed.run.num_output_tokens)
    return replace(replayed, run=replace(replayed.run, num_output_tokens=useful))
