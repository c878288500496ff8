"""The page: answer, table, figures, how it was measured, and the data."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any, Final

from chairlift.bench.medians import medians
from chairlift.bench.policies import SCHEMA
from chairlift.cli.bench.report.figures import TITLES, Figure, Run, figures_of
from chairlift.cli.report import format_value
from chairlift.timeline.document import render_document
from chairlift.timeline.svg import style_of, svg_of

MAX_BYTES: Final = 300 * 1024
"""Size of a report at most."""

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

_DEFINITIONS: Final = (
    ("TTFT", "from the arrival of a request to its first token"),
    (
        "ITL",
        "gap between two events with tokens of an answer; an event of checked drafts has several",
    ),
    ("TPOT", "(latency - TTFT) / (tokens - 1), of answers of two tokens or more"),
    ("latency", "from the arrival to the end of the answer; vllm bench serve calls it E2EL"),
    ("slot use", "rows that computed something, over all rows, averaged over the steps"),
    ("KV waste", "allocated KV slots that are not written yet, averaged over the steps"),
    ("goodput", "requests per second that keep every bound of --slo"),
)


def render(
    runs: Sequence[Run],
    *,
    title: str,
    sentences: Sequence[str],
    command: str,
    bounds: Sequence[tuple[str, float]] = (),
) -> str:
    """Return the report as one HTML document.

    Args:
        runs: Finished runs, at least one.
        title: The work in one line.
        sentences: The answer first.
        command: That makes the report again.
        bounds: Names of figures and their bounds in seconds.
    """
    figures = list(figures_of(runs, bounds))
    body = "\n".join(
        [
            f"<h1>{escape(sentences[0])}</h1>",
            *(f"<p>{escape(sentence)}</p>" for sentence in sentences[1:]),
            f'<p class="quiet-text">{escape(title)}</p>',
            "<h2>The policies</h2>",
            _scroll("Figures by policy", _policies(medians(runs))),
            *(_figure(figure) for figure in figures),
            *_method(runs, command),
        ]
    )
    page = _document(title, body, _data(runs))
    if len(page.encode()) > MAX_BYTES:
        # The file of runs has all of them.
        page = _document(title, body, _data(medians(runs)))
    return page


def _document(title: str, body: str, data: object) -> str:
    style, script = (
        files(__package__).joinpath(name).read_text(encoding="utf-8")
        for name in ("report.css", "report.js")
    )
    inner = [style_of(animated=False)]
    return render_document(title, body, style=style, script=script, data=data, inner_styles=inner)


def _data(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    slim = [{k: v for k, v in run.items() if k not in {"timeline", "environment"}} for run in runs]
    return {"schema": SCHEMA, "environment": runs[0].get("environment"), "runs": slim}


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


def _policies(lines: Sequence[Mapping[str, Any]]) -> str:
    columns = {name: known for name, known in _COLUMNS.items() if known[0] in lines[0]}
    rows = []
    for line in lines:
        rivals = [rival for rival in lines if rival["rate_per_s"] == line["rate_per_s"]]
        cells = [escape(TITLES[line["policy"]]), str(line["rows"]), escape(_rate(line))]
        for key, better in columns.values():
            cell = escape(format_value(key, line[key]))
            if key == "tokens_per_s" and line["num_repeats"] > 1:
                cell += f" ({line['tokens_per_s_min']:,.0f} to {line['tokens_per_s_max']:,.0f})"
            # One row is always in use, which is no merit.
            is_best = key != "slot_utilization" and line[key] == better(r[key] for r in rivals)
            cells.append(f"<b>{cell}</b>" if is_best and len(rivals) > 1 else cell)
        rows.append(cells)
    return _table(("policy", "rows", "offered", *columns), rows)


def _rate(line: Mapping[str, Any]) -> str:
    rate = line["rate_per_s"]
    if line.get("concurrency"):
        return f"{line['concurrency']} at a time"
    return "own times" if rate is None else "at once" if rate == "max" else f"{rate:g}/s"


def _method(runs: Sequence[Run], command: str) -> Iterator[str]:
    first = runs[0]
    facts = {**first["environment"], **{f"work: {k}": v for k, v in first["work"].items()}}
    facts |= {f"lengths: {k}": f"{v:.4g}" for k, v in first["lengths"].items()}
    others = max(run["other_cores"] or 0.0 for run in runs)
    facts["cores that other work used, at most"] = f"{others:.2f}"
    yield "<h2>How it was measured</h2>"
    yield f"<pre>{escape(command)}</pre>"
    yield (
        "<p>Every policy gets the same token ids and the same lengths of answers, greedy, "
        "end-of-sequence ignored. Policies take turns within a repetition.</p>"
    )
    yield _list(facts.items())
    yield "<h2>Definitions</h2><p>Those of vllm bench serve.</p>"
    yield _list(_DEFINITIONS)
    yield '<p><button id="download" hidden>Download the data (JSON)</button></p>'


def _list(items: Any) -> str:  # noqa: ANN401, pairs of anything that has a text
    return (
        "<dl>"
        + "".join(f"<dt>{escape(str(k))}</dt><dd>{escape(str(v))}</dd>" for k, v in items)
        + "</dl>"
    )
