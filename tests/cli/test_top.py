"""`chairlift top`: what it shows of a real server, how it ends, and that it outlives a restart."""

import io
import json
import os
import pty
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from chairlift.cli.top_state import PARTS, TopState
from chairlift.cli.top_view import TopView, as_json
from chairlift.client import connect
from chairlift.v1 import server_pb2 as pb
from chairlift.v1.generation_pb2 import WAIT_CAUSE_ROW, WAIT_CAUSE_SHARE
from rich.console import Console

from tests.cli.conftest import Run, environment
from tests.forked import Python

TOP = ("-m", "chairlift", "top")


def activity(tenant: str, errors: int = 0, num_tokens: int = 100) -> pb.TenantActivity:
    """Of ten requests in the last minute."""
    found = pb.TenantActivity(tenant=tenant, num_generated_tokens=num_tokens, num_started=10)
    found.time_to_first_token_p50.FromMilliseconds(120)
    found.time_to_first_token_p99.FromMilliseconds(1250)
    found.reasons.add(reason="length", count=10)
    if errors:
        found.reasons.add(reason="QUOTA_EXCEEDED", is_error=True, count=errors)
    return found


def text_of(state: TopState, width: int, height: int) -> str:
    console = Console(width=width, height=height, record=True, file=io.StringIO())
    console.print(TopView(state))
    return console.export_text().rstrip("\n")


def filled(*, num_rows: int = 8, anonymous: bool = False) -> TopState:
    """A state as after 100 steps of a full batch."""
    state = TopState("127.0.0.1:50051", clock=lambda: 1.0)
    info = pb.GetServerInfoResponse(
        state=pb.SERVER_STATE_SERVING, batching="continuous", max_num_seqs=num_rows, block_size=16
    )
    state.connected(info, "demo")
    load = pb.Load(
        num_running=num_rows,
        num_rows_held=num_rows,
        num_waiting=1234,
        num_waiting_tokens=567_890,
        num_blocks=100,
        num_free_blocks=40,
        num_cached_blocks=30,
        num_kv_tokens=720,
        num_prefix_queries=10,
        num_prefix_hits=5,
        tenants=[activity("ann", errors=3), activity("bob")],
    )
    state.take(load)
    for number in range(1, 101):
        step = pb.Step(step=number)
        step.start.FromMicroseconds(5000 * number)
        step.duration.FromMicroseconds(4000)
        for part in PARTS:
            getattr(step.times, part).FromMicroseconds(800)
        for row in range(num_rows):
            name = "" if anonymous else f"request-{row}-" + "x" * 30
            step.rows.add(
                row=row,
                handle=name,
                request_id=name,
                num_tokens=1,
                sampled=True,
                work=pb.ROW_WORK_DECODE,
            )
        state.add(step)
    return state


@pytest.mark.parametrize(("width", "height"), [(50, 24), (80, 24), (120, 40), (200, 50), (60, 14)])
@pytest.mark.parametrize("num_rows", [1, 8, 256])
def test_a_frame_fits_the_terminal(width: int, height: int, num_rows: int) -> None:
    text = text_of(filled(num_rows=num_rows), width, height)
    lines = text.splitlines()
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    for words in ("serving", "rows", "KV", "60% of 100 blocks", "4.00 ms", "forward 20%", "row 0"):
        assert words in text, text
    for words in (f"{num_rows} of {num_rows} running", "50% of 10 blocks found", "ITL 5."):
        assert words in text, text
    # Only the names of requests are cut.
    cut = [line for line in lines if "…" in line]
    assert all("request-" in line for line in cut), text


def test_a_wide_terminal_shows_whole_names() -> None:
    text = text_of(filled(), 200, 24)
    assert "request-7-" + "x" * 30 + " 100" in text
    assert "…" not in text


@pytest.mark.parametrize("width", [50, 80, 120])
def test_tenants_have_times_to_the_first_token_and_errors(width: int) -> None:
    lines = text_of(filled(), width, 30).splitlines()
    (head,) = [line for line in lines if line.startswith("last minute")]
    (ann,) = [line.split() for line in lines if line.startswith("ann")]
    (bob,) = [line.split() for line in lines if line.startswith("bob")]
    if width == 50:
        assert head.split() == ["last", "minute", "tokens/s", "TTFT", "p99", "errors"]
        assert ann == ["ann", "0", "120", "ms", "1.25", "s", "3"]
    else:
        assert head.split() == ["last", "minute", "tokens/s", "TTFT", "p99", "ended", "errors"]
        assert ann == ["ann", "0", "120", "ms", "1.25", "s", "13", "3", "QUOTA_EXCEEDED"]
    assert bob[-1] == "0"


