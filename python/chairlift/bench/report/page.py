"""The page: answer, table, figures, how it was measured, and the data."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any, Final

from chairlift.api.figures import format_value
from chairlift.bench.medians import medians
from chairlift.bench.policies import SCHEMA
from chairlift.bench.report.answer import is_modelled
from chairlift.bench.report.figures import SERVER, TITLES, Figure, Run, figures_of
from chairlift.bench.report.method import DEFINITIONS, Method
from chairlift.timeline.document import render_document
from chairlift.timeline.svg import style_of, svg_of

MAX_BYTES: Final = 300 * 1024
"""Size of a report at most."""

_MAX_STEPS: Final = (400, 200, 100, 50, 25)
"""Steps of the timelines: fewer where the page would be too large."""

_COLUMNS: Final = {
    "tokens/s": ("tokens_per_s", max),
    "requests/s": ("requests_per_s", max),
    "slot use": ("slot_utilization", max),
    "KV waste": ("kv_waste", min),
    "TTFT p50": ("ttft_p50_s", min),
    "TTFT p99": ("ttft_p99_s", min),
    "TPOT p50": ("tpot_p50_s", min),
    "ITL p50": ("itl_p50_s", min),
    "ITL p99": ("itl_p99_s", min),
    "latency p50": ("latency_p50_s", min),
    "goodput/s": ("goodput_per_s", max),
}
"""Figures of the table, and which of two is better at one rate."""


def render(
    runs: Sequence[Run],
    *,
    title: str,
    sentences: Sequence[str],
    command: str,
    method: Method,
    bounds: Sequence[tuple[str, float]] = (),
) -> str:
    """Return the report as one HTML document.

    Args:
        runs: Finished runs, at least one.
        title: The work in one line.
        sentences: The answer first.
        command: That makes the report again.
        method: How the runs came about.
        bounds: Names of figures and their bounds in seconds.
    """
    page = ""
    for max_steps in _MAX_STEPS:
        figures = list(figures_of(runs, bounds, max_steps=max_steps))
        body = "\n".join(
            [
                f"<h1>{escape(sentences[0])}</h1>",
                *(f"<p>{escape(sentence)}</p>" for sentence in sentences[1:]),
                f'<p class="quiet-text">{escape(title)}</p>',
                f"<h2>{_table_title(runs)}</h2>",
                _scroll("Figures by run", _lines(medians(runs))),
                *(_figure(figure) for figure in figures),
                *_how(runs, method, command),
            ]
        )
        # The medians alone are enough where all runs are too many: the file of runs has those.
        for shown in (runs, medians(runs)):
            page = _document(title, body, _data(runs[0], shown))
            if len(page.encode()) <= MAX_BYTES:
                return page
    return page


def _table_title(runs: Sequence[Run]) -> str:
    return "The policies" if runs[0]["policy"] != SERVER else "The server"


def _document(title: str, body: str, data: object) -> str:
    style, script = (
        files(__package__).joinpath(name).read_text(encoding="utf-8")
        for name in ("report.css", "report.js")
    )
    inner = [style_of(animated=False)]
    return render_document(title, body, style=style, script=script, data=data, inner_styles=inner)


def _data(first: Run, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    slim = [{k: v for k, v in run.items() if k not in {"timeline", "environment"}} for run in runs]
    return {"schema": SCHEMA, "environment": first.get("environment"), "runs": slim}


def _scroll(name: str, content: str) -> str:
    """Return content that scrolls by itself where it is wider than the screen."""
    return (
        f'<div class="scroll" tabindex="0" role="group" aria-label="{escape(name)}">{content}</div>'
    )


def _figure(figure: Figure) -> str:
    table = _table(figure.headings, [[escape(cell) for cell in row] for row in figure.rows])
    about = f"<p>{escape(figure.about)}</p>" if figure.about else ""
    return (
        f"<h2>{escape(figure.title)}</h2>{about}<figure>"
        + _scroll(figure.title, svg_of(figure.drawing))
        + "</figure><details><summary>show as table</summary>"
        + _scroll(f"{figure.title}, table", table)
        + "</details>"
    )


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table; cells are markup."""
    head = "".join(f'<th scope="col">{escape(heading)}</th>' for heading in headings)
    body = "".join(
        f'<tr><th scope="row">{row[0]}</th>' + "".join(f"<td>{c}</td>" for c in row[1:]) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _lines(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of the runs; what all of them lack is no column."""
    columns = {name: known for name, known in _COLUMNS.items() if known[0] in lines[0]}
    leading = {
        "policy": [escape(TITLES[line["policy"]]) for line in lines],
        "rows": [str(line["rows"]) for line in lines if line["rows"] is not None],
        "offered": [escape(_rate(line)) for line in lines],
    }
    names = [name for name in leading if leading[name] and (name, lines[0]["policy"]) != _ONE]
    rows = []
    for place, line in enumerate(lines):
        rivals = [rival for rival in lines if rival["rate_per_s"] == line["rate_per_s"]]
        cells = [leading[name][place] for name in names]
        for key, better in columns.values():
            cell = escape(format_value(key, line[key]))
            if key == "tokens_per_s" and line["num_repeats"] > 1:
                cell += f" ({line['tokens_per_s_min']:,.0f} to {line['tokens_per_s_max']:,.0f})"
            # One row is always in use, which is no merit.
            is_best = key != "slot_utilization" and line[key] == better(r[key] for r in rivals)
            cells.append(f"<b>{cell}</b>" if is_best and len(rivals) > 1 else cell)
        rows.append(cells)
    return _table((*names, *columns), rows)


_ONE: Final = ("policy", SERVER)
"""A column that says nothing: how a server batches is not known."""


def _rate(line: Mapping[str, Any]) -> str:
    rate = line["rate_per_s"]
    if line.get("concurrency"):
        return f"{line['concurrency']} at a time"
    return "own times" if rate is None else "at once" if rate == "max" else f"{rate:g}/s"


def _how(runs: Sequence[Run], method: Method, command: str) -> Iterator[str]:
    yield f"<h2>How it was {'modelled' if is_modelled(runs) else 'measured'}</h2>"
    yield f"<pre>{escape(command)}</pre>"
    yield f"<p>{escape(method.about)}</p>"
    yield _list(method.facts.items())
    yield "<h2>Definitions</h2><p>Those of vllm bench serve.</p>"
    yield _list((name, meaning) for name, key, meaning in DEFINITIONS if key in runs[0])
    yield '<p><button id="download" hidden>Download the data (JSON)</button></p>'


def _list(items: Any) -> str:  # noqa: ANN401, pairs of anything that has a text
    return (
        "<dl>"
        + "".join(f"<dt>{escape(str(k))}</dt><dd>{escape(str(v))}</dd>" for k, v in items)
        + "</dl>"
    )
