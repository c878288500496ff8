"""The trace file: one JSON object per line, a header and then events.

    {"event":"header","version":1,"model":"demo","batching":"continuous", ...}
    {"event":"arrival","t":0,"request":1,"prompt":40,"max_tokens":64,"blocks":"6f0c1d.."}
    {"event":"step","t":81003,"duration":4120665,"rows":1,"tokens":40, ...}
    {"event":"end","t":198264001,"request":1,"tokens":64,"reason":"length", ...}

Times are nanoseconds after the start of the recording. There is no text and no token id: `blocks`
names each full block of a prompt (16 hexadecimal digits) by a hash with a secret key, chained from
the first block on, so that equal names mean equal beginnings and nothing else.
"""

import json
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from chairlift.api.config import Batching
from chairlift.api.errors import ConfigError

VERSION = 1

HASH_BYTES = 8
"""Length of a block's name."""

# The core counts in 64 bits: a time and a delay must fit together.
Count = Annotated[int, Field(ge=0, le=2**62)]
Positive = Annotated[int, Field(ge=1, le=2**62)]
# A replay holds an id for each token of a prompt; no model reads so many.
PromptLength = Annotated[int, Field(ge=1, le=2**24)]
Blocks = Annotated[str, Field(pattern=rf"^([0-9a-f]{{{2 * HASH_BYTES}}})*$")]


class Line(BaseModel):
    """A line of the file."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class StepTime(Line):
    """Seconds of a step as a linear model: decode is bound by memory, prefill by arithmetic."""

    fixed_s: Annotated[float, Field(ge=0)]
    """Time of every step: weights are read, kernels are launched."""
    per_token_s: Annotated[float, Field(ge=0)]
    """Time of each token that is computed."""
    per_context_token_s: Annotated[float, Field(ge=0)]
    """Time of each token whose keys and values are read, summed over the rows."""

    def duration(self, num_tokens: int, num_context: int) -> int:
        """Return the nanoseconds of a step; at least 1, so that the clock moves."""
        tokens_s = self.per_token_s * num_tokens + self.per_context_token_s * num_context
        return max(1, round((self.fixed_s + tokens_s) * 1e9))


class Header(Line):
    """The first line: the settings of the scheduler."""

    event: Literal["header"] = "header"
    version: int = VERSION
    model: str
    batching: Batching
    batch_size: Positive | None = None
    """Requests of a full static or dynamic batch; None is max_num_seqs."""
    batch_window_s: Annotated[float, Field(ge=0)]
    batch_timeout_s: Annotated[float, Field(ge=0)]
    max_num_seqs: Positive
    max_num_batched_tokens: Positive
    step_budget_s: Annotated[float, Field(gt=0)] | None = None
    max_model_len: Positive
    max_queued_requests: Positive
    block_size: Positive
    """Also the tokens that one name in `blocks` stands for."""
    num_kv_blocks: Positive
    """The null block included."""
    kv_bytes_per_block: Positive
    kv_windows: list[Positive | None] = [None]
    """One entry per KV group."""
    prefix_cache: bool
    state_snapshots: Count | None = None
    """Snapshots of a hybrid's states."""
    step_time: StepTime | None = None
    """Time of a step, in traces without steps."""


class Arrival(Line):
    """A request was queued."""

    event: Literal["arrival"] = "arrival"
    t: Count
    request: Positive
    """Counts from 1; names the request in later lines."""
    prompt: PromptLength
    """Tokens."""
    max_tokens: Positive
    tenant: Count = 0
    """Counts tenants in the order in which they appear."""
    queue_timeout: Positive | None = None
    """Nanoseconds after arrival."""
    time_to_first_token: Positive | None = None
    """Nanoseconds after arrival."""
    time_limit: Positive | None = None
    """Nanoseconds after arrival."""
    priority: Annotated[int, Field(ge=-(2**31), lt=2**31)] = 0
    blocks: Blocks = ""
    """Names of the prompt's full blocks, from the first on; a block without a name is unique."""
    cache_read: bool = True
    cache_write: bool = True


class Cancel(Line):
    """The client cancelled a request."""

    event: Literal["cancel"] = "cancel"
    t: Count
    request: Positive
    tokens: Count = 0
    """Tokens that it had received by then."""


