"""`chairlift bench quality`: figures as those of `transformers`, errors that name the option."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from chairlift.api.config import Dtype, KvCacheDtype, Quantize
from chairlift.api.errors import ConfigError
from chairlift.bench.quality import (
    ModelFormat,
    WindowModel,
    check_formats,
    cut_windows,
    measure_quality,
)
from chairlift.demo import MODEL_DIR
from chairlift.text.tokenizer import Tokenizer
from transformers import AutoModelForCausalLM

from tests.cli.conftest import Result, Run
from tests.engine import tiny_model

STORY = (
    "Once upon a time there was a small fox that lived near the river. One day she met an old "
    "bear. “Good morning”, said the bear. They walked to the lake and shared some bread.\n\n"
    'The capital of France is Paris. {"name": "Anna", "age": 31}\r\nQ: What is 3 + 4?\nA: 7\n'
) * 3
KEYS = ["model", "format", "tokens", "perplexity"]
WINDOW = 64


@pytest.fixture
def story(tmp_path: Path) -> Path:
    path = tmp_path / "story.txt"
    path.write_bytes(STORY.encode())
    return path


@pytest.fixture(scope="module")
def other_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As the tiny model, with other weights."""
    folder = tmp_path_factory.mktemp("other")
    tiny_model.write(folder, seed=1)
    return folder


def rows(run: Result) -> list[dict[str, Any]]:
    assert run.returncode == 0, run
    return [json.loads(line) for line in run.stdout.splitlines()]


def log_probs(folder: Path, windows: list[list[int]]) -> torch.Tensor:
    """Float64 `[N, vocab_size]` by `transformers`, for every token but the first of a window."""
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    with torch.inference_mode():
        logits = [model(torch.tensor([ids])).logits[0, :-1] for ids in windows]
    return torch.cat(logits).double().log_softmax(-1)


def windows_of(folder: Path, window: int, max_tokens: int | None = None) -> list[list[int]]:
    ids = Tokenizer.load(folder).encode(STORY, add_special_tokens=False)[:max_tokens]
    return [ids[start : start + window] for start in range(0, len(ids), window)]


def perplexity(scores: torch.Tensor, windows: list[list[int]]) -> float:
    targets = torch.tensor([token for ids in windows for token in ids[1:]])
    return float(scores.gather(1, targets[:, None]).mean().neg().exp())


def test_the_perplexity_of_the_demo_model_is_that_of_transformers(
    chairlift: Run, story: Path
) -> None:
    run = chairlift(
        *("bench", "quality", "demo", "--text", story, "--json"),
        *("--dtype", "float32", "--window", WINDOW),
    )
    (row,) = rows(run)
    windows = windows_of(MODEL_DIR, WINDOW)
    assert len(windows) > 2
    assert 1 < len(windows[-1]) < WINDOW
    assert list(row) == KEYS
    assert (row["model"], row["format"]) == ("demo", "float32")
    assert row["tokens"] == sum(len(ids) - 1 for ids in windows)
    expected = perplexity(log_probs(MODEL_DIR, windows), windows)
    assert row["perplexity"] == pytest.approx(expected, rel=1e-5)


def test_divergence_and_agreement_are_those_of_transformers(
    chairlift: Run, tiny_folder: Path, other_folder: Path, story: Path
) -> None:
    run = chairlift(
        *("bench", "quality", tiny_folder, "--text", story, "--json", "--dtype", "float32"),
        *("--against", other_folder, "--window", WINDOW, "--max-tokens", 150),
    )
    ours, reference = rows(run)
    assert list(ours) == list(reference) == [*KEYS, "kl_per_token", "agreement"]
    assert (ours["model"], reference["model"]) == (str(tiny_folder), str(other_folder))
    windows = windows_of(tiny_folder, WINDOW, 150)
    assert ours["tokens"] == reference["tokens"] == 150 - len(windows)
    p, q = log_probs(other_folder, windows), log_probs(tiny_folder, windows)
    assert ours["perplexity"] == pytest.approx(perplexity(q, windows), rel=1e-4)
    assert reference["perplexity"] == pytest.approx(perplexity(p, windows), rel=1e-4)
    divergence = float((p.exp() * (p - q)).sum(-1).mean())
    assert ours["kl_per_token"] == pytest.approx(divergence, rel=1e-4)
    equal = float((p.argmax(-1) == q.argmax(-1)).double().mean())
    assert ours["agreement"] == pytest.approx(equal, abs=1 / ours["tokens"])
    assert (reference["kl_per_token"], reference["agreement"]) == (None, None)


