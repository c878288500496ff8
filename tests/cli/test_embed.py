"""`chairlift embed` and `chairlift rerank` over a real encoder of a few thousand parameters."""

import json

import numpy as np
import pytest

from tests.engine import tiny_encoder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("encoder")
    tiny_encoder.write(folder)
    return folder


def test_vectors_of_a_file_are_those_of_its_lines(chairlift, folder, tmp_path):
    texts = tiny_encoder.texts(30)
    (tmp_path / "in.txt").write_text("\n".join(texts) + "\n")
    out = tmp_path / "out.npy"
    arguments = ("--model", folder, "--input", tmp_path / "in.txt")
    done = chairlift("embed", *arguments, "--output", out)
    assert (done.returncode, done.stderr) == (0, ""), done
    assert "30 vectors of 64 numbers" in done.stdout
    vectors = np.load(out)
    assert vectors.shape == (30, 64)
    assert vectors.dtype == np.float32
    done = chairlift("embed", "--model", folder, "--json", *texts[:2])
    entries = [json.loads(line) for line in done.stdout.splitlines()]
    for entry in entries:
        assert np.array_equal(np.float32(entry["vector"]), vectors[entry["index"]])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "out.npy"]


def test_a_text_that_is_too_long_leaves_no_file(chairlift, folder, tmp_path):
    (tmp_path / "in.txt").write_text("lift\n" + "lift " * 300 + "\n")
    arguments = ("--model", folder, "--input", tmp_path / "in.txt", "--output", tmp_path / "o.npy")
    done = chairlift("embed", *arguments)
    assert done.returncode == 1
    assert "expected at most 96 tokens" in done.stderr
    assert not (tmp_path / "o.npy").exists()
    done = chairlift("embed", *arguments, "--truncate-end")
    assert (done.returncode, done.stderr) == (0, ""), done


def test_a_file_that_is_not_utf8_is_refused_with_its_line(chairlift, folder, tmp_path):
    (tmp_path / "in.txt").write_bytes(b"lift\n\xff\n")
    done = chairlift("embed", "--model", folder, "--input", tmp_path / "in.txt")
    assert done.returncode == 1
    assert "line 1 or one soon after it is not UTF-8" in done.stderr


def test_documents_are_printed_best_first(chairlift, folder):
    done = chairlift("rerank", "--model", folder, "--json", "lift", "snow up", "lift")
    best, *_ = (json.loads(line) for line in done.stdout.splitlines())
    assert (best["index"], best["text"]) == (1, "lift")
    assert abs(best["score"] - 1) < 1e-5
