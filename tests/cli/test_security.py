"""`serve`, `generate` and `chat` with TLS and a token, as people type them."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Run, environment
from tests.server.certificates import Certificates

TOKEN = "ann-0123456789abcdef"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("security") / "tls")


@pytest.fixture(scope="module")
def guarded(tiny_folder: Path, certificates: Certificates) -> Iterator[str]:
    """Where `chairlift serve` listens, on all addresses, with TLS and a token."""
    tokens = certificates.ca_file.with_name("tokens")
    tokens.touch(0o600)
    tokens.write_text(f"ann:{TOKEN}\n")
    command = [sys.executable, "-m", "chairlift", "serve", str(tiny_folder)]
    command += ["--listen", "0.0.0.0:0", "--max-num-seqs", "4", "--auth-tokens", str(tokens)]
    command += ["--tls-cert", str(certificates.cert), "--tls-key", str(certificates.key)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as process:
        assert process.stdout is not None
        process.stdout.readline()
        port = process.stdout.readline().split()[2].rpartition(":")[2]
        yield f"127.0.0.1:{port}"
        process.terminate()
        assert process.wait(30) == 0


def test_generate_and_chat_with_a_token_are_answered(
    chairlift: Run, guarded: str, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHAIRLIFT_TOKEN", TOKEN)
    options = ("--target", guarded, "--tls-ca", certificates.ca_file, "--max-tokens", "4")
    run = chairlift("generate", "one", *options)
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.strip()
    talk = chairlift("chat", *options, stdin="one\n")
    assert (talk.returncode, talk.stderr) == (0, "")


@pytest.mark.parametrize("token", ["", "eve-0123456789abcdef"])
def test_a_wrong_token_is_one_line_that_does_not_tell_it(
    chairlift: Run,
    guarded: str,
    certificates: Certificates,
    monkeypatch: pytest.MonkeyPatch,
    token: str,
) -> None:
    monkeypatch.setenv("CHAIRLIFT_TOKEN", token)
    run = chairlift("generate", "one", "--target", guarded, "--tls-ca", certificates.ca_file)
    assert run.returncode == 1
    assert run.stderr.count("\n") == 1
    assert run.stderr.startswith("error: authorization: ")
    assert "0123456789" not in run.stderr + run.stdout


def test_plain_text_gets_one_line(chairlift: Run, guarded: str) -> None:
    run = chairlift("generate", "one", "--target", guarded)
    assert (run.returncode, run.stderr.count("\n")) == (1, 1)


def test_an_open_door_is_refused_with_the_options_that_are_missing(chairlift: Run) -> None:
    run = chairlift("serve", "--listen", "0.0.0.0:50051")
    assert (run.returncode, run.stderr.count("\n")) == (1, 1)
    for option in ("--tls-cert", "--tls-key", "--auth-tokens", "--tls-client-ca"):
        assert option in run.stderr
