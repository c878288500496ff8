"""The tenants in `chairlift top`: tokens, time to first token, ends and errors."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from rich.text import Text

from chairlift.cli.top_state import TopState
from chairlift.cli.top_text import fitted, shown

if TYPE_CHECKING:
    from chairlift.v1 import server_pb2 as pb

_QUIET: Final = "bright_black"
_WIDE: Final = 70
"""Least columns for the full table."""
_MAX_TENANTS: Final = 8
"""Most tenants that are shown; the others are counted."""
_FIGURE: Final = 10
"""Columns of a figure."""
_NUM_FIGURES: Final = 4
"""Figures of a line in the full table."""
_NAMELESS: Final = "all callers"


def tenant_lines(state: TopState, width: int, max_lines: int) -> Iterator[Text]:
    """Yield a heading, the busiest tenants and an empty line; nothing if they do not fit.

    Args:
        state: A connected state.
        width: Columns.
        max_lines: Most lines.
    """
    assert state.load is not None
    tenants = sorted(state.load.tenants, key=lambda tenant: (-tenant.num_started, tenant.tenant))
    num_shown = min(len(tenants), _MAX_TENANTS, max_lines - 2)
    if num_shown < 1:
        return
    is_wide = width >= _WIDE
    heads = ["tokens/s", "TTFT", "p99", *(["ended"] if is_wide else []), "errors"]
    name = f"{num_shown} of {len(tenants)}" if num_shown < len(tenants) else "last minute"
    yield _line(name, heads, width, style=_QUIET)
    for tenant in tenants[:num_shown]:
        errors = {entry.reason: entry.count for entry in tenant.reasons if entry.is_error}
        yield _line(
            tenant.tenant or _NAMELESS,
            [
                f"{state.tokens_per_s(tenant.tenant):,.0f}",
                *_first_token(tenant),
                *([f"{sum(e.count for e in tenant.reasons):,}"] if is_wide else []),
                _errors(errors, width),
            ],
            width,
            style="",
        )
    yield Text()


def tenants_as_json(state: TopState) -> list[dict[str, Any]]:
    """Return the same as JSON values; times are in seconds, None if no request started."""
    assert state.load is not None
    return [
        {
            "tenant": tenant.tenant,
            "tokens_per_s": state.tokens_per_s(tenant.tenant),
            "num_started": tenant.num_started,
            "ttft_p50_s": _seconds(tenant, "time_to_first_token_p50"),
            "ttft_p99_s": _seconds(tenant, "time_to_first_token_p99"),
            "ended": {e.reason: e.count for e in tenant.reasons if not e.is_error},
            "errors": {e.reason: e.count for e in tenant.reasons if e.is_error},
        }
        for tenant in state.load.tenants
    ]


def _line(name: str, cells: list[str], width: int, style: str) -> Text:
    """Return a line: a name, figures aligned to the right of their columns, and the errors."""
    *figures, errors = cells
    size = _name_width(width, len(figures))
    text = Text(f"{name if len(name) <= size else name[: size - 1] + '…':<{size}}", style=style)
    text.append("".join(f"{figure:>{_FIGURE}}" for figure in figures))
    text.append("  " + errors, style=_QUIET if errors in ("0", "errors") else "red")
    text.truncate(width, overflow="ellipsis")
    return text


def _errors(errors: dict[str, int], width: int) -> str:
    total = sum(errors.values())
    if not total or width < _WIDE:
        return f"{total:,}"
    by_count = sorted(errors.items(), key=lambda item: (-item[1], item[0]))
    room = width - _name_width(width, _NUM_FIGURES) - _FIGURE * _NUM_FIGURES - 2
    return fitted([f"{count:,} {reason}" for reason, count in by_count], room)


def _first_token(tenant: "pb.TenantActivity") -> list[str]:
    times = (_seconds(tenant, f"time_to_first_token_p{percent}") for percent in (50, 99))
    return ["-" if time_s is None else shown(time_s) for time_s in times]


def _seconds(tenant: "pb.TenantActivity", name: str) -> float | None:
    if not tenant.HasField(name):
        return None
    return float(getattr(tenant, name).ToNanoseconds() * 1e-9)


def _name_width(width: int, num_figures: int) -> int:
    """Return the columns of a name: what figures and a reason such as QUOTA_EXCEEDED leave."""
    return min(24, max(11, width - _FIGURE * num_figures - 18))