def test_waiting_requests_have_causes_and_blocks_that_are_shared_are_counted() -> None:
    state = filled()
    load = state.load
    assert load is not None
    load.waiting_by_cause.add(cause=WAIT_CAUSE_ROW, count=1200)
    load.waiting_by_cause.add(cause=WAIT_CAUSE_SHARE, count=34)
    load.block_map.shared.extend([4, 3])
    load.block_map.own.extend([9, 0])
    text = text_of(state, 160, 40)
    assert "1,234 waiting, for 1,200 row, 34 share, 567,890 of their tokens" in text
    assert "7 shared" in text
    found = json.loads(json.dumps(as_json(state)))
    assert found["waiting_by_cause"] == {"row": 1200, "share": 34}
    assert (found["num_shared_blocks"], found["num_own_blocks"]) == (7, 9)


def test_many_tenants_are_counted_and_leave_the_rows_their_place() -> None:
    state = filled()
    assert state.load is not None
    state.take(pb.Load(num_running=8, num_blocks=1, tenants=map(activity, map(str, range(100)))))
    lines = text_of(state, 80, 24).splitlines()
    assert len(lines) <= 24
    assert any(line.startswith("2 of 100 ") for line in lines)
    assert any(line.startswith("row 7") for line in lines)


def test_tokens_per_second_of_a_tenant_are_those_of_the_last_moments() -> None:
    now = [0.0]
    state = TopState("a", clock=lambda: now[0])
    state.connected(pb.GetServerInfoResponse(), "demo")
    for second in range(10):
        now[0] = float(second)
        state.take(pb.Load(tenants=[activity("ann", num_tokens=50 * second)]))
    assert state.tokens_per_s("ann") == 50.0
    assert state.tokens_per_s("bob") == 0.0


def test_the_time_between_tokens_is_of_named_requests_and_of_steps_without_a_gap() -> None:
    def step(number: int, start_ms: int, *handles: str) -> pb.Step:
        found = pb.Step(step=number)
        found.start.FromMilliseconds(start_ms)
        for row, handle in enumerate(handles):
            decode = pb.ROW_WORK_DECODE
            found.rows.add(row=row, handle=handle, num_tokens=1, sampled=True, work=decode)
        return found

    state = TopState("a", clock=lambda: 1.0)
    state.connected(pb.GetServerInfoResponse(), "demo")
    assert state.inter_token() is None
    state.add(step(1, 0, "a", ""))
    assert state.inter_token() is None
    state.add(step(2, 10, "b", ""))
    state.add(step(3, 20, "a", ""))
    found = state.inter_token()
    assert found is not None
    # From the first to the third step; a row without names may have had several requests.
    assert found.median_s == pytest.approx(0.02, rel=0.1) == found.p99_s
    # Steps were left out: what lies between is not known.
    state.add(step(9, 900, "a"))
    assert state.inter_token() == found
    state.add(step(10, 910, "a"))
    assert state.inter_token() != found


@pytest.mark.parametrize("width", [50, 80, 120])
def test_old_figures_are_marked_until_new_ones_come(width: int) -> None:
    now = [0.0]
    state = TopState("127.0.0.1:50051", clock=lambda: now[0], interval_s=0.5)
    state.connected(pb.GetServerInfoResponse(state=pb.SERVER_STATE_SERVING), "demo")
    load = pb.Load(num_running=1, num_blocks=10)
    state.take(load)
    now[0] = 3.0
    assert "old" not in text_of(state, width, 24)
    # A server that is stopped closes no connection.
    now[0] = 12.0
    assert "figures are 12 s old" in text_of(state, width, 24)
    state.take(load)
    assert "old" not in text_of(state, width, 24)
    state.lost("UNAVAILABLE")
    now[0] = 13.0
    text = text_of(state, width, 24)
    assert "reconnecting" in text
    assert "figures are 1 s old" in text
    assert as_json(state)["age_s"] == 1.0
    state.connected(pb.GetServerInfoResponse(state=pb.SERVER_STATE_SERVING), "demo")
    state.take(load)
    assert "old" not in text_of(state, width, 24)


def test_requests_of_other_tenants_have_rows_and_no_names() -> None:
    state = filled(num_rows=2, anonymous=True)
    assert [request["request_id"] for request in as_json(state)["rows"]] == ["", ""]
    assert text_of(state, 80, 24).count("of another tenant") == 2


def test_rates_are_of_the_last_moments() -> None:
    now = [0.0]
    state = TopState("a", clock=lambda: now[0])
    state.connected(pb.GetServerInfoResponse(), "demo")
    step = pb.Step(step=1)
    step.duration.FromMilliseconds(500)
    step.times.forward.FromMilliseconds(500)
    prefill, verify = pb.ROW_WORK_PREFILL, pb.ROW_WORK_VERIFY
    step.rows.add(row=0, handle="a", num_tokens=20, sampled=False, work=prefill)
    drafts = {"num_drafts": 3, "num_accepted": 1}
    step.rows.add(row=1, handle="b", num_tokens=4, sampled=True, work=verify, **drafts)
    now[0] = 10.0
    state.add(step)
    state.add(step)
    rates = state.rates()
    assert (rates.tokens_per_s, rates.prompt_tokens_per_s, rates.steps_per_s) == (2.0, 20.0, 1.0)
    assert (rates.step_s, rates.parts_s["forward"]) == (0.5, 0.5)
    now[0] = 20.0
    assert state.rates().tokens_per_s == 0.0


