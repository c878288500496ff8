"""The report of `chairlift bench policies`: one page of HTML that is complete, safe and small."""

import base64
import hashlib
import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from chairlift.api.errors import ConfigError
from chairlift.bench.policies import SCHEMA
from chairlift.bench.report.axes import linear, logarithmic
from chairlift.bench.report.figures import figures_of
from chairlift.bench.report.method import policies_method
from chairlift.bench.report.page import MAX_BYTES, render
from chairlift.bench.report.plots import check_plots, write_plots
from chairlift.timeline.cut import cut
from chairlift.timeline.lists import to_lists

from tests.cli.conftest import Run
from tests.timeline.steps import example

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&"


def run_of(policy: str, rate: float | str, rows: int = 4, repeat: int = 1) -> dict[str, Any]:
    times = {
        f"{name}_{what}_s": 0.01 * (2 + len(policy))
        for name in ("ttft", "tpot", "itl", "latency")
        for what in ("mean", "std", "p50", "p90", "p95", "p99")
    }
    return {
        "schema": SCHEMA,
        "kind": "run",
        "key": HOSTILE,
        "policy": policy,
        "rows": rows,
        "rate_per_s": rate,
        "repeat": repeat,
        "requests": 5,
        "tokens_per_s": 100.0 * rows + repeat + len(policy),
        "requests_per_s": 2.0,
        "slot_utilization": 0.5,
        "kv_waste": 0.03,
        **times,
        "goodput_per_s": 1.5,
        "mean_rows": 2.0,
        "other_cores": 0.1,
        "cores": 2,
        "concurrency": None,
        "work": {"source": HOSTILE, "seed": 0},
        "lengths": {"prompt_mean": 12.0},
        "environment": {
            "model": HOSTILE,
            "cores": 2,
            "active_weight_bytes": 10**8,
            "read_bytes_per_s": 2e10,
        },
        "step_curve": [[1, 9, 0.006], [4, 9, 0.009]],
        "kv": [[0.0, 30, 48], [0.5, 60, 64]],
        "num_steps": 7,
        "timeline": to_lists(example(policy)),
    }


@pytest.fixture(scope="module")
def page() -> str:
    runs = [
        run_of(policy, rate, rows, repeat)
        for repeat in (1, 2)
        for policy in ("none", "static", "dynamic", "unchunked", "continuous", "cached")
        for rate in (2.0, 4.0, "max")
        for rows in ((1,) if policy == "none" else (2, 4))
    ]
    return render(
        runs,
        title=f"title {HOSTILE}",
        sentences=[f"answer {HOSTILE}", "second"],
        command=f"chairlift bench policies {HOSTILE}",
        method=policies_method(runs),
        bounds=[("itl_p99_s", 0.1)],
    )


