"""Every wrong use is one plain line that names the flag, the variable or the line of the file."""

import shlex
from pathlib import Path

import pytest

from tests.cli.conftest import Run


@pytest.mark.parametrize(
    ("command", "line"),
    [
        ("srve", "no such command: srve; the nearest is serve"),
        ("bench polices", "no such command: polices; the nearest is policies"),
        ("serve --max-num-seq 3", "no such option: --max-num-seq; the nearest is --max-num-seqs"),
        ("serve --xyz", "no such option: --xyz"),
        ("serve --listen", "option '--listen' requires an argument"),
        ("serve a b", "got unexpected extra argument(s) (b)"),
        ("replay", "--trace: expected a file or a recipe"),
        ("bench offline", "missing option '--workload'"),
        ("bench quality", "missing option '--text'"),
        ("bench quality --text /nope", "--text: /nope: no such file or directory"),
        (
            "quantize /nope out --tokens -1",
            "--tokens: input should be greater than or equal to 0, got '-1'",
        ),
        ("bench quality --text /dev/zero", "--text: /dev/zero: not a regular file"),
        (
            "bench quality --text /nope --against-dtype bfloat16",
            "--against-dtype: expected only with --against, got 'bfloat16'",
        ),
        (
            "bench quality --text /nope --against-quantize int8",
            "--against-quantize: expected only with --against, got 'int8'",
        ),
        (
            "serve --batching foo",
            "--batching: 'foo' is not one of 'continuous', 'dynamic', 'static'",
        ),
        (
            "plan --max-num-seqs 0",
            "--max-num-seqs: input should be greater than or equal to 1, got 0",
        ),
        (
            "bench serve --requests 0",
            "--requests: input should be greater than or equal to 1, got '0'",
        ),
        (
            "serve --step-budget 0s",
            "--step-budget: input should be greater than 0, got 0.0",
        ),
        (
            "top --interval often",
            "--interval: expected a duration such as 50ms, 5s or 2m, got 'often'",
        ),
        ("serve --listen nonsense", "--listen: expected HOST:PORT or unix:PATH, got 'nonsense'"),
        ("serve --tls-cert x.pem", "--tls-cert: TLS needs both tls_cert and tls_key"),
    ],
)
def test_a_wrong_command_line_is_one_plain_line(chairlift: Run, command: str, line: str) -> None:
    run = chairlift(*shlex.split(command))
    assert (run.returncode, run.stderr) == (2, f"error: {line}\n")


WRONG = [
    ("max-num-seqs", "many", "input should be a valid integer"),
    ("max-num-seqs", "0", "input should be greater than or equal to 1, got 0"),
    ("batching", "sometimes", "'sometimes' is not one of 'continuous', 'dynamic', 'static'"),
    ("batch-window", "-3s", "expected a duration such as 50ms, 5s or 2m, got '-3s'"),
    ("kv-cache-memory", "2parsecs", "expected a size such as 2GiB"),
    ("listen", "nonsense", "expected HOST:PORT or unix:PATH, got 'nonsense'"),
    ("prefix-cache", "perhaps", "input should be a valid boolean"),
]


@pytest.mark.parametrize(("name", "value", "words"), WRONG)
def test_a_wrong_value_of_a_variable_names_the_variable(
    chairlift: Run, monkeypatch: pytest.MonkeyPatch, name: str, value: str, words: str
) -> None:
    variable = "CHAIRLIFT_" + name.upper().replace("-", "_")
    monkeypatch.setenv(variable, value)
    run = chairlift("serve")
    assert (run.returncode, run.stderr.count("\n")) == (2, 1)
    assert run.stderr.startswith(f"error: {variable}: {words}")


@pytest.mark.parametrize(("name", "value", "words"), WRONG)
def test_a_wrong_value_of_the_file_names_file_line_and_key(
    chairlift: Run, tmp_path: Path, name: str, value: str, words: str
) -> None:
    file = tmp_path / "chairlift.toml"
    file.write_text(f'# settings\nlog-level = "error"\n{name} = "{value}"\n')
    run = chairlift("serve", "--config", file)
    assert (run.returncode, run.stderr.count("\n")) == (2, 1)
    assert run.stderr.startswith(f"error: {file}:3: {name}: {words}")


def test_a_failure_while_a_command_runs_ends_with_another_code(
    chairlift: Run, tmp_path: Path
) -> None:
    run = chairlift("generate", "one", "--target", f"unix:{tmp_path}/none.sock")
    assert run.returncode == 1
    assert run.stderr.startswith("error: ")
