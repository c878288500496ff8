"""The journal of `chairlift batch`: cut anywhere, killed at any moment, on a disk without room."""

import random

import pytest
from chairlift.api.errors import ChairliftError
from chairlift.cli.batch.journal import Journal

from tests.cli import batch_process
from tests.cli.batch_files import prompts, read, write

HEADER = {"input": "abc", "model": "m"}
ANSWERS = {3: b'{"id":"c"}', 1: '{"id":"ä"}'.encode(), 2: b"{}"}


def journal(tmp_path, header=HEADER, **options):
    return Journal(tmp_path / "o.journal", header, 3, **options)


def filled(tmp_path):
    with journal(tmp_path) as written:
        for number, answer in ANSWERS.items():
            written.append(number, answer, is_error=number == 2)
    return tmp_path / "o.journal"


def test_a_journal_that_is_cut_at_any_byte_keeps_its_whole_lines(tmp_path):
    path = filled(tmp_path)
    data = path.read_bytes()
    ends = [place + 1 for place, byte in enumerate(data) if byte == ord("\n")]
    for cut in range(len(data)):
        path.write_bytes(data[:cut])
        with journal(tmp_path) as found:
            num_whole = sum(end <= cut for end in ends[1:])
            assert found.num_answered == num_whole
            for number, answer in ANSWERS.items():
                if not found.has(number):
                    found.append(number, answer)
            output = tmp_path / f"out{cut}"
            found.finish(output, in_order=True)
        assert output.read_bytes() == b"".join(ANSWERS[n] + b"\n" for n in (1, 2, 3))
        assert sorted(p.name for p in tmp_path.iterdir() if "journal" in p.name) == []


@pytest.mark.parametrize("damage", [b"\0" * 40, b"9 a 00000000 {}\n", b"1 a 00000000 {}\n"])
def test_a_damaged_end_is_dropped(tmp_path, damage):
    path = filled(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole + damage)
    with journal(tmp_path) as found:
        assert (found.num_answered, found.num_errors) == (3, 1)
    assert path.read_bytes() == whole


def test_the_order_of_completion_is_that_of_the_journal(tmp_path):
    filled(tmp_path)
    with journal(tmp_path) as found:
        found.finish(tmp_path / "out", in_order=False)
    assert (tmp_path / "out").read_bytes() == b"".join(a + b"\n" for a in ANSWERS.values())


def test_a_journal_of_other_work_is_refused(tmp_path):
    path = filled(tmp_path)
    with pytest.raises(ChairliftError, match="the input has changed since it was begun"):
        journal(tmp_path, {**HEADER, "input": "x"})
    with pytest.raises(ChairliftError, match="model was 'm' when it was begun, now it is 'n'"):
        journal(tmp_path, {**HEADER, "model": "n"})
    path.write_text("something of the user\n")
    with pytest.raises(ChairliftError, match="this file is no journal"):
        journal(tmp_path)
    assert path.read_text() == "something of the user\n"


def test_two_processes_do_not_write_one_journal(tmp_path):
    with journal(tmp_path), pytest.raises(ChairliftError, match="another process writes it"):
        journal(tmp_path)


def test_an_output_that_appears_meanwhile_is_kept(tmp_path):
    filled(tmp_path)
    (tmp_path / "out").write_text("mine")
    expected = pytest.raises(ChairliftError, match="it exists by now; the answers are in")
    with journal(tmp_path) as found, expected:
        found.finish(tmp_path / "out", in_order=True)
    assert (tmp_path / "out").read_text() == "mine"


class Job:
    """A job in processes that are killed."""

    def __init__(self, tmp_path, model, lines):
        self.source = write(tmp_path / "in.jsonl", lines)
        self.output = tmp_path / "out.jsonl"
        self.journal = tmp_path / "out.jsonl.journal"
        self.part = tmp_path / "out.jsonl.part"
        self.log = tmp_path / "log"
        self.arguments = ["batch", self.source, self.output, model, "--max-num-seqs", "4"]

    def start(self, **options):
        arguments = (self.arguments, self.log)
        process = batch_process.context().Process(
            target=batch_process.run, args=arguments, kwargs=options
        )
        process.start()
        return process

    def finish(self, **options):
        process = self.start(**options)
        process.join(batch_process.LIMIT_S)
        return process.exitcode

    def kill_when(self, is_time):
        """Kill the process at a moment; return whether it still ran."""
        process = self.start()
        while process.is_alive() and not is_time():
            process.join(0.0005)
        was_alive = process.is_alive()
        process.kill()
        process.join(batch_process.LIMIT_S)
        return was_alive

    @property
    def num_bytes(self):
        return self.journal.stat().st_size if self.journal.exists() else 0


@pytest.fixture
def job(tmp_path, tiny_folder):
    return lambda num: Job(tmp_path, tiny_folder, [*prompts(num), b"{torn"])


def check(job, num):
    assert job.finish() == 0, job.log.read_text()
    found = read(job.output)
    assert [line["id"] for line in found] == [*(f"p{number}" for number in range(num)), None]
    assert all("text" in line for line in found[:-1])
    names = {path.name for path in job.output.parent.iterdir()}
    assert names == {"in.jsonl", "out.jsonl", "log"}


@pytest.mark.parametrize(
    "num_moments", [3, pytest.param(50, marks=[pytest.mark.slow, pytest.mark.timeout(600)])]
)
def test_a_job_that_is_killed_again_and_again_loses_and_repeats_nothing(job, num_moments):
    num = 40 * num_moments
    killed = job(num)
    draw = random.Random(0)
    num_kills = 0
    for _ in range(num_moments):
        until = killed.num_bytes + draw.randint(1, 3000)
        num_kills += killed.kill_when(lambda until=until: killed.num_bytes >= until)
        if killed.output.exists():
            break
    assert num_kills >= 2
    check(killed, num)


def test_a_job_that_is_killed_at_its_end_has_one_output(job):
    killed = job(10)
    killed.kill_when(lambda: killed.part.exists() or killed.output.exists())
    if killed.output.exists() and not killed.journal.exists():
        return
    check(killed, 10)


def test_a_journal_that_is_left_beside_its_output_is_removed(
    chairlift, tiny_folder, tmp_path, monkeypatch
):
    source, output = write(tmp_path / "in.jsonl", prompts(6)), tmp_path / "out.jsonl"
    path = tmp_path / "out.jsonl.journal"
    finish, kept = Journal.finish, []

    def keep(self, *arguments, **options):
        kept.append(self.path.read_bytes())
        finish(self, *arguments, **options)

    monkeypatch.setattr(Journal, "finish", keep)
    arguments = ("batch", source, output, tiny_folder, "--max-num-seqs", "4")
    assert chairlift(*arguments).returncode == 0
    found = output.read_bytes()
    # As a crash between the two last steps leaves it.
    path.write_bytes(kept[0])
    done = chairlift(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert not path.exists()
    # A journal that the output is not of.
    path.write_bytes(kept[0][: len(kept[0]) // 2])
    done = chairlift(*arguments)
    assert done.returncode == 1
    assert "it exists, and" in done.stderr
    assert output.read_bytes() == found


def test_a_full_disk_stops_with_one_line_and_keeps_what_is_there(job):
    full = job(60)
    assert full.finish(max_file_bytes=4000) == 1
    lines = full.log.read_text().splitlines()
    assert len(lines) == 1, lines
    assert "out.jsonl.journal: file too large; " in lines[0]
    assert " of 61 lines are answered: the same command goes on" in lines[0]
    assert not full.output.exists()
    check(full, 60)