class Parsed(HTMLParser):
    """Elements with their attributes, the headings, and the text of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.raw: list[tuple[str, str]] = []
        self.headings: list[str] = []
        self._in = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._in = tag

    def handle_endtag(self, tag: str) -> None:
        self._in = ""

    def handle_data(self, data: str) -> None:
        if self._in in ("script", "style"):
            self.raw.append((self._in, data))
        if self._in in ("h1", "h2"):
            self.headings.append(data)

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.elements)


def test_the_answer_comes_first_and_each_figure_has_a_table(page: str) -> None:
    parsed = Parsed(page)
    assert parsed.headings[0].startswith("answer ")
    for title in (
        *("The policies", "Throughput", "The rows over time", "Throughput over the offered rate"),
        *("Time to the first token, 99th percentile", "Inter-token latency, 99th percentile"),
        *("Goodput", "The knee", "Batch sizes", "The time of a step"),
        *("KV memory, used and reserved", "How it was measured", "Definitions"),
    ):
        assert title in parsed.headings
    assert parsed.count("svg") == parsed.count("figure") == parsed.count("summary") > 8
    assert parsed.count("table") == 1 + parsed.count("figure")


def test_nothing_that_is_named_becomes_markup(page: str) -> None:
    parsed = Parsed(page)
    assert parsed.count("img") == 0
    assert parsed.count("script") == 2
    assert all(not name.startswith("on") for _, attrs in parsed.elements for name in attrs)
    assert all("style" not in attrs for _, attrs in parsed.elements)
    assert "alert(1)" in page


def test_the_page_loads_nothing_and_runs_its_own_script_alone(page: str) -> None:
    parsed = Parsed(page)
    for _, attrs in parsed.elements:
        for name in ("src", "href"):
            assert (attrs.get(name) or "data:").startswith("data:")
    assert set(re.findall(r"https?://[^\s\"']+", page)) <= {"http://www.w3.org/2000/svg"}
    (policy,) = (
        attrs["content"] or ""
        for name, attrs in parsed.elements
        if attrs.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy.startswith("default-src 'none'; ")
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    for tag in ("style", "script"):
        texts = {text for name, text in parsed.raw if name == tag and "alert" not in text}
        digests = [base64.b64encode(hashlib.sha256(t.encode()).digest()).decode() for t in texts]
        assert {*rules[f"{tag}-src"].split()} == {f"'sha256-{digest}'" for digest in digests}


def test_the_data_can_be_read_again(page: str) -> None:
    (data,) = (text for name, text in Parsed(page).raw if name == "script" and "alert" in text)
    assert "<" not in data
    found = json.loads(data)
    assert found["schema"] == SCHEMA
    assert len(found["runs"]) == 2 * 3 * (1 + 5 * 2)
    assert found["runs"][0]["key"] == HOSTILE


def test_figures_are_well_formed_and_a_line_stays_inside(page: str) -> None:
    figures = re.findall(r"<svg.*?</svg>", page, re.S)
    for figure in figures:
        root = ElementTree.fromstring(figure)
        _, _, width, height = map(float, root.attrib["viewBox"].split())
        assert root.findtext("{http://www.w3.org/2000/svg}title")
        for part in root.iter():
            for name, most in (("x", width), ("y", height), ("cx", width), ("cy", height)):
                assert 0 <= float(part.attrib.get(name, 0)) <= most


def test_policies_whose_first_steps_were_kept_are_drawn_to_the_same_time() -> None:
    runs = [run_of("static", "max"), run_of("continuous", "max")]
    runs[0]["num_steps"] = 9
    runs[0]["timeline"] = to_lists(cut(example("static"), 0.005))
    (rows,) = (figure for figure in figures_of(runs, []) if figure.name == "rows")
    assert [row[:2] for row in rows.rows] == [("static", "3"), ("continuous", "3")]
    assert rows.drawing.title == "The rows over time, the first 0.005 s"
    runs[0]["num_steps"] = 3
    (rows,) = (figure for figure in figures_of(runs, []) if figure.name == "rows")
    assert [row[:2] for row in rows.rows] == [("static", "3"), ("continuous", "7")]


def test_each_figure_is_a_file_for_light_and_dark_pages(tmp_path: Path) -> None:
    runs = [run_of(policy, rate) for policy in ("static", "continuous") for rate in (2.0, 4.0)]
    figures = list(figures_of(runs, []))
    check_plots(tmp_path / "new")
    write_plots(tmp_path / "new", figures)
    names = [figure.name for figure in figures]
    assert len(names) == len(set(names)) > 5
    assert {path.name for path in (tmp_path / "new").iterdir()} == {
        f"{name}{ending}" for name in names for ending in (".svg", ".png", "-dark.png")
    }
    for figure in figures:
        root = ElementTree.parse(tmp_path / "new" / f"{figure.name}.svg").getroot()
        assert root.findtext("{http://www.w3.org/2000/svg}title") == figure.drawing.title


def test_a_folder_for_plots_is_checked_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="plots: cannot write"):
        check_plots(tmp_path / "file")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"plots: .* pip install 'chairlift\[plot\]'"):
        check_plots(tmp_path)


def test_a_page_stays_small() -> None:
    runs = [
        run_of(policy, float(rate), 4, repeat)
        for repeat in range(20)
        for policy in ("static", "dynamic", "continuous")
        for rate in range(1, 9)
    ]
    page = render(runs, title="t", sentences=["s"], command="c", method=policies_method(runs))
    assert len(page.encode()) < MAX_BYTES


def test_a_page_of_many_rows_stays_small(chairlift: Run, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    run = chairlift(
        *("replay", "chat", "--rate", 40, "--max-num-seqs", 128, "--requests", 3000),
        *("--batching", "static", "--batching", "dynamic", "--batching", "continuous"),
        *("--report", path, "--json"),
    )
    assert run.returncode == 0, run
    assert len(path.read_bytes()) < MAX_BYTES
    assert "The rows over time (model)" in Parsed(path.read_text()).headings


def test_marks_of_an_axis_are_round() -> None:
    assert linear([0, 37], 0, 100).ticks() == [0, 10, 20, 30, 40]
    assert logarithmic([0.004, 0.3], 0, 100).ticks() == pytest.approx(
        [0.005, 0.01, 0.02, 0.05, 0.1, 0.2]
    )


def test_the_command_writes_a_report(chairlift: Run, tiny_folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    run = chairlift(
        *("bench", "policies", tiny_folder, "--policies", "static,continuous", "--report", path),
        *("--requests", 8, "--max-tokens", 12, "--max-num-seqs", 2, "--json"),
    )
    assert run.returncode == 0, run
    sentence = json.loads(run.stdout.splitlines()[-1])["sentence"]
    assert Parsed(path.read_text()).headings[0] == sentence
    nowhere = chairlift(
        *("bench", "policies", tiny_folder, "--policies", "static", "--requests", 1),
        *("--report", tmp_path / "nowhere" / "report.html"),
    )
    assert nowhere.returncode == 2
    assert "--report: cannot write" in nowhere.stderr


def test_a_replay_writes_the_same_report_as_a_model(chairlift: Run, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    command = ("replay", "anyscale-128", "--requests", 40, "--batching", "static", "--json")
    run = chairlift(*command, "--batching", "continuous", "--pad-static", "--report", path)
    padded, static, continuous = map(json.loads, run.stdout.splitlines())
    gain = continuous["tokens_per_s"] / static["tokens_per_s"]
    parsed = Parsed(path.read_text())
    assert parsed.headings[0].startswith(
        f"By a model of the step time continuous batching gave {gain:.2f}x of static batching at "
    )
    assert "is the most that slots allow" in parsed.headings[0]
    for title in (
        *("The policies", "Throughput (model)", "The rows over time (model)"),
        *("The time of a step (model)", "KV memory, used and reserved (model)"),
        *("How it was modelled", "Definitions"),
    ):
        assert title in parsed.headings
    assert not any("measured" in heading for heading in parsed.headings)
    first = path.read_bytes()
    chairlift(*command, "--batching", "continuous", "--pad-static", "--report", path)
    assert path.read_bytes() == first
    (data,) = (text for name, text in parsed.raw if name == "script" and '"runs"' in text)
    assert [r["tokens_per_s"] for r in json.loads(data)["runs"]] == [
        row["tokens_per_s"] for row in (padded, static, continuous)
    ]


def test_a_replay_of_one_policy_at_its_own_times_says_when_tokens_came(
    chairlift: Run, tmp_path: Path
) -> None:
    path = tmp_path / "report.html"
    run = chairlift("replay", "chat", "--requests", 30, "--report", path, "--json")
    assert run.returncode == 0, run
    answer = Parsed(path.read_text()).headings[0]
    assert answer.startswith("By a model of the step time, with requests at their own times, the ")


def test_a_replay_that_answers_nothing_has_a_report(chairlift: Run, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    run = chairlift(
        *("replay", "anyscale-32", "--requests", 4, "--batching", "static"),
        *("--batching", "continuous", "--kv-cache-memory", "4MiB", "--report", path, "--json"),
    )
    assert run.returncode == 0, run
    assert "not answered: 4 " in path.read_text()


def test_a_fleet_has_no_report(chairlift: Run, tmp_path: Path) -> None:
    run = chairlift("replay", "chat", "--replicas", 2, "--report", tmp_path / "report.html")
    assert run.returncode == 2
    assert "--report: expected none with --replicas" in run.stderr


def test_a_value_of_zero_is_at_the_edge_of_a_logarithmic_axis() -> None:
    assert logarithmic([0.0, 0.004, 0.3], 0, 100).at(0.0) == 0