@pytest.mark.parametrize("quantize", ["none", "int4"])
def test_a_model_agrees_with_itself(chairlift: Run, story: Path, quantize: str) -> None:
    run = chairlift(
        *("bench", "quality", "demo", "--text", story, "--json", "--quantize", quantize),
        *("--against", "demo", "--against-dtype", "auto", "--against-quantize", quantize),
    )
    ours, reference = rows(run)
    assert (ours["kl_per_token"], ours["agreement"]) == (0, 1)
    assert ours["perplexity"] == reference["perplexity"]
    assert ours["format"] == reference["format"]


def test_fewer_bits_diverge_further_from_float32(chairlift: Run, story: Path) -> None:
    formats = {
        "bfloat16": (),
        "bfloat16, int8 weights": ("--quantize", "int8"),
        "bfloat16, int4 weights": ("--quantize", "int4"),
    }
    divergences = []
    for name, options in formats.items():
        command = ("bench", "quality", "demo", "--text", story, "--json", "--against", "demo")
        ours, reference = rows(chairlift(*command, *options))
        assert (ours["format"], reference["format"]) == (name, "float32")
        assert ours["agreement"] > 0.8
        divergences.append(ours["kl_per_token"])
    bfloat16, int8, int4 = divergences
    assert 0 < bfloat16 < int8 < int4 < 0.2


def test_the_table_has_a_row_per_model(chairlift: Run, story: Path) -> None:
    run = chairlift(
        *("bench", "quality", "demo", "--text", story, "--max-tokens", 100),
        *("--kv-cache-dtype", "int8", "--against", "demo"),
    )
    assert run.returncode == 0
    for heading in (*KEYS, "kl per token", "agreement"):
        assert heading in run.stdout
    assert "bfloat16, int8 keys and values" in run.stdout
    assert "%" in run.stdout
    assert run.stdout.count("\ndemo ") == 2


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "expected a text, got an empty file"),
        (b"fine \xff\xfe", "not UTF-8: 'utf-8' codec can't decode byte 0xff in position 5"),
    ],
)
def test_a_wrong_file_is_one_line(chairlift: Run, story: Path, content: bytes, problem: str):
    story.write_bytes(content)
    run = chairlift("bench", "quality", "--text", story)
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr.startswith(f"error: --text: {story}: {problem}")
    assert run.stderr.count("\n") == 1


WRONG = [
    (("--window", "300"), 2, "--window: expected at most max_model_len, 256, got 300"),
    (("--dtype", "float16"), 2, "--dtype: float16 is a GPU's alone"),
    (("--kv-cache-dtype", "fp8"), 2, "--kv-cache-dtype: fp8 is a GPU's alone"),
    (
        ("--against", "demo", "--against-dtype", "float16"),
        2,
        "--against-dtype: float16 is a GPU's alone",
    ),
    (
        ("--against", "demo"),
        2,
        "--against: expected a model with the vocabulary size of {model}, 390, got demo with 2048",
    ),
    (("--max-tokens", "1"), 2, "--max-tokens: input should be greater than or equal to 2"),
]


@pytest.mark.parametrize(("options", "code", "line"), WRONG)
def test_a_wrong_option_is_one_line_that_names_it(
    chairlift: Run, tiny_folder: Path, story: Path, options: tuple[str, ...], code: int, line: str
) -> None:
    run = chairlift("bench", "quality", tiny_folder, "--text", story, *options)
    assert (run.returncode, run.stdout) == (code, "")
    assert run.stderr.startswith(f"error: {line.format(model=tiny_folder)}")
    assert run.stderr.count("\n") == 1


def test_a_text_of_one_token_has_nothing_to_score(chairlift: Run, story: Path) -> None:
    story.write_text("a")
    run = chairlift("bench", "quality", "--text", story)
    expected = "error: --text: expected at least 2 tokens, got 1\n"
    assert (run.returncode, run.stderr) == (2, expected)


