"""A trace that is damaged or of another version is one line that names the line."""

import pytest
from chairlift.api.errors import ConfigError
from chairlift.replay.recipes import draw_trace
from chairlift.replay.trace import read_trace, write_trace


@pytest.fixture
def path(tmp_path):
    write_trace(draw_trace("prefix", num_requests=3), tmp_path / "trace.jsonl")
    return tmp_path / "trace.jsonl"


def test_a_trace_reads_back_as_it_was_written(path):
    drawn, read = draw_trace("prefix", num_requests=3), read_trace(path)
    assert (read.header, read.flushes) == (drawn.header, drawn.flushes)
    for one, two in zip(drawn.requests, read.requests, strict=True):
        assert one.blocks.tolist() == two.blocks.tolist()
        assert (one.arrival, one.num_prompt, one.num_output) == (
            two.arrival,
            two.num_prompt,
            two.num_output,
        )


def test_times_and_priorities_read_back_as_they_were_written(tmp_path):
    trace = draw_trace("chat", num_requests=1)
    (request,) = trace.requests
    request.queue_timeout, request.time_to_first_token, request.time_limit = 1, 2, 3
    request.priority, request.tenant, request.cache_read, request.cache_write = -4, 5, False, False
    write_trace(trace, tmp_path / "trace.jsonl")
    (read,) = read_trace(tmp_path / "trace.jsonl").requests
    names = ["queue_timeout", "time_to_first_token", "time_limit", "priority", "tenant"]
    names += ["cache_read", "cache_write"]
    assert [getattr(read, name) for name in names] == [1, 2, 3, -4, 5, False, False]


@pytest.mark.parametrize(
    ("number", "damage", "message"),
    [
        (1, lambda line: line.replace('"version":1', '"version":2'), "expected version 1, got 2"),
        (1, lambda line: "{}", "expected the header of a trace"),
        (1, lambda line: "[]", "input should be an object"),
        (2, lambda line: line[:-9], "invalid json"),
        (2, lambda line: line.replace('"prompt":', '"text":'), "prompt: field required"),
        (2, lambda line: line.replace('"prompt":', '"prompt":99999999'), "prompt: "),
        (2, lambda line: line.replace('"blocks":"', '"blocks":"x'), "blocks: "),
        (2, lambda line: line.replace('"t":', '"priority":4294967296,"t":'), "priority: "),
        (2, lambda line: line.replace('"t":', f'"time_limit":{10**30},"t":'), "time_limit: "),
        (3, lambda line: line.replace('"request":1', '"request":9'), "request 9 has not arrived"),
        (4, lambda line: line.replace('"request":2', '"request":1'), "request 1 arrives twice"),
        (
            6,
            lambda line: '{"event":"arrival","t":0,"request":7,"prompt":1,"max_tokens":1}',
            "before",
        ),
        (5, lambda line: line.replace("end", "start"), "input tag 'start'"),
    ],
)
def test_damage_names_its_line(path, number, damage, message):
    lines = path.read_text().splitlines()
    lines[number - 1] = damage(lines[number - 1])
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(ConfigError) as caught:
        read_trace(path)
    text = str(caught.value)
    assert text.startswith(f"{path}:{number}: ")
    assert message in text
    assert "\n" not in text


def test_a_file_that_is_cut_off_names_its_last_line(path):
    path.write_text(path.read_text()[:-5])
    with pytest.raises(ConfigError, match=rf"{path}:8: the line is cut off"):
        read_trace(path)


def test_an_empty_file_is_no_trace(path):
    path.write_text("")
    with pytest.raises(ConfigError, match=r":1: expected the header of a trace"):
        read_trace(path)
