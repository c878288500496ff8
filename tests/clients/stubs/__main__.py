"""`make check-stubs`: builds the programs of clients/ and runs their scenarios against one server.

    python -m tests.clients.stubs TOOLS [LANGUAGE]...

A program that cannot be built is an error.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.server.certificates import Certificates

CLIENTS = Path(__file__).parents[3] / "clients"
EXPECTED = (CLIENTS / "expected.txt").read_text(encoding="utf-8")
TOKEN = "stubs-" + "0" * 32
BUF = ["npx", "--yes", "--loglevel=error", "--package=@bufbuild/buf@1.75.0", "--", "buf"]

MAVEN = ["mvn", "--quiet", "--batch-mode"]

BUILDS = {
    "go": [[*BUF, "generate"], ["go", "vet", "."], ["go", "build", "-o", "scenarios", "."]],
    "java": [[*MAVEN, "compile"]],
    "rust": [["cargo", "build", "--quiet", "--locked"]],
    "typescript": [["npm", "ci", "--silent", "--no-audit"], ["npm", "run", "--silent", "build"]],
}
PROGRAMS = {
    "go": ["./scenarios"],
    "java": [*MAVEN, "exec:java"],
    "rust": ["target/debug/chairlift-scenarios"],
    "typescript": ["node", "dist/main.js"],
}
WITHIN_S = 120


def main() -> None:
    tools = Path(sys.argv[1]).resolve()
    languages = sys.argv[2:] or list(BUILDS)
    environment = {**os.environ, "npm_config_cache": str(tools / "npm")}
    for language in languages:
        for command in BUILDS[language]:
            subprocess.run(command, cwd=CLIENTS / language, env=environment, check=True)
    with serving() as options:
        for language in languages:
            check(language, options)


@contextmanager
def serving() -> Iterator[list[str]]:
    """Serve the demo model with TLS, a token and a rate; yield the options of a program."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        certificates = Certificates(folder / "tls")
        tokens = folder / "tokens"
        tokens.write_text(f"stubs:{TOKEN}\n", encoding="utf-8")
        tokens.chmod(0o600)
        command = [sys.executable, "-m", "chairlift", "serve", "--log-level", "error"]
        command += ["--listen", "127.0.0.1:0", "--tenant-rate", "20", "--auth-tokens", str(tokens)]
        command += ["--tls-cert", str(certificates.cert), "--tls-key", str(certificates.key)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            try:
                lines = iter(server.stdout.readline, "")
                address = next((a.split()[2] for a in lines if a.startswith("serving on")), "")
                assert address, "the server did not start"
                authority = str(certificates.ca_file)
                yield ["--address", address, "--tls-ca", authority, "--token", TOKEN]
            finally:
                server.terminate()


def check(language: str, options: list[str]) -> None:
    """Run a program; what it prints must be what is expected."""
    command = [*PROGRAMS[language], *options]
    if language == "java":
        command = [*PROGRAMS[language], f"-Dexec.args={' '.join(options)}"]
    began = time.monotonic()
    run = subprocess.run(
        command,
        cwd=CLIENTS / language,
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    # Maven puts escape sequences around what a program prints, whatever its options say.
    lines = re.sub(r"\x1b\[[0-9;]*m", "", run.stdout).splitlines()
    printed = "".join(f"{line}\n" for line in lines if line)
    if run.returncode or printed != EXPECTED:
        sys.exit(f"{language}: expected\n{EXPECTED}got {run.returncode}\n{printed}{run.stderr}")
    print(f"{language}: {len(EXPECTED.splitlines())} scenarios in {time.monotonic() - began:.1f} s")


if __name__ == "__main__":
    main()