def test_token_ids_that_the_model_does_not_have_are_refused(
    chairlift: Run, tiny_folder: Path, story: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(tiny_folder, tmp_path / "model")
    shutil.copy(MODEL_DIR / "tokenizer.json", folder)
    run = chairlift("bench", "quality", folder, "--text", story)
    expected = f"error: {folder}: expected token ids below the vocabulary size 390, got "
    assert run.returncode == 1
    assert run.stderr.startswith(expected)


def test_a_model_whose_logits_are_not_finite_has_no_perplexity(
    chairlift: Run, tiny_folder: Path, story: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(tiny_folder, tmp_path / "model")
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    tensors["model.norm.weight"][3] = float("nan")
    safetensors.torch.save_file(tensors, folder / "model.safetensors")
    run = chairlift("bench", "quality", folder, "--text", story)
    expected = f"error: {folder}: expected a loss below 700 nats per token, got nan\n"
    assert (run.returncode, run.stderr) == (1, expected)


FORMATS = [
    {"dtype": Dtype.FLOAT32},
    {"quantize": Quantize.INT8, "kv_cache_dtype": KvCacheDtype.INT8},
]


@pytest.mark.parametrize("settings", FORMATS)
def test_no_window_depends_on_those_before(settings: dict[str, Any]) -> None:
    model = ModelFormat.of("demo", **settings)
    first, second, *_ = cut_windows(model, STORY, WINDOW, max_tokens=2 * WINDOW)
    assert not torch.equal(first, second)
    alone = WindowModel(model, WINDOW).hidden(second)
    after = WindowModel(model, WINDOW)
    after.hidden(first)
    assert torch.equal(after.hidden(second), alone)
    # A shorter window after a longer one does not read what the longer one wrote.
    short = WindowModel(model, WINDOW).hidden(second[:5])
    assert torch.equal(after.hidden(second[:5]), short)
    (forward,) = measure_quality([first, second], after)
    (backward,) = measure_quality([second, first], after)
    assert forward.perplexity == pytest.approx(backward.perplexity, rel=1e-12)


def test_progress_counts_the_tokens_of_every_model() -> None:
    model = ModelFormat.of("demo")
    windows = cut_windows(model, STORY, WINDOW, max_tokens=150)
    assert [len(ids) for ids in windows] == [64, 64, 22]
    loaded, done = WindowModel(model, WINDOW), []
    measure_quality(windows, loaded, WindowModel(model, WINDOW), done.append)
    assert done == [64, 64, 64, 64, 22, 22]
    done.clear()
    measure_quality(windows, loaded, on_progress=done.append)
    assert done == [64, 64, 22]


def test_a_token_that_is_left_alone_is_not_a_window() -> None:
    windows = cut_windows(ModelFormat.of("demo"), STORY, WINDOW, max_tokens=WINDOW + 1)
    assert [len(ids) for ids in windows] == [WINDOW]


def test_each_window_begins_with_the_bos_token_of_the_tokenizer(
    tiny_folder: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(tiny_folder, tmp_path / "model")
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "bos_token": "<eos>", "add_bos_token": True}))
    plain = cut_windows(ModelFormat.of(str(tiny_folder)), STORY, 1 + WINDOW, max_tokens=150)
    with_bos = cut_windows(ModelFormat.of(str(folder)), STORY, 1 + WINDOW, max_tokens=150)
    assert [len(ids) for ids in with_bos] == [65, 65, 23]
    assert all(ids[0] == tiny_model.EOS for ids in with_bos)
    assert torch.equal(torch.cat([ids[1:] for ids in with_bos]), torch.cat(plain))


def test_models_that_fit_only_alone_are_refused_before_they_are_read(tiny_folder: Path) -> None:
    formats = [ModelFormat.of("demo"), ModelFormat.of("demo", dtype=Dtype.FLOAT32)]
    memory = 32 << 20
    assert check_formats(formats[:1], None, memory) == 512
    assert check_formats(formats[1:], None, memory) == 512
    with pytest.raises(ConfigError, match=f"memory: expected at most {memory} bytes .* together"):
        check_formats(formats, None, memory)
    assert check_formats([ModelFormat.of(str(tiny_folder))], None) == 256
