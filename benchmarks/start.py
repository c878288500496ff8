"""How long a server takes from its command to the first token at a client.

    python -m benchmarks.start [MODEL] [--rounds N]

Each round is a new process. Anonymous and resident memory are those of the server after that token.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from chairlift.api.errors import RequestError, ServerError
from chairlift.client import connect

PROMPT = "The capital of France is"
WITHIN_S = 120


def main() -> None:
    """Print a line per round."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.start")
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory() as folder:
            print(measure(options.model, Path(folder) / "s.sock"), flush=True)


def measure(model: str, socket: Path) -> str:
    """Serve a model on a socket until a client has a token, and return the figures."""
    began = time.monotonic()
    command = [sys.executable, "-m", "chairlift", "serve", model]
    command += ["--listen", f"unix:{socket}", "--log-level", "error"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
        try:
            while not has_answered(socket):
                if server.poll() is not None or time.monotonic() - began > WITHIN_S:
                    sys.exit("the server did not answer")
                time.sleep(0.01)
            took = time.monotonic() - began
            return f"{model}: {took:.2f} s to the first token; {memory_of(server.pid)}"
        finally:
            server.terminate()


def has_answered(socket: Path) -> bool:
    """Return whether a server that serves by now has sent a token."""
    if not socket.exists():
        return False
    try:
        with connect(f"unix:{socket}") as client:
            client.generate(PROMPT, max_tokens=1, temperature=0.0).text()
    except (RequestError, ServerError):
        return False
    return True


def memory_of(pid: int) -> str:
    """Return the resident memory of a process, and the anonymous part of it."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    kib = {line.split(":")[0]: int(line.split()[1]) for line in lines if "kB" in line}
    return f"resident {kib['VmRSS'] / 1e3:.0f} MB, anonymous {kib['RssAnon'] / 1e3:.0f} MB"


if __name__ == "__main__":
    main()
