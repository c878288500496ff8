"""A request, and a change of one, with every default filled in and every value checked."""

from dataclasses import dataclass, field

from chairlift import _core
from chairlift.api.pooled import Pooled
from chairlift.api.sampler_options import SamplingParameters
from chairlift.api.types import Output, PrefixCache
from chairlift.engine.lora.types import AdapterUse
from chairlift.engine.prepare.block_export import BlockExport
from chairlift.engine.prepare.block_source import BlockSource


@dataclass(frozen=True, slots=True)
class StopConditions:
    """When an answer ends, complete."""

    max_tokens: int
    min_tokens: int
    stop: tuple[str, ...] = field(repr=False)
    stop_token_ids: tuple[int, ...] = field(repr=False)
    include_stop: bool
    ignore_eos: bool
    stop_regex: _core.StopRegex | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Times:
    """When a request runs, complete; from its arrival on, None is no limit."""

    priority: int
    queue_timeout_s: float | None
    time_to_first_token_s: float | None
    time_limit_s: float | None
    turn_delay_s: float = 0.0

    @property
    def start_within_s(self) -> float | None:
        """The longest that the request may wait."""
        limits = (self.queue_timeout_s, self.time_to_first_token_s, self.time_limit_s)
        return min((limit for limit in limits if limit is not None), default=None)


@dataclass(frozen=True, slots=True)
class PreparedChange:
    """A change with every default filled in and every value checked."""

    stopping: StopConditions | None
    times: Times | None
    credit: int
    credit_is_final: bool
    paused: bool | None


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request with every default filled in and every value checked."""

    prompt: list[int] = field(repr=False)
    sampling: SamplingParameters
    max_tokens: int
    min_tokens: int
    stop: tuple[str, ...] = field(repr=False)
    stop_token_ids: tuple[int, ...] = field(repr=False)
    include_stop: bool
    output: Output
    times: Times
    prefix_cache: PrefixCache = field(repr=False)
    tenant: str
    credit: int | None = None
    """None is no limit."""
    num_answers: int = 1
    adapter: AdapterUse | None = None
    pooled: Pooled | None = field(default=None, repr=False)
    """Where the result goes, of a request that ends with its prompt."""
    grammar: _core.Grammar | None = None
    """The grammar of its constraint."""
    end_ids: tuple[int, ...] = ()
    """End the answer, whatever `min_tokens` says and an update changes: a constraint allows them
    where it may end."""
    ends_early: bool = True
    """An end is drawn where a constraint may end, and not only where it must."""
    stop_regex: _core.StopRegex | None = field(default=None, repr=False)
    export: BlockExport | None = field(default=None, repr=False)
    """Takes the KV blocks of the prompt, for another server."""
    source: BlockSource | None = field(default=None, repr=False)
    """Has the KV blocks of the prompt; None leaves the choice of a server to this one."""
    parser: _core.AnswerParser | None = field(default=None, repr=False)
    """Finds reasoning and function calls in the answer; None leaves it text."""

    @property
    def stops_at_text(self) -> bool:
        """Whether a text may end the answer."""
        return bool(self.stop) or self.stop_regex is not None
