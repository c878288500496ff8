"""`make check-clients`: real clients in environments of their own, against a server of the demo.

    python -m tests.clients.openai TOOLS [CLIENT...]

A client whose package cannot be installed is an error. What each program shows is in its file.
"""

import contextlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from chairlift.demo import MODEL_DIR

from tests.clients.openai import codex

HERE = Path(__file__).parent


class PythonClient(NamedTuple):
    """A program and the packages that it needs."""

    program: str
    packages: tuple[str, ...]
    arguments: tuple[str, ...] = ()
    """Behind the URL."""


PYTHON_CLIENTS = {
    "openai-2": PythonClient("openai_program.py", ("openai==2.8.1",)),
    "openai-3": PythonClient("openai_program.py", ("openai>=3,<4",)),
    "langchain": PythonClient("langchain_program.py", ("langchain-openai>=1.7,<2",)),
    "litellm": PythonClient("litellm_program.py", ("litellm>=1.110,<2",)),
    "instructor": PythonClient("instructor_program.py", ("instructor>=1.17,<2",)),
    "openai-agents": PythonClient("agents_program.py", ("openai-agents>=0.24,<1",)),
    "pydantic-ai": PythonClient("pydantic_ai_program.py", ("pydantic-ai-slim[openai]>=2.68,<3",)),
    "lm-eval": PythonClient(
        "lm_eval_program.py",
        ("lm-eval[api]>=0.4.13,<0.5", "transformers>=5,<6"),
        (str(MODEL_DIR),),
    ),
    # The tool itself needs many packages, and its requests are two.
    "guidellm": PythonClient("guidellm_program.py", ()),
}
NPM_CLIENTS = {
    "openai-npm": ("openai_program.mjs", ("openai@6",)),
    "ai-sdk": (
        "ai_sdk_program.mjs",
        ("ai@7", "@ai-sdk/openai@4", "@ai-sdk/openai-compatible@3", "zod@4"),
    ),
}
CODEX = "@openai/codex@0.171.0"
CLIENTS = [*PYTHON_CLIENTS, *NPM_CLIENTS, "codex"]


def main() -> None:
    tools, chosen = Path(sys.argv[1]) / "clients", sys.argv[2:] or CLIENTS
    unknown = set(chosen) - set(CLIENTS)
    assert not unknown, f"expected some of {CLIENTS}, got {unknown}"
    with served("demo") as url:
        for name in chosen:
            if name in PYTHON_CLIENTS:
                run_python(tools / name, PYTHON_CLIENTS[name], url)
            elif name in NPM_CLIENTS:
                run_npm(tools / "npm", *NPM_CLIENTS[name], url)
    if "codex" in chosen:
        npm_install(tools / "npm", (CODEX,))
        # The context of the demo model is too short for the tools that Codex describes.
        with served("smollm2") as url:
            codex.check((tools / "npm" / "node_modules" / ".bin" / "codex").resolve(), url)


@contextlib.contextmanager
def served(model: str, *options: str) -> Iterator[str]:
    """Serve a model that takes tools; yield the URL of its API."""
    command = [sys.executable, "-m", "chairlift", "serve", model, "--log-level", "error"]
    command += ["--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0"]
    command += ["--tool-format", "hermes", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            lines = iter(server.stdout.readline, "")
            yield next(line.split()[3] for line in lines if line.startswith("OpenAI API"))
        finally:
            server.terminate()


def run_python(folder: Path, client: PythonClient, url: str) -> None:
    """Install the packages, unless they are, and run the program."""
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    if client.packages:
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *client.packages], check=True)
    subprocess.run([python, HERE / client.program, url, *client.arguments], check=True)


def run_npm(folder: Path, program: str, packages: tuple[str, ...], url: str) -> None:
    """Do the same for a program of Node.js."""
    npm_install(folder, packages)
    # A module finds packages beside itself alone.
    shutil.copyfile(HERE / program, folder / program)
    subprocess.run(["node", folder / program, url], check=True)


def npm_install(folder: Path, packages: tuple[str, ...]) -> None:
    """Install packages of npm, unless they are."""
    folder.mkdir(parents=True, exist_ok=True)
    command = ["npm", "install", "--silent", "--no-audit", "--no-save", *packages]
    subprocess.run(command, cwd=folder, check=True)


if __name__ == "__main__":
    main()
