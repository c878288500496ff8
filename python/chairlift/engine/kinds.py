"""The types of a request's parts, which are checked before any value in them is read."""

from dataclasses import fields

from chairlift import checks
from chairlift.types import (
    Change,
    Chat,
    Output,
    PrefixCache,
    Request,
    Sampling,
    Schedule,
    Stopping,
)

_PARTS = {
    "sampling": Sampling,
    "stopping": Stopping,
    "output": Output,
    "schedule": Schedule,
    "prefix_cache": PrefixCache,
}


def check_request(request: Request) -> None:
    """Check the type of each part of a request, and its switches.

    Raises:
        RequestError: With the path of the first field that is wrong.
    """
    checks.kind(request, Request, "request")
    for name, part in _PARTS.items():
        checks.kind(getattr(request, name), part, name)
    for field in fields(Output):
        checks.flag(getattr(request.output, field.name), f"output.{field.name}")
    checks.flag(request.prefix_cache.read, "prefix_cache.read")
    checks.flag(request.prefix_cache.write, "prefix_cache.write")
    checks.flag(request.add_special_tokens, "add_special_tokens")
    checks.prompt(request.prompt, "prompt")
    if isinstance(request.prompt, Chat):
        checks.chat(request.prompt)


def check_change(change: Change) -> None:
    """Check the type of each part of a change.

    Raises:
        RequestError: With the path of the first field that is wrong.
    """
    checks.kind(change, Change, "change")
    if change.stopping is not None:
        checks.kind(change.stopping, Stopping, "update.stopping")
    if change.schedule is not None:
        checks.kind(change.schedule, Schedule, "update.schedule")
