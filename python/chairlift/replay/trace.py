"""A trace in memory: requests with all that is known of them, recorded or drawn."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from chairlift.api.errors import ConfigError
from chairlift.replay.format import (
    Arrival,
    Cancel,
    End,
    Event,
    Flush,
    Header,
    Restart,
    Step,
    dump,
    read_lines,
)

BlockNames = NDArray[np.uint64]
NO_BLOCKS: BlockNames = np.zeros(0, dtype=np.uint64)


@dataclass(slots=True)
class Request:
    """One request; times in nanoseconds after the start of the trace."""

    arrival: int
    num_prompt: int
    max_tokens: int
    num_output: int | None = None
    """Length of the answer; None if unknown."""
    blocks: BlockNames = field(default_factory=lambda: NO_BLOCKS)
    """Names of the first full blocks of prompt and answer."""
    tenant: int = 0
    queue_timeout: int | None = None
    time_to_first_token: int | None = None
    time_limit: int | None = None
    priority: int = 0
    cache_read: bool = True
    cache_write: bool = True
    cancelled: int | None = None
    """Time of a cancel before the first token; a later one shortens `num_output` instead."""
    first_token: int | None = None
    """Time of the first token; this and the following fields are recorded ones."""
    ended: int | None = None
    """Time of the end; None for requests that failed, too."""
    num_tokens: int = 0
    """Tokens of the answer, complete or not."""


@dataclass(slots=True)
class Trace:
    """Requests in order of arrival, and the recorded run."""

    header: Header
    requests: list[Request]
    flushes: list[int] = field(default_factory=list)
    """Times at which the input ended, so that partial batches could run."""
    steps: list[Step] = field(default_factory=list)
    restarts: list[int] = field(default_factory=list)
    """Times at which the engine was lost and restarted."""
    tokens_per_name: int = 0
    """Tokens that a name of a block stands for; 0 is the header's block size."""

    def __post_init__(self) -> None:
        """Fill in what the header says."""
        self.tokens_per_name = self.tokens_per_name or self.header.block_size


def read_trace(path: Path) -> Trace:
    """Read a trace file.

    Raises:
        ConfigError: It is damaged or of another version; the message names the line.
    """
    header, events = read_lines(path)
    trace = Trace(header, [])
    requests: dict[int, Request] = {}
    for number, event in enumerate(events, start=2):
        try:
            _take(trace, requests, event)
        except ValueError as error:
            message = f"{path}:{number}: {error}"
            raise ConfigError(message) from None
    if not requests:
        message = f"{path} holds no request"
        raise ConfigError(message)
    return trace


def _take(trace: Trace, requests: dict[int, Request], event: Event) -> None:
    """Add one line; raise ValueError if it contradicts those before."""
    match event:
        case Step():
            trace.steps.append(event)
        case Restart():
            trace.restarts.append(event.t)
        case Flush():
            trace.flushes.append(event.t)
        case Arrival():
            if event.request in requests:
                message = f"request {event.request} arrives twice"
                raise ValueError(message)
            if trace.requests and event.t < trace.requests[-1].arrival:
                message = f"request {event.request} arrives before the one above"
                raise ValueError(message)
            if len(event.blocks) // 16 > event.prompt // trace.header.block_size:
                message = f"request {event.request} has more blocks than its prompt fills"
                raise ValueError(message)
            requests[event.request] = _request(event)
            trace.requests.append(requests[event.request])
        case Cancel():
            _known(requests, event.request).cancelled = None if event.tokens else event.t
        case End():
            _end(_known(requests, event.request), event)


def _request(line: Arrival) -> Request:
    return Request(
        arrival=line.t,
        num_prompt=line.prompt,
        max_tokens=line.max_tokens,
        blocks=_names(line.blocks),
        tenant=line.tenant,
        queue_timeout=line.queue_timeout,
        time_to_first_token=line.time_to_first_token,
        time_limit=line.time_limit,
        priority=line.priority,
        cache_read=line.cache_read,
        cache_write=line.cache_write,
    )


def _known(requests: dict[int, Request], number: int) -> Request:
    if number not in requests:
        message = f"request {number} has not arrived"
        raise ValueError(message)
    return requests[number]


def _end(request: Request, line: End) -> None:
    request.first_token = line.first_token
    request.num_tokens = line.tokens
    if line.blocks:
        request.blocks = np.concatenate([request.blocks, _names(line.blocks)])
    if not line.reason.isupper():
        request.ended = line.t
        # An answer that the time limit ended would have been longer with another schedule.
        if line.tokens and line.reason != "time_limit":
            request.num_output = line.tokens
    if line.reason == "cancelled" and not line.tokens and request.cancelled is None:
        # Its client gave no credit for it: only its end in the trace says so.
        request.cancelled = line.t


def _names(text: str) -> BlockNames:
    return np.frombuffer(bytes.fromhex(text), dtype=">u8").astype(np.uint64)


def write_trace(trace: Trace, path: Path) -> None:
    """Write a trace that was drawn; recorded ones are written by the recorder.

    Raises:
        ConfigError: The file cannot be written.
    """
    lines = [dump(trace.header)]
    for number, request in enumerate(trace.requests, start=1):
        lines.append(dump(_arrival(number, request)))
        if request.num_output is not None:
            lines.append(dump(End(request=number, tokens=request.num_output, reason="length")))
    lines += [dump(Flush(t=t)) for t in trace.flushes]
    try:
        path.write_text("".join(lines), encoding="ascii")
    except OSError as error:
        message = f"cannot write trace {path}: {(error.strerror or 'unknown error').lower()}"
        raise ConfigError(message) from None


def _arrival(number: int, request: Request) -> Arrival:
    return Arrival(
        t=request.arrival,
        request=number,
        prompt=request.num_prompt,
        max_tokens=request.max_tokens,
        tenant=request.tenant,
        queue_timeout=request.queue_timeout,
        time_to_first_token=request.time_to_first_token,
        time_limit=request.time_limit,
        priority=request.priority,
        blocks=request.blocks.astype(">u8").tobytes().hex(),
        cache_read=request.cache_read,
        cache_write=request.cache_write,
    )
