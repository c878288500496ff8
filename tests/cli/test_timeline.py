"""`chairlift timeline` from its sources to files."""

import json
import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from chairlift.timeline.stubs import perfetto_trace_pb2

from tests.cli.conftest import Run, environment
from tests.forked import Python

FLOOD = "docs/traces/flood.jsonl"
SVG = "{http://www.w3.org/2000/svg}"


def words_of(path: Path) -> list[str]:
    root = ElementTree.fromstring(path.read_text(encoding="utf-8"))
    return ["".join(text.itertext()) for text in root.iter(f"{SVG}text")]


def test_a_file_of_requests_is_drawn_under_three_policies(chairlift: Run, tmp_path: Path) -> None:
    out = tmp_path / "flood.svg"
    run = chairlift("timeline", FLOOD, "--out", out)
    assert run.returncode == 0, run
    assert run.stdout.splitlines() == [
        "static: 88 steps, 4 rows, 68% of the cells used",
        "dynamic: 88 steps, 4 rows, 68% of the cells used",
        "continuous: 71 steps, 4 rows, 84% of the cells used",
        f"wrote {out}",
    ]
    words = words_of(out)
    assert words.index("static") < words.index("dynamic") < words.index("continuous")
    assert {"tenant 1", "tenant 2"} <= {*words}


def test_the_policies_and_settings_of_a_replay_are_those_asked_for(
    chairlift: Run, tmp_path: Path
) -> None:
    command = ["timeline", "nano", "--requests", "6", "--scale", "16", "--batching", "continuous"]
    command += ["--max-num-seqs", "2", "--x", "time", "--out", tmp_path / "nano.pftrace"]
    run = chairlift(*command)
    assert run.stdout.startswith("continuous: ")
    assert " 2 rows" in run.stdout
    trace = perfetto_trace_pb2.Trace.FromString((tmp_path / "nano.pftrace").read_bytes())
    assert len(trace.packet) > 100


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([FLOOD, "--out", "x.gif"], "--out: expected a file that ends with .html, .svg, "),
        (["--out", "x.svg"], "expected a SOURCE (a trace or a recipe) or --live"),
        ([FLOOD, "--live", "1s", "--out", "x.svg"], "--live watches a server"),
        (["--live", "1s", "--seed", "1", "--out", "x.svg"], "--live watches a server"),
        ([FLOOD, "--animate", "--out", "x.html"], "--animate: expected a file that ends with .svg"),
        ([FLOOD, "--target", "x:1", "--out", "x.svg"], "--target: expected --live beside it"),
        ([FLOOD, "--tls-ca", "x.pem", "--out", "x.svg"], "--tls-ca: expected --live beside it"),
        ([FLOOD, "--tls-cert", "x", "--out", "x.svg"], "--tls-cert: expected --live beside it"),
        ([FLOOD, "--tls-key", "x", "--out", "x.svg"], "--tls-key: expected --live beside it"),
        (["--live", "20m", "--out", "x.svg"], "--live: expected more than 0s and at most 600s"),
        (["missing.jsonl", "--out", "x.svg"], "cannot read trace missing.jsonl"),
        ([FLOOD, "--seed", "1", "--out", "x.svg"], "--seed, --scale and --write are for recipes"),
        ([FLOOD, "--out", "/missing/x.svg"], "cannot write /missing/x.svg: no such file"),
    ],
)
def test_what_cannot_be_done_is_said(chairlift: Run, arguments: list[str], message: str) -> None:
    run = chairlift("timeline", *arguments)
    assert run.returncode != 0
    assert message in " ".join(run.stderr.split())


def test_a_live_server_is_drawn(chairlift: Run, target: str, tmp_path: Path) -> None:
    out = tmp_path / "live.svg"
    command = ["-m", "chairlift", "timeline", "--live", "10s", "--target", target]
    command += ["--out", str(out)]
    with Python(
        *command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    ) as watch:
        # The watch has no sign of its begin: requests go on until it has ended.
        while watch.poll() is None:
            generate = ["generate", "--target", target, "--max-tokens", "8", "a"]
            assert chairlift(*generate).returncode == 0
        assert watch.stdout is not None
        assert watch.stderr is not None
        assert watch.returncode == 0, watch.stderr.read()
        said = watch.stdout.read()
    assert said.startswith("continuous: ")
    words = words_of(out)
    assert {"forward", "KV used", "waiting", "row 3"} <= {*words}


def test_a_server_that_does_nothing_is_no_figure(
    chairlift: Run, target: str, tmp_path: Path
) -> None:
    run = chairlift("timeline", "--live", "100ms", "--target", target, "--out", tmp_path / "x.svg")
    assert run.returncode != 0
    assert "made no step in 0.1 s" in run.stderr
    assert not list(tmp_path.iterdir())


def test_a_recorded_run_is_drawn_as_it_was(chairlift: Run, tmp_path: Path) -> None:
    trace, out = tmp_path / "trace.jsonl", tmp_path / "trace.svg"
    header = json.loads(Path(FLOOD).read_text().splitlines()[0])
    lines = [
        header | {"max_num_seqs": 2},
        {"event": "arrival", "t": 0, "request": 1, "prompt": 5, "max_tokens": 2},
        step(0, 5, [[1, 1, 0, 5, 0, 0]]),
        step(10, 1, [[1, 1, 1, 1, 0, 1]]),
        {"event": "end", "t": 20, "request": 1, "tokens": 2, "reason": "length"},
    ]
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = chairlift("timeline", trace, "--out", out)
    assert run.stdout.startswith("recorded: 2 steps, 2 rows, 50% of the cells used")
    again = chairlift("timeline", trace, "--batching", "static", "--out", out)
    assert again.stdout.startswith("static: 2 steps, 2 rows, 50% of the cells used")
    refused = chairlift("timeline", trace, "--max-num-seqs", "1", "--out", out)
    assert "settings of a replay need --batching" in " ".join(refused.stderr.split())


def step(start: int, num_tokens: int, changes: list[list[int]]) -> dict[str, object]:
    return {
        "event": "step",
        "t": start,
        "duration": 10,
        "rows": 1,
        "tokens": num_tokens,
        "prefill": num_tokens,
        "context": num_tokens,
        "kv_blocks": 1,
        "kv_tokens": num_tokens,
        "changes": changes,
    }
