"""`make check-clients`: real clients in environments of their own, against one server.

    python -m tests.clients.openai TOOLS

A client whose package cannot be installed is an error.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
PYTHON_CLIENTS = {
    "openai==2.8.1": "program.py",
    "openai>=3,<4": "program.py",
    "langchain-openai>=1,<2": "langchain_program.py",
}
NPM_CLIENT = "openai@6"


def main() -> None:
    tools = Path(sys.argv[1]) / "clients"
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "chairlift", "serve", "--log-level", "error"]
        command += ["--listen", f"unix:{folder}/server.sock", "--http-listen", "127.0.0.1:0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            try:
                lines = iter(server.stdout.readline, "")
                url = next(line.split()[3] for line in lines if line.startswith("OpenAI API"))
                run_all(tools, url)
            finally:
                server.terminate()


def run_all(tools: Path, url: str) -> None:
    """Install each client, unless it is, and run its program."""
    for package, program in PYTHON_CLIENTS.items():
        name = "".join(c if c.isalnum() else "-" for c in package)
        python = tools / name / "bin" / "python"
        if not python.exists():
            subprocess.run([sys.executable, "-m", "venv", tools / name], check=True)
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", package]
        subprocess.run(pip, check=True)
        subprocess.run([python, HERE / program, url], check=True)
    npm = tools / "npm"
    npm.mkdir(parents=True, exist_ok=True)
    subprocess.run(["npm", "install", "--silent", "--no-audit", NPM_CLIENT], cwd=npm, check=True)
    # A module finds packages beside itself alone.
    program = npm / "program.mjs"
    program.write_text((HERE / "program.mjs").read_text(encoding="utf-8"), encoding="utf-8")
    subprocess.run(["node", program, url], check=True)


if __name__ == "__main__":
    main()
