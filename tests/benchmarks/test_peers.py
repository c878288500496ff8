"""The comparison with the peers, with commands that print known figures."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.peers import __main__ as peers
from benchmarks.peers.__main__ import commands, page_of, read_options, write
from benchmarks.peers.comparison import (
    Comparison,
    compare,
    page_with_marks,
    put_between_marks,
    table,
    with_kept_rows,
)
from benchmarks.peers.environments import held_to
from benchmarks.peers.processes import PeerError
from benchmarks.peers.workload import KINDS, write_workload

ROOT = Path(__file__).parents[2]


def command(name: str, seconds: list[float], log: Path) -> list[str]:
    """A peer whose run i takes seconds[i] for 100 tokens; each run leaves its name in the log."""
    program = f"""
import json
from pathlib import Path
log = Path({str(log)!r})
runs = log.read_text().split() if log.exists() else []
log.write_text(" ".join([*runs, {name!r}]))
seconds = {seconds}[runs.count({name!r})]
print("loading")
print(json.dumps({{"output_tokens": 100, "seconds": seconds, "tokens_per_s": 100 / seconds}}))
print("goodbye")
"""
    return [sys.executable, "-c", program]


def test_the_two_sides_run_in_turns_and_ratios_are_of_neighbours(tmp_path: Path) -> None:
    log = tmp_path / "log"
    lines: list[str] = []
    # The machine gets four times slower; each pair still says 2, 2 and 1.
    comparison = compare(
        "peer",
        command("a", [1.0, 2.0, 4.0], log),
        command("b", [2.0, 4.0, 4.0], log),
        rounds=3,
        on_progress=lines.append,
    )
    assert log.read_text().split() == ["a", "b", "a", "b", "a", "b"]
    assert comparison.chairlift == [100.0, 50.0, 25.0]
    assert comparison.peer == [50.0, 25.0, 25.0]
    assert comparison.ratios == [2.0, 2.0, 1.0]
    assert lines[1] == "round 1 of 3: peer 50.0 tokens/s (100 tokens, 2.0 s)"
    assert len(lines) == 6


def test_a_row_holds_medians_and_the_range_of_the_ratio() -> None:
    rows = table([Comparison("peer 1.0", [30.0, 10.0, 20.0], [10.0, 10.0, 10.0])]).splitlines()
    assert rows[-1] == "| peer 1.0 | 10.0 | 20.0 | 2.00 (1.00 to 3.00) |"
    assert len({row.count("|") for row in rows}) == 1


def test_a_peer_that_fails_gives_the_last_line_it_wrote(tmp_path: Path) -> None:
    failing = [sys.executable, "-c", "raise SystemExit('out of chairs')"]
    with pytest.raises(PeerError, match=r"ended with 1: out of chairs$"):
        compare("peer", command("a", [1.0], tmp_path / "log"), failing, 1, lambda _: None)


def test_both_sides_are_held_to_the_same_instructions(tmp_path: Path) -> None:
    program = (
        "import json, os; print(json.dumps({'output_tokens': 1, 'seconds': 1, 'tokens_per_s': "
    )
    chairlift = [sys.executable, "-c", program + "len(os.environ['CHAIRLIFT_CPU'])}))"]
    peer = [sys.executable, "-c", program + "len(os.environ['ONEDNN_MAX_CPU_ISA'])}))"]
    _, held = held_to("avx2", "transformers", tmp_path)
    comparison = compare("peer", chairlift, peer, 1, lambda _: None, held)
    assert comparison.ratios == [1.0]
    with pytest.raises(PeerError, match="cannot be held to fewer instructions"):
        held_to("avx2", "vllm", tmp_path)


def test_a_peer_without_a_result_is_named(tmp_path: Path) -> None:
    silent = [sys.executable, "-c", "print('all is well')"]
    with pytest.raises(PeerError, match=r"^quiet 1\.0 printed no result$"):
        compare("quiet 1.0", command("a", [1.0], tmp_path / "log"), silent, 1, lambda _: None)


def test_a_peer_that_is_not_there_gives_one_line() -> None:
    with pytest.raises(PeerError, match=r"^no-such-program: No such file"):
        compare("peer", ["no-such-program"], ["no-such-program"], 1, lambda _: None)


def test_a_table_replaces_only_what_stands_between_its_marks() -> None:
    document = "before\n<!-- a -->\nold\n<!-- end -->\n<!-- b -->\nkept\n<!-- end -->\nafter\n"
    changed = put_between_marks(document, "a", lambda _: "new")
    assert changed == document.replace("old", "new")
    assert put_between_marks(changed, "a", lambda _: "new") == changed
    with pytest.raises(ValueError, match="no marks for c"):
        put_between_marks(document, "c", lambda _: "new")


def test_a_table_is_found_in_the_page_of_a_folder_that_has_its_marks(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("<!-- bench-peers int8-kv8 -->\n<!-- end -->\n")
    (tmp_path / "b.md").write_text("<!-- bench-peers int8 -->\n<!-- end -->\n")
    assert page_with_marks(tmp_path, "bench-peers int8") == tmp_path / "b.md"
    with pytest.raises(ValueError, match=r"has marks for bench-peers int4$"):
        page_with_marks(tmp_path, "bench-peers int4")


def measured(title: str, rate: float) -> Comparison:
    return Comparison(title, [10.0], [rate])


def test_rows_of_peers_that_were_not_run_are_kept_with_what_they_were_measured_on() -> None:
    first = with_kept_rows("", "on a Zen 5", [measured("a", 1.0), measured("b", 2.0)])
    same = with_kept_rows(first, "on a Zen 5", [measured("a", 5.0)])
    assert [line[:8] for line in same.splitlines()[4:]] == ["| a | 5.", "| b | 2."]
    other = with_kept_rows(same, "on a Zen 3", [measured("b", 4.0)])
    assert other.splitlines()[0] == "on a Zen 3"
    assert "Earlier: on a Zen 5" in other
    assert [line[:8] for line in other.splitlines() if line.startswith("| a")] == ["| a | 5."]
    assert [line[:8] for line in other.splitlines() if line.startswith("| b")] == ["| b | 4."]
    again = with_kept_rows(other, "on a Zen 3", [measured("a", 6.0)])
    assert "Earlier" not in again


def test_a_note_stands_below_the_new_table_until_the_next_one() -> None:
    first = with_kept_rows("", "on a Zen 5", [measured("a", 1.0)], "KL 0.1")
    other = with_kept_rows(first, "on a Zen 3", [measured("b", 4.0)], "KL 0.2")
    assert other.index("| b |") < other.index("KL 0.2") < other.index("Earlier: on a Zen 5")
    assert "KL 0.1" not in other


@pytest.mark.parametrize("kind", KINDS)
def test_a_workload_is_the_same_each_time_and_chairlift_reads_it(tmp_path: Path, kind: str) -> None:
    from chairlift.bench.workload import read_workload

    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    write_workload(first, 5, vocab_size=100, kind=kind)
    write_workload(second, 5, vocab_size=100, kind=kind)
    assert first.read_bytes() == second.read_bytes()
    work = read_workload(first)
    assert len(work) == 5
    assert all(3 <= token < 100 for item in work for token in item.prompt_token_ids)
    assert [item.max_tokens for item in work] == [
        json.loads(line)["max_tokens"] for line in first.read_text().splitlines()
    ]


def test_an_unknown_peer_is_named_with_those_that_are_known() -> None:
    program = [sys.executable, "-m", "benchmarks.peers", "triton"]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "unknown peer triton: known are openvino, llamacpp, transformers, vllm" in done.stderr


def test_a_peer_without_such_weights_is_named() -> None:
    program = [sys.executable, "-m", "benchmarks.peers", "transformers", "--dtype", "int8"]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "transformers: not measured with int8 weights" in done.stderr


def test_a_peer_that_keeps_no_keys_in_eight_bits_is_named() -> None:
    program = [sys.executable, "-m", "benchmarks.peers", "vllm", "--kv-cache-dtype", "int8"]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "vllm: not measured with keys and values in int8" in done.stderr


def test_both_sides_keep_keys_and_values_in_the_same_format(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "argv", ["peers", "openvino", "--kv-cache-dtype", "int8"])
    monkeypatch.setattr(peers, "CONVERTED", tmp_path)
    for side in commands("openvino", Path("python"), tmp_path, Path("work"), read_options()):
        assert side[side.index("--kv-cache-dtype") + 1] == "int8"


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Path | None]:
    """Return the page that keeps a run with these words, of a folder with two tables."""
    names = ("bfloat16", "documents")
    marks = "".join(f"<!-- bench-peers {name} -->\n<!-- end -->\n" for name in names)
    (tmp_path / "tables.md").write_text(marks, encoding="utf-8")

    def found(*words: str) -> Path | None:
        monkeypatch.setattr(sys, "argv", ["peers", *words, "--into", str(tmp_path)])
        return page_of(read_options())

    return found


def test_a_table_without_a_name_keeps_no_other_work(page: Callable[..., Path | None]) -> None:
    assert page() is not None
    assert page("--requests", "16") is not None, "fewer requests of the same kind"
    for words in (("--kind", "documents"), ("--rows", "1"), ("--cpu", "avx2"), ("--served",)):
        assert page(*words) is None
        assert page(*words, "--section", "documents") is not None


def test_the_table_of_a_format_has_its_quality_below_and_no_other_has(
    page: Callable[..., Path | None],
) -> None:
    for words, has_note in (((), True), (("--section", "documents"), False)):
        kept = page(*words)
        assert kept is not None
        write(kept, read_options(), "on a Zen 5", [measured("a", 1.0)], "KL 0.1")
        own = f"<!-- bench-peers {'bfloat16' if has_note else 'documents'} -->"
        section = kept.read_text(encoding="utf-8").partition(own)[2].partition("<!-- end -->")[0]
        assert ("KL 0.1" in section) == has_note
        assert "| a |" in section


def test_a_table_that_no_page_has_is_named_before_anything_runs(
    page: Callable[..., Path | None],
) -> None:
    with pytest.raises(SystemExit, match=r"--section: no page of .* has marks for bench-peers new"):
        page("--section", "new")