def test_once_prints_one_frame(chairlift: Run, target: str) -> None:
    run = chairlift("top", "--target", target, "--once", "--interval", "100ms")
    assert (run.returncode, run.stderr) == (0, "")
    for words in (target, "serving", "of 4 running", "row 3"):
        assert words in run.stdout


def test_without_a_server_it_is_one_line(chairlift: Run, tmp_path: Path) -> None:
    run = chairlift("top", "--target", f"unix:{tmp_path}/none.sock", "--once")
    assert run.returncode == 1
    assert run.stderr.startswith("error: no server at unix:")


def test_without_a_terminal_it_says_what_to_do(chairlift: Run, target: str) -> None:
    run = chairlift("top", "--target", target)
    assert run.returncode == 2
    assert "--once or --json" in run.stderr


def frames(process: subprocess.Popen[str]) -> Iterator[dict[str, object]]:
    assert process.stdout is not None
    return (json.loads(line) for line in process.stdout)


def test_json_names_the_request_of_each_row(target: str) -> None:
    command = [*TOP, "--target", target, "--json", "--interval", "100ms"]
    with (
        Python(*command, stdout=subprocess.PIPE, text=True, env=environment()) as process,
        connect(target) as client,
    ):
        printed = frames(process)
        first = next(printed)
        assert (first["state"], first["num_running"]) == ("serving", 0)
        is_seen = threading.Event()

        def keep_asking() -> None:
            while not is_seen.is_set():
                for _ in client.generate("one", max_tokens=60, request_id="mine"):
                    pass

        # An answer may begin and end between two frames: one follows another until it is seen.
        with ThreadPoolExecutor() as threads:
            asked = threads.submit(keep_asking)
            try:
                frame = next(frame for frame in printed if frame["rows"] or asked.done())
            finally:
                is_seen.set()
        asked.result()
        assert {row["request_id"] for row in frame["rows"]} == {"mine"}  # type: ignore[attr-defined, index]
        (tenant,) = frame["tenants"]  # type: ignore[misc]
        assert tenant["tenant"] == ""  # type: ignore[index]
        # Other tests of this server may have caused errors in the minute before the first frame.
        errors = {} if not first["tenants"] else first["tenants"][0]["errors"]  # type: ignore[index]
        added = {k: n for k, n in tenant["errors"].items() if n > errors.get(k, 0)}  # type: ignore[index]
        assert added == {}
        assert sum(frame["step_parts_s"].values()) == pytest.approx(frame["step_s"])  # type: ignore[attr-defined]
        process.terminate()


def test_it_outlives_a_restart_of_the_server(tiny_folder: Path, tmp_path: Path) -> None:
    target = f"unix:{tmp_path}/lift.sock"
    serve = ("-m", "chairlift", "serve", tiny_folder, "--listen", target)

    def server() -> subprocess.Popen[str]:
        process = Python(*serve, stdout=subprocess.PIPE, text=True, env=environment())
        assert process.stdout is not None
        assert process.stdout.readline().startswith("loading")
        assert process.stdout.readline().startswith("serving")
        return process

    with server() as first:
        command = [*TOP, "--target", target, "--json", "--interval", "100ms"]
        with Python(*command, stdout=subprocess.PIPE, text=True, env=environment()) as top:
            printed = frames(top)
            assert next(printed)["state"] == "serving"
            first.terminate()
            first.wait()
            assert any(frame["state"] == "reconnecting" for frame in printed)
            with server() as second:
                try:
                    assert any(frame["state"] == "serving" for frame in printed)
                finally:
                    top.terminate()
                    second.terminate()


@pytest.mark.parametrize("key", [b"q", b"\x03"])
def test_a_key_ends_it_and_leaves_the_terminal_as_it_was(target: str, key: bytes) -> None:
    master, slave = pty.openpty()
    process = Python(
        *(*TOP, "--target", target),
        # The keyboard's Ctrl-C reaches those whose terminal this is.
        has_terminal=True,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=environment() | {"TERM": "xterm"},
    )
    os.close(slave)
    seen = b""
    while b"serving" not in seen:
        seen += os.read(master, 65_536)
    os.write(master, key)
    while True:
        try:
            data = os.read(master, 65_536)
        except OSError:  # The other end is closed.
            break
        seen += data
        if not data:
            break
    assert process.wait(20) == 0, seen
    # The screen of its own is left, the cursor is shown again.
    assert seen.rindex(b"\x1b[?1049l") > seen.rindex(b"\x1b[?1049h")
    assert seen.rindex(b"\x1b[?25h") > seen.rindex(b"\x1b[?25l")
    assert b"Traceback" not in seen
    os.close(master)
