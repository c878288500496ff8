"""The view of `chairlift top`: gauges, tenants, and the request in each row, step by step."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.styled import Styled
from rich.table import Table
from rich.text import Text

from chairlift.cli.picture import terminal_rows
from chairlift.cli.top_state import Rates, RunningRequest, TopState
from chairlift.cli.top_tenants import tenant_lines, tenants_as_json
from chairlift.cli.top_text import fitted, shown
from chairlift.cli.watched_steps import WatchedTimeline
from chairlift.timeline.colours import colour_of
from chairlift.timeline.values import PARTS

if TYPE_CHECKING:
    from chairlift.v1 import server_pb2 as pb

_LABEL: Final = 24
_HEAD: Final = 11
"""Lines above the tenants, and those below the rows."""
_ROWS_FIRST: Final = 8
"""Rows that are drawn before tenants get lines."""
_CURVE: Final = "▁▂▃▄▅▆▇█"
_PART_COLOURS: Final = dict(
    zip(PARTS, ("#4e79a7", "#3aa6a0", "#59a14f", "#d4a72c", "#b07aa1"), strict=True)
)
_STATES: Final = {1: "starting", 2: "serving", 3: "draining", 4: "dead"}
_QUIET: Final = "bright_black"


class TopView:
    """Renders a `TopState`, any number of times."""

    def __init__(self, state: TopState) -> None:
        self._state = state

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render at most the height of the terminal; stale figures are dim."""
        parts = Group(*self._parts(options.max_width, options.height or console.height))
        yield self._title(options.max_width)
        yield Styled(parts, "dim") if self._state.is_stale else parts

    def _parts(self, width: int, height: int) -> Iterator[RenderableType]:
        state = self._state
        if state.load is None or state.info is None:
            return
        rates = state.rates()
        size = max(10, min(60, width - 60))
        gauges = Table.grid(padding=(0, 2, 0, 0))
        gauges.add_column(width=6, style="bold")
        gauges.add_column(width=size)
        gauges.add_column(no_wrap=True, overflow="ellipsis")
        for name, gauge, words in self._gauges(rates, size):
            gauges.add_row(name, gauge, fitted(words, width - size - 10))
        yield gauges
        yield _key(rates, width)
        yield Text()
        num_rows = min(state.info.max_num_seqs, _ROWS_FIRST)
        tenants = list(tenant_lines(state, width, height - _HEAD - num_rows - 1))
        yield from tenants
        yield from self._rows(width, max(1, height - _HEAD - len(tenants) - 1))

    def _title(self, width: int) -> Text:
        state = self._state
        word = state_name(state)
        where = f"{state.model_name} at {state.target}" if state.model_name else state.target
        parts = [("chairlift top", "bold"), (word, "green" if word == "serving" else "yellow")]
        if state.is_stale:
            parts.append((f"figures are {state.age_s:.0f} s old", "yellow"))
        parts.append((where, ""))
        if state.error:
            parts.append((state.error, ""))
        elif state.info is not None:
            parts += [(f"{state.info.batching} batching", ""), ("q quits", _QUIET)]
        text = Text()
        for words, style in parts:
            if text and text.cell_len + len(words) + 2 > width:
                continue
            text.append("  " if text else "").append(words, style=style)
        text.truncate(width, overflow="ellipsis")
        return text.append("\n")

    def _gauges(self, rates: Rates, width: int) -> Iterator[tuple[str, Text, list[str]]]:
        """Yield name, bar and words of each line, the most important words first."""
        load, info = self._state.load, self._state.info
        assert load is not None
        assert info is not None
        limit, used = info.max_num_seqs, load.num_blocks - load.num_free_blocks
        free_cached = max(0, load.num_cached_blocks - used)
        held = [("#4e79a7", load.num_running), ("#d4a72c", load.num_rows_held - load.num_running)]
        words = [f"{load.num_running} of {limit} running", f"{load.num_waiting:,} waiting"]
        if load.num_waiting:
            causes = ", ".join(f"{count:,} {cause}" for cause, count in waiting_by_cause(load))
            words += [f"for {causes}"] if causes else []
            words.append(f"{load.num_waiting_tokens:,} of their tokens")
        yield "rows", _bar(held, limit, width), words
        slots = used * info.block_size
        waste = (slots - load.num_kv_tokens) / slots if slots else 0.0
        blocks = [("#4e79a7", used), ("#3aa6a0", free_cached)]
        share = used / max(1, load.num_blocks)
        words = [f"{share:.0%} of {load.num_blocks:,} blocks", f"{load.num_cached_blocks:,} cached"]
        words.append(f"{waste:.0%} unwritten")
        if load.HasField("block_map"):
            words.append(f"{sum(load.block_map.shared):,} shared")
        yield "KV", _bar(blocks, load.num_blocks, width), words
        hits = load.num_prefix_hits / max(1, load.num_prefix_queries)
        words = [f"{hits:.0%} of {load.num_prefix_queries:,} blocks found"]
        words.append(f"{load.num_preemptions:,} preemptions")
        yield "prefix", _bar([("#3aa6a0", hits)], 1.0, width), words
        steps = list(self._state.steps)[-width:]
        curve = _curve([step.num_output_tokens for step in steps])
        words = [
            f"{rates.tokens_per_s:,.0f} tokens/s",
            f"{rates.prompt_tokens_per_s:,.0f} of prompts/s",
        ]
        yield "tokens", Text(curve, style="#4e79a7"), words
        parts = [(_PART_COLOURS[part], seconds) for part, seconds in rates.parts_s.items()]
        words = [f"{rates.step_s * 1e3:.2f} ms", f"{rates.steps_per_s:,.0f} steps/s"]
        curve = _curve([step.duration_s for step in steps])
        yield "step", Text(curve, style=_PART_COLOURS["forward"]), words
        words = []
        if gaps := self._state.inter_token():
            words = [f"ITL {shown(gaps.median_s)}", f"p99 {shown(gaps.p99_s)}", "last minute"]
        yield "", _bar(parts, sum(rates.parts_s.values()), width), words

    def _rows(self, width: int, limit: int) -> Iterator[Text]:
        """Yield the picture of the last steps; the request in each row is to its right."""
        state, info = self._state, self._state.info
        assert info is not None
        running_requests = state.running_requests()
        num_rows = min(info.max_num_seqs, limit)
        label = len(f"row {info.max_num_seqs - 1} ")
        of_name = max(_LABEL, width * 3 // 10)
        room = max(10, width - of_name - label - 1)
        steps = list(state.steps)[-room:]
        watched = WatchedTimeline("", info.max_num_seqs)
        for step in steps:
            watched.add_rows(step.rows, step.preempted)
        for handle in watched.handles:
            watched.name_request(handle, number=1 + state.number(handle))
        picture = watched.timeline()
        of_row = {request.row: (handle, request) for handle, request in running_requests.items()}
        for row, line in enumerate(terminal_rows(picture, num_rows, 1, numbered=False)):
            line.pad_right(room + label + 1 - line.cell_len)
            if row in of_row:
                handle, request = of_row[row]
                is_seen = handle in watched.handles
                colour = colour_of(1 + state.number(handle)) if is_seen else _QUIET
                line.append(_name(request, of_name), style=colour)
            yield line
        if info.max_num_seqs > num_rows:
            yield Text(f"{info.max_num_seqs - num_rows} more rows", style=_QUIET)


def state_name(state: TopState) -> str:
    """Return the state in one word."""
    if state.error or state.info is None:
        return "reconnecting"
    return _STATES.get(state.info.state, "unknown")


def as_json(state: TopState) -> dict[str, Any]:
    """Return the same as JSON values."""
    found: dict[str, Any] = {"target": state.target, "state": state_name(state)}
    load, info = state.load, state.info
    if state.error:
        return found | {"error": state.error, "age_s": state.age_s}
    if load is None or info is None:
        return found
    rates, gaps = state.rates(), state.inter_token()
    return found | {
        "model": state.model_name,
        "batching": info.batching,
        "max_num_seqs": info.max_num_seqs,
        **{f.name: getattr(load, f.name) for f in load.DESCRIPTOR.fields if f.message_type is None},
        "waiting_by_cause": dict(waiting_by_cause(load)),
        **{f"num_{use}_blocks": sum(getattr(load.block_map, use)) for use in ("own", "shared")},
        "tenants": tenants_as_json(state),
        "itl_p50_s": gaps.median_s if gaps else None,
        "itl_p99_s": gaps.p99_s if gaps else None,
        "tokens_per_s": rates.tokens_per_s,
        "prompt_tokens_per_s": rates.prompt_tokens_per_s,
        "steps_per_s": rates.steps_per_s,
        "step_s": rates.step_s,
        "step_parts_s": rates.parts_s,
        "rows": [
            {
                "row": request.row,
                "request_id": request.request_id,
                "tokens": request.num_tokens,
                "work": "prefill" if request.in_prefill else "decode",
            }
            for request in state.running_requests().values()
        ],
    }


def waiting_by_cause(load: "pb.Load") -> list[tuple[str, int]]:
    """Return the causes for which requests wait, and how many do."""
    from chairlift.v1 import generation_pb2

    name = generation_pb2.WaitCause.Name
    return [
        (name(entry.cause).removeprefix("WAIT_CAUSE_").lower(), entry.count)
        for entry in load.waiting_by_cause
    ]


def _name(request: RunningRequest, width: int) -> str:
    """Return what a request is called and does, in so many columns."""
    if not request.request_id:
        return "of another tenant"
    work = "prompt" if request.in_prefill else f"{request.num_tokens}"
    name = request.request_id
    limit = width - len(work) - 1
    return f"{name if len(name) <= limit else name[: limit - 1] + '…'} {work}"


def _bar(parts: Sequence[tuple[str, float]], whole: float, width: int) -> Text:
    """Return a bar of shares of a whole, on a background of dots."""
    bar = Text()
    total = 0.0
    for colour, part in parts:
        total += part
        end = round(width * min(1.0, total / whole)) if whole else 0
        # A share above 0 is visible.
        end = max(end, bar.cell_len + (part > 0))
        bar.append("█" * (min(end, width) - bar.cell_len), style=colour)
    bar.append("·" * (width - bar.cell_len), style=_QUIET)
    return bar


def _curve(values: Sequence[float]) -> str:
    top = max(values, default=0.0)
    return "".join(_CURVE[min(7, int(8 * v / top))] if top else _CURVE[0] for v in values)


def _key(rates: Rates, width: int) -> Text:
    """Return the parts of a step; a short line omits the smallest."""
    total = sum(rates.parts_s.values())
    shares = {part: seconds / total if total else 0.0 for part, seconds in rates.parts_s.items()}
    words = {part: f"{part} {share:.0%}" for part, share in shares.items()}
    while len(" " * 8 + "  ".join(words.values())) > width and len(words) > 1:
        words.pop(min(words, key=lambda part: shares[part]))
    texts = [Text(word, style=_PART_COLOURS[part]) for part, word in words.items()]
    return Text(" " * 8).append_text(Text("  ").join(texts))
