import json

import pytest
from chairlift.api.errors import ChairliftError
from chairlift.cli.batch.local import LocalRunner
from chairlift.engine.engine import Engine
from chairlift.ray.parts import MAX_LINES, Output, answer, entries_of, parts_of
from chairlift.server.protocols.openai.logprobs import TokenTexts


@pytest.fixture(scope="module")
def engine(tiny_folder):
    with Engine(tiny_folder, max_num_seqs=8) as engine:
        yield engine


def answered(engine, part):
    texts = TokenTexts(lambda: engine.tokenizer)
    return answer(part, LocalRunner(engine).run, ("tiny",), texts)


def write(path, entries):
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return path


def entry(number):
    return {"id": number, "prompt": [3 + number % 300, 5], "max_tokens": 3, "temperature": 0}


def test_parts_cover_each_line_of_a_file_once(tmp_path):
    entries = [entry(number) for number in range(2 * MAX_LINES + 7)]
    source = write(tmp_path / "in.jsonl", entries)
    source.write_text("\n" + source.read_text() + '{"id": "last", "prompt": "a"}')
    _, parts = parts_of(source)
    assert len(parts) == 3
    found = [pair for part in parts for pair in entries_of(part)]
    assert [number for number, _ in found] == list(range(2, 2 * MAX_LINES + 10))
    assert [json.loads(data)["id"] for _, data in found] == [*range(2 * MAX_LINES + 7), "last"]


def test_a_file_with_an_id_twice_is_refused(tmp_path):
    with pytest.raises(ChairliftError, match="line 2 has the id of line 1"):
        parts_of(write(tmp_path / "in.jsonl", [entry(1), entry(1)]))


def test_answers_are_in_the_order_of_the_input_with_the_errors_of_lines(engine, tmp_path):
    entries = [entry(0), {"id": 1, "prompt": "a", "max_tokenz": 3}, entry(2)]
    _, (part,) = parts_of(write(tmp_path / "in.jsonl", entries))
    found = answered(engine, part)
    assert [(a.number, a.id, a.is_error) for a in found] == [
        (1, "0", False),
        (2, "1", True),
        (3, "2", False),
    ]
    assert json.loads(found[0].answer)["usage"]["completion_tokens"] == 3
    assert json.loads(found[1].answer)["error"]["message"] == "line 2: max_tokenz: unknown field"


def test_a_job_goes_on_with_the_parts_that_are_missing_and_has_each_answer_once(engine, tmp_path):
    source = write(tmp_path / "in.jsonl", [entry(number) for number in range(MAX_LINES + 5)])
    digest, parts = parts_of(source)
    first = Output(tmp_path / "out.jsonl")
    first.begin({"input": digest})
    first.write(parts[1], answered(engine, parts[1]))
    with pytest.raises(ChairliftError, match="1 parts are missing"):
        first.finish(parts)
    again = Output(tmp_path / "out.jsonl")
    again.begin({"input": digest})
    left = [part for part in parts if not again.file_of(part).exists()]
    assert left == parts[:1]
    for part in (*left, *left):  # A part that two machines compute is there once.
        again.write(part, answered(engine, part))
    again.finish(parts)
    ids = [json.loads(line)["id"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert ids == list(range(MAX_LINES + 5))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl"]


def test_what_a_killed_writer_left_holds_up_no_job(engine, tmp_path):
    digest, parts = parts_of(write(tmp_path / "in.jsonl", [entry(0)]))
    output = Output(tmp_path / "out.jsonl")
    output.folder.mkdir()
    (output.folder / "__job.json.abcd").write_text("{")
    output.begin({"input": digest})
    (output.folder / "_000000000001.jsonl.abcd").write_text('{"id":')
    output.write(parts[0], answered(engine, parts[0]))
    output.finish(parts)
    assert json.loads(output.path.read_text())["id"] == 0
    assert not output.folder.exists()


def test_a_file_that_is_no_table_is_refused_by_its_name(tmp_path):
    pytest.importorskip("pyarrow")
    (tmp_path / "in.parquet").write_text("id,prompt")
    with pytest.raises(ChairliftError, match=r"in\.parquet"):
        parts_of(tmp_path / "in.parquet")


def test_a_part_of_a_table_of_many_row_groups_has_its_rows(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = pa.Table.from_pylist([entry(number) for number in range(MAX_LINES + 100)])
    pq.write_table(rows, tmp_path / "in.parquet", row_group_size=7)
    _, parts = parts_of(tmp_path / "in.parquet")
    found = [pair for part in parts for pair in entries_of(part)]
    assert [number for number, _ in found] == list(range(1, MAX_LINES + 101))
    assert [json.loads(data)["id"] for _, data in found] == list(range(MAX_LINES + 100))


def test_the_answers_of_another_job_are_left_alone(tmp_path):
    Output(tmp_path / "out.jsonl").begin({"input": "a"})
    with pytest.raises(ChairliftError, match="another job"):
        Output(tmp_path / "out.jsonl").begin({"input": "b"})
    (tmp_path / "there.jsonl").write_text("")
    with pytest.raises(ChairliftError, match="it exists"):
        Output(tmp_path / "there.jsonl").begin({"input": "a"})


def test_tables_in_and_out_hold_the_same_answers_as_lines(engine, tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = [entry(number) for number in range(MAX_LINES + 3)]
    rows[1] = {"id": 1, "prompt": None, "max_tokens": 3, "temperature": 0}
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "in.parquet")
    digest, parts = parts_of(tmp_path / "in.parquet")
    assert len(parts) == 2
    output = Output(tmp_path / "out.parquet")
    output.begin({"input": digest})
    for part in parts:
        output.write(part, answered(engine, part))
    output.finish(parts)
    files = sorted((tmp_path / "out.parquet").glob("[0-9]*.parquet"))
    found = [row for file in files for row in pq.read_table(file).to_pylist()]
    assert [row["number"] for row in found] == list(range(1, MAX_LINES + 4))
    assert [row["is_error"] for row in found].count(True) == 1
    lines = write(tmp_path / "in.jsonl", rows[2:3])
    _, (part,) = parts_of(lines)
    expected = json.loads(answered(engine, part)[0].answer)
    assert json.loads(found[2]["answer"])["text"] == expected["text"]
