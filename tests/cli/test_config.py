"""One configuration from flags, environment and file; an unknown name is an error."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer
from chairlift import _core
from chairlift.api.choices import Drafts, InstructionSet
from chairlift.api.config import EngineConfig, engine_config
from chairlift.api.errors import ConfigError
from chairlift.api.logs import LogConfig
from chairlift.cli import app
from chairlift.cli.config_options import engine_options
from chairlift.cli.config_sources import known_variables, option_name
from chairlift.engine.loading.devices import hybrid_settings
from chairlift.replay.options import ReplayOptions
from chairlift.server.config import ServerConfig
from pydantic import BaseModel
from typer.testing import CliRunner

from tests.cli.conftest import Run, environment
from tests.cli.test_serve import assert_one_line
from tests.forked import run_python


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "chairlift.toml"


def printed(run: Run, *arguments: object) -> dict[str, tuple[str, str]]:
    """Value and source of each setting."""
    result = run("serve", *arguments, "--print-config")
    assert result.returncode == 0, result
    lines = {}
    for line in result.stdout.splitlines():
        entry, _, source = line.rpartition("  # ")
        name, _, value = entry.partition(" = ")
        lines[name] = (value, source)
    return lines


def test_a_flag_goes_before_a_variable_and_a_variable_before_the_file(
    chairlift: Run, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text('# three\nmax-num-seqs = 3\nmax_queued_requests = 5\nbatching = "static"\n')
    monkeypatch.setenv("CHAIRLIFT_MAX_NUM_SEQS", "4")
    monkeypatch.setenv("CHAIRLIFT_BATCHING", "dynamic")
    lines = printed(chairlift, "--config", file, "--max-num-seqs", "6")
    assert lines["max-num-seqs"] == ("6", "--max-num-seqs")
    assert lines["batching"] == ('"dynamic"', "CHAIRLIFT_BATCHING")
    assert lines["max-queued-requests"] == ("5", f"{file}:3")
    assert lines["queue-timeout"] == ('"30s"', "default")
    assert lines["model"] == ('"demo"', "default")
    monkeypatch.delenv("CHAIRLIFT_MAX_NUM_SEQS")
    assert printed(chairlift, "--config", file)["max-num-seqs"] == ("3", f"{file}:2")
    monkeypatch.setenv("CHAIRLIFT_CONFIG", str(file))
    assert printed(chairlift, "somewhere")["model"] == ('"somewhere"', "argument")
    assert printed(chairlift)["max-num-seqs"] == ("3", f"{file}:2")


@pytest.mark.parametrize("text", ['"a,b"', '["a", "b"]', '["a,b"]', '"a, b"'])
def test_names_of_the_model_come_from_the_file_the_environment_or_a_flag(
    chairlift: Run, file: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    file.write_text(f"served-model-name = {text}")
    names = '["a", "b"]'
    assert printed(chairlift, "--config", file)["served-model-name"] == (names, f"{file}:1")
    monkeypatch.setenv("CHAIRLIFT_SERVED_MODEL_NAME", "c,d")
    lines = printed(chairlift, "--config", file)["served-model-name"]
    assert lines == ('["c", "d"]', "CHAIRLIFT_SERVED_MODEL_NAME")
    flags = ("--served-model-name", "e,f", "--served-model-name", "g")
    lines = printed(chairlift, *flags)["served-model-name"]
    assert lines == ('["e", "f", "g"]', "--served-model-name")


def test_what_is_printed_is_a_file_of_the_same_settings(chairlift: Run, file: Path) -> None:
    given = ("--max-num-seqs", "7", "--batch-window", "20ms", "--kv-cache-memory", "16MiB")
    given += ("--no-prefix-cache", "--log-format", "json", "--listen", "[::1]:0")
    first = chairlift("serve", "model", *given, "--print-config").stdout
    file.write_text(first)
    assert tomllib.loads(first)["kv-cache-memory"] == 16 * 2**20
    again = chairlift("serve", "--config", file, "--print-config").stdout
    assert tomllib.loads(again) == tomllib.loads(first)


def test_every_setting_is_printed(chairlift: Run) -> None:
    lines = chairlift("serve", "--print-config").stdout
    for config in (ServerConfig, EngineConfig, LogConfig):
        for field in config.model_fields.keys() - {"block_size"}:
            assert f"{option_name(field)} " in lines, field


@pytest.mark.parametrize("config", [EngineConfig, ServerConfig, LogConfig, ReplayOptions])
def test_the_text_of_a_setting_is_the_help_of_its_option(config: type[BaseModel]) -> None:
    name = "replay" if config is ReplayOptions else "serve"
    command = getattr(typer.main.get_command(app), "commands", {})[name]
    options = {parameter.name: parameter for parameter in command.params}
    has_no_option = {EngineConfig: "block_size", ServerConfig: "model"}.get(config)
    for field, setting in config.model_fields.items():
        text = " ".join((setting.description or "").split())
        assert text.endswith("."), field
        assert field == has_no_option or options[field].help.startswith(text), field


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("max-num-seq = 4", ("no such option: max-num-seq", "the nearest is max-num-seqs")),
        ("batch-window-s = 4", ("the nearest is batch-window",)),
        ("[serve]\nmax-num-seqs = 4", ("no such option: serve",)),
        ('config = "other.toml"', ("no such option: config",)),
        ("max-num-seqs = [4]", ("max-num-seqs", "expected a text, a number or a boolean")),
        ("max-num-seqs = 4\nmax_num_seqs = 5", ("max_num_seqs is there twice",)),
        ("max-num-seqs = ", ("cannot read",)),
    ],
)
def test_a_wrong_file_is_one_line(
    chairlift: Run, file: Path, text: str, words: tuple[str, ...]
) -> None:
    file.write_text(text)
    assert_one_line(chairlift("serve", "--config", file), str(file), *words)


@pytest.mark.parametrize("value", ["3.7", "true", '"three"'])
def test_a_value_of_another_type_is_not_bent_to_fit(chairlift: Run, file: Path, value: str) -> None:
    file.write_text(f"max-num-seqs = {value}")
    run = chairlift("serve", "--config", file, "--print-config")
    assert_one_line(run, f"error: {file}:1: max-num-seqs: ")


def test_an_unknown_instruction_set_is_refused(
    chairlift: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHAIRLIFT_CPU", "avx1024")
    run = chairlift("serve", "--print-config")
    assert_one_line(run, "environment: CHAIRLIFT_CPU: expected one of amx,", "got 'avx1024'")
    assert _core.cpu_features() in list(InstructionSet)


@pytest.mark.parametrize("command", [("serve", "--print-config"), ("plan", "demo")])
def test_an_unknown_variable_is_one_line(
    chairlift: Run, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.setenv("CHAIRLIFT_BATCHNG", "static")
    words = ("no such variable: CHAIRLIFT_BATCHNG", "the nearest is CHAIRLIFT_BATCHING")
    assert_one_line(chairlift(*command), *words)


def test_variables_that_kubernetes_sets_for_a_service_are_none_of_ours(
    chairlift: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for service in ("CHAIRLIFT", "CHAIRLIFT_GATEWAY"):
        monkeypatch.setenv(f"{service}_SERVICE_HOST", "10.0.0.11")
        monkeypatch.setenv(f"{service}_SERVICE_PORT", "50051")
        monkeypatch.setenv(f"{service}_SERVICE_PORT_GRPC", "50051")
        monkeypatch.setenv(f"{service}_PORT", "tcp://10.0.0.11:50051")
        monkeypatch.setenv(f"{service}_PORT_50051_TCP", "tcp://10.0.0.11:50051")
        monkeypatch.setenv(f"{service}_PORT_50051_TCP_ADDR", "10.0.0.11")
    printed(chairlift)
    monkeypatch.setenv("CHAIRLIFT_PORT", "50051")
    assert_one_line(chairlift("serve", "--print-config"), "no such variable: CHAIRLIFT_PORT")


def test_every_variable_of_every_command_is_known() -> None:
    def variables(command: object) -> set[str]:
        found = set()
        for parameter in getattr(command, "params", ()):
            if parameter.envvar:
                found.add(parameter.envvar)
        return found.union(*map(variables, getattr(command, "commands", {}).values()))

    assert variables(typer.main.get_command(app)) <= known_variables()


def test_the_log_lists_at_the_start_what_is_not_default(tiny_folder: Path, file: Path) -> None:
    secret = file.with_name("tokens")
    secret.touch(0o600)
    secret.write_text("ann:ann-0123456789abcdef\n")
    file.write_text('log-format = "json"\n')
    command = ["-m", "chairlift", "serve", tiny_folder, "--config", file, "--listen", "nonsense"]
    variables = environment() | {"CHAIRLIFT_MAX_NUM_SEQS": "3"}
    run = run_python(*command, "--auth-tokens", secret, env=variables)
    assert run.returncode == 2
    *records, error = run.stderr.splitlines()
    assert error.startswith("error: --listen: ")
    lines = {}
    for record in map(json.loads, records):
        assert (record["message"], record["level"]) == ("setting", "info")
        lines[record["name"]] = (record["value"], record["source"])
    assert lines == {
        "model": (str(tiny_folder), "argument"),
        "listen": ("nonsense", "--listen"),
        "auth-tokens": (str(secret), "--auth-tokens"),
        "max-num-seqs": (3, "CHAIRLIFT_MAX_NUM_SEQS"),
        "log-format": ("json", f"{file}:1"),
    }
    assert "0123456789" not in run.stderr + run.stdout


def test_what_a_hybrid_lacks_is_off_unless_an_option_asks_for_it() -> None:
    own = typer.Typer()
    seen: list[EngineConfig] = []

    @own.command()
    @engine_options()
    def command(*, settings: dict[str, Any]) -> None:
        seen.append(engine_config(**settings))

    runner = CliRunner()
    assert runner.invoke(own, []).exit_code == 0
    assert hybrid_settings(seen[-1]).drafts is Drafts.OFF
    assert runner.invoke(own, ["--no-prefix-cache", "--drafts", "off"]).exit_code == 0
    assert not hybrid_settings(seen[-1]).prefix_cache
    assert runner.invoke(own, ["--drafts", "lookup"]).exit_code == 0
    with pytest.raises(ConfigError, match=r"^drafts: expected off"):
        hybrid_settings(seen[-1])