class Flush(Line):
    """The input ended: waiting requests may run in a partial batch."""

    event: Literal["flush"] = "flush"
    t: Count


class End(Line):
    """A request ended."""

    event: Literal["end"] = "end"
    t: Count | None = None
    """None in traces that are drawn, not recorded."""
    request: Positive
    tokens: Count
    """Output tokens."""
    reason: str
    """`stop`, `length`, `cancelled`, `time_limit`, or a `Reason` with which it failed."""
    first_token: Count | None = None
    """Time of the first output token."""
    blocks: Blocks = ""
    """Names of the full blocks after the prompt's."""


class Restart(Line):
    """The engine was lost and restarted; live requests have ended, the cache is empty."""

    event: Literal["restart"] = "restart"
    t: Count


class Step(Line):
    """A step ended."""

    event: Literal["step"] = "step"
    t: Count
    """Its start."""
    duration: Positive
    rows: Positive
    tokens: Positive
    """Computed, prompts and decodes alike."""
    prefill: Count
    """Tokens known before the step; the others are the last sampled tokens of their rows."""
    context: Positive
    """Tokens of the rows after the step: the keys and values that attention read."""
    kv_blocks: Count
    """In use after the step."""
    kv_tokens: Count
    """Written in them."""
    itl: list[tuple[Count, Positive]] = []
    """Gaps between tokens of one answer that this step closed: nanoseconds, and how many."""
    failed: bool = False
    waiting: Count = 0
    """Requests in the queue after the step."""
    changes: list[Annotated[list[Count], Field(min_length=1, max_length=6)]] = []
    """Rows that did not do the same as in the step before: the row, its request, what it did
    (0 prefill, 1 decode, 2 verify), its tokens, accepted drafts, and 1 if it got its last token.
    The row alone: it was idle."""
    preempted: list[Positive] = []
    """Requests that lost a row before the step."""


Event = Arrival | Cancel | Flush | End | Restart | Step

_EVENT: TypeAdapter[Event] = TypeAdapter(Annotated[Event, Field(discriminator="event")])
_OBJECT: TypeAdapter[dict[str, object]] = TypeAdapter(dict[str, object])


def read_lines(path: Path) -> tuple[Header, list[Event]]:
    """Read a trace file; event `i` is line `i + 2`.

    Raises:
        ConfigError: The file cannot be read, is malformed or of another version; the message is one
            line and names the line.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        message = f"cannot read trace {path}: {(error.strerror or 'unknown error').lower()}"
        raise ConfigError(message) from None
    if lines.pop():
        message = f"{path}:{len(lines) + 1}: the line is cut off"
        raise ConfigError(message)
    if not lines:
        message = f"{path}:1: expected the header of a trace, got an empty file"
        raise ConfigError(message)
    header = _header(path, lines[0])
    events = []
    for number, line in enumerate(lines[1:], start=2):
        try:
            events.append(_EVENT.validate_json(line))
        except ValidationError as error:
            raise _damaged(path, number, error) from None
    return header, events


def _header(path: Path, line: bytes) -> Header:
    try:
        fields = _OBJECT.validate_json(line)
        version = fields.get("version")
        if fields.get("event") != "header":
            message = f"{path}:1: expected the header of a trace"
            raise ConfigError(message)
        if version != VERSION:
            message = f"{path}:1: expected version {VERSION}, got {version!r}"
            raise ConfigError(message)
        return Header.model_validate_json(line)
    except ValidationError as error:
        raise _damaged(path, 1, error) from None


def _damaged(path: Path, number: int, error: ValidationError) -> ConfigError:
    first = error.errors(include_url=False)[0]
    field = ".".join(str(part) for part in first["loc"])
    return ConfigError(f"{path}:{number}: {f'{field}: ' if field else ''}{first['msg'].lower()}")


def dump(line: Header | Event) -> str:
    """Return a line of the file, its end included; default values are left out."""
    fields = line.model_dump(mode="json", exclude_defaults=True)
    version = {"version": line.version} if isinstance(line, Header) else {}
    return json.dumps({"event": line.event, **version, **fields}, separators=(",", ":")) + "\n"
