"""`serve`, `generate` and `chat` with TLS and a token, as people type them."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Run, environment
from tests.forked import Python
from tests.server.certificates import Certificates

TOKEN = "ann-0123456789abcdef"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("security") / "tls")


def serve_command(folder: Path, certificates: Certificates, listen: str) -> list[str]:
    tokens = certificates.ca_file.with_name("tokens")
    tokens.touch(0o600)
    tokens.write_text(f"ann:{TOKEN}\n")
    command = ["-m", "chairlift", "serve", str(folder)]
    command += ["--listen", listen, "--max-num-seqs", "4", "--auth-tokens", str(tokens)]
    return [*command, "--tls-cert", str(certificates.cert), "--tls-key", str(certificates.key)]


@pytest.fixture(scope="module")
def guarded(tiny_folder: Path, certificates: Certificates) -> Iterator[str]:
    """Where `chairlift serve` listens, on all addresses, with TLS and a token."""
    command = serve_command(tiny_folder, certificates, "0.0.0.0:0")
    with Python(*command, stdout=subprocess.PIPE, text=True, env=environment()) as process:
        assert process.stdout is not None
        process.stdout.readline()
        port = process.stdout.readline().split()[2].rpartition(":")[2]
        yield f"127.0.0.1:{port}"
        process.terminate()
        assert process.wait(30) == 0


def test_a_handshake_that_fails_writes_no_line(
    tiny_folder: Path, certificates: Certificates
) -> None:
    # gRPC reads its variables when it is imported: an interpreter of its own.
    command = [sys.executable, *serve_command(tiny_folder, certificates, "127.0.0.1:0")]
    variables = {k: v for k, v in environment().items() if k != "GRPC_VERBOSITY"}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=variables) as process:
        assert process.stdout is not None
        process.stdout.readline()
        port = process.stdout.readline().split()[2].rpartition(":")[2]
        with socket.create_connection(("127.0.0.1", int(port)), timeout=30) as client:
            client.sendall(b"GET / HTTP/1.1\r\n\r\n")
            while client.recv(1024):
                pass
        process.terminate()
        _, errors = process.communicate(timeout=30)
    assert not [line for line in errors.splitlines() if " chairlift." not in line]


def test_clients_with_a_token_are_answered(
    chairlift: Run, guarded: str, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHAIRLIFT_TOKEN", TOKEN)
    options = ("--target", guarded, "--tls-ca", certificates.ca_file, "--max-tokens", "4")
    run = chairlift("generate", "one", *options)
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.strip()
    talk = chairlift("chat", *options, stdin="one\n")
    assert (talk.returncode, talk.stderr) == (0, "")
    load = chairlift("bench", "serve", *options, "--requests", 2, "--json")
    assert (load.returncode, load.stderr) == (0, "")
    assert '"failed": 0' in load.stdout


@pytest.mark.parametrize("token", ["", "eve-0123456789abcdef"])
def test_a_wrong_token_is_one_line_without_the_token(
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


@pytest.mark.parametrize("chairlift", ["in its own process"], indirect=True)
def test_each_broken_connection_is_one_line_that_says_what_is_wrong(
    chairlift: Run,
    guarded: str,
    target: str,
    certificates: Certificates,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    other = Certificates(tmp_path_factory.mktemp("other") / "tls")
    port = guarded.rpartition(":")[2]
    trusted, distrusted = ("--tls-ca", certificates.ca_file), ("--tls-ca", other.ca_file)
    expected = "expected HOST:PORT or unix:PATH, got "
    broken = {
        (guarded,): "closed the connection before any answer, as one with TLS does (tls_ca)",
        (target, *trusted): "does not speak TLS, and this client does: leave out tls_ca",
        (guarded, *distrusted): "certificate is not of an authority in tls_ca",
        (f"127.0.0.2:{port}", *trusted): "certificate is for another host name",
        (f"http://{target}",): f"--target: {expected}'http://{target}': leave out the scheme",
        ("127.0.0.1",): f"--target: {expected}'127.0.0.1': the port is missing",
        ("127.0.0.1:1",): "no server at 127.0.0.1:1: `chairlift serve` starts one",
    }
    for arguments, cause in broken.items():
        run = chairlift("generate", "one", "--target", *arguments)
        code = 2 if "--target: " in run.stderr else 1
        assert (run.returncode, run.stdout, run.stderr.count("\n")) == (code, "", 1), run
        assert run.stderr.startswith("error: ")
        assert cause in run.stderr


def test_an_open_listener_is_refused_with_the_options_that_are_missing(chairlift: Run) -> None:
    run = chairlift("serve", "--listen", "0.0.0.0:50051")
    assert (run.returncode, run.stderr.count("\n")) == (2, 1)
    for option in ("--tls-cert", "--tls-key", "--auth-tokens", "--tls-client-ca"):
        assert option in run.stderr
