"""Finished runs are kept, and a run that was cut off is not."""

import json

import pytest
from chairlift.api.errors import ConfigError
from chairlift.bench.run_file import RunFile


def test_runs_are_there_again(tmp_path):
    with RunFile(tmp_path / "new") as file:
        assert file.runs == {}
        file.add({"key": "a", "tokens_per_s": 1.5})
    with RunFile(tmp_path / "new") as file:
        assert file.runs == {"a": {"key": "a", "tokens_per_s": 1.5}}


def test_a_line_that_was_cut_off_is_removed(tmp_path):
    path = tmp_path / "runs.jsonl"
    path.write_text('{"key": "a"}\n{"key": "b", "tok')
    with RunFile(tmp_path) as file:
        assert list(file.runs) == ["a"]
        file.add({"key": "c"})
    assert [json.loads(line)["key"] for line in path.read_text().splitlines()] == ["a", "c"]


def test_a_file_of_something_else_is_left_alone(tmp_path):
    path = tmp_path / "runs.jsonl"
    path.write_text("notes\n")
    with pytest.raises(ConfigError, match=r"^into: .*runs.jsonl:1: expected a finished run"):
        RunFile(tmp_path)
    assert path.read_text() == "notes\n"


def test_one_process_writes_at_a_time(tmp_path):
    with RunFile(tmp_path), pytest.raises(ConfigError, match="another process writes"):
        RunFile(tmp_path)
