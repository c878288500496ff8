"""Mooncake's format: an id of 512 tokens is 32 blocks of 16."""

import gzip
import json
from pathlib import Path

import pytest
from chairlift.api.errors import ConfigError
from chairlift.replay.mooncake import is_mooncake, read_mooncake
from chairlift.replay.run import replay
from chairlift.replay.step_time import DEFAULT
from chairlift.replay.token_ids import prompt_token_ids

LINES = [
    {"timestamp": 3000, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]},
    {"timestamp": 9000, "input_length": 1500, "output_length": 7, "hash_ids": [0, 1, 3]},
    {"timestamp": 20000, "input_length": 1100, "output_length": 1, "hash_ids": [0, 1, 2]},
]


def written(path: Path, lines: list[dict[str, object]]) -> Path:
    text = "".join(json.dumps(line) + "\n" for line in lines).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


@pytest.mark.parametrize("name", ["trace.jsonl", "trace.jsonl.gz"])
def test_an_id_is_512_tokens_and_the_last_what_is_left(tmp_path: Path, name: str) -> None:
    path = written(tmp_path / name, LINES)
    assert is_mooncake(path)
    trace = read_mooncake(path)
    assert [request.arrival for request in trace.requests] == [3 * 10**9, 9 * 10**9, 20 * 10**9]
    assert [request.num_prompt for request in trace.requests] == [1100, 1500, 1100]
    assert (trace.header.block_size, trace.tokens_per_name) == (16, 512)
    prompts = [prompt_token_ids(i, r, 512) for i, r in enumerate(trace.requests)]
    assert prompts[0] == prompts[2]
    assert prompts[0][:1024] == prompts[1][:1024]
    assert prompts[0][1024:] != prompts[1][1024:1100]


def test_shared_ids_are_found_as_blocks(tmp_path: Path) -> None:
    trace = read_mooncake(written(tmp_path / "trace.jsonl", LINES))
    # Two ids of the second prompt; of the third all whole blocks before its last token.
    assert replay(trace, trace.header, DEFAULT).num_prefix_hits == 2 * 32 + 1099 // 16


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"input_length": 0}, "input_length"),
        ({"hash_ids": [-1]}, "hash_ids"),
        ({"timestamp": "x"}, "timestamp"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, change: dict[str, object], field: str) -> None:
    path = written(tmp_path / "trace.jsonl", [LINES[0], {**LINES[1], **change}])
    with pytest.raises(ConfigError, match=f"trace.jsonl:2: {field}"):
        read_mooncake(path)


def test_another_file_is_none_of_mooncakes(tmp_path: Path) -> None:
    path = tmp_path / "other.jsonl"
    path.write_text('{"event":"header"}\n')
    assert not is_mooncake(path)
    assert not is_mooncake(tmp_path / "none")
