"""`make check-page-memory`: the live page of a server with 64 busy rows, for minutes.

    python -m tests.page.memory TOOLS SECONDS

The memory of server and page must not grow: the medians of the second and the last quarter of the
time are compared, since caches fill in the first.
"""

import json
import os
import statistics
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from benchmarks.watching import served
from tests.page.__main__ import HERE, chromium, install
from tests.page.process_memory import anonymous_mib

ROWS = 64
NUM_SAMPLES = 40
MAX_GROWTH = {
    # Share, and what a figure may grow by beside it.
    "server": (0.02, 4.0),
    "heap": (0.05, 0.3),
    "page": (0.1, 8.0),
    "nodes": (0.05, 50.0),
    "listeners": (0.0, 5.0),
}


def main() -> None:
    path = chromium()
    if path is None:
        message = "check-page-memory: expected Chromium: on Debian `apt install chromium`"
        raise SystemExit(message)
    folder, seconds = Path(sys.argv[1]) / "page", float(sys.argv[2])
    install(folder)
    with served("demo", ROWS) as server:
        is_over = threading.Event()
        load = threading.Thread(target=send, args=(server.target, is_over))
        load.start()
        try:
            command = [folder / "bin" / "python", HERE / "memory_program.py", server.page]
            command += [str(seconds), str(seconds / NUM_SAMPLES)]
            samples = watch(command, path, lambda: anonymous_mib(server.process_id))
        finally:
            is_over.set()
            load.join()
    faults = [fault for name in MAX_GROWTH if (fault := judge(samples, name))]
    assert not faults, faults
    busy = statistics.median(int(sample["tiles"][1].split()[0]) for sample in samples)
    assert busy >= 0.9 * ROWS, f"expected {ROWS} busy rows, saw {busy}"


def send(target: str, is_over: threading.Event) -> None:
    """Keep the rows busy, load after load."""
    command = [sys.executable, "-m", "chairlift", "bench", "serve", "--target", target, "--json"]
    command += ["--concurrency", str(ROWS), "--requests", "20000"]
    while not is_over.is_set():
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            while process.poll() is None:
                if is_over.wait(0.2):
                    process.terminate()


def watch(command: list[object], browser: str, server_mib: Callable[[], float]) -> list[dict]:
    """Return what the program prints, with the memory of the server."""
    environment = os.environ | {"CHROMIUM": browser}
    samples = []
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        for line in program.stdout:
            samples.append({"server": server_mib(), **json.loads(line)})
            print(json.dumps(samples[-1]), flush=True)
    assert program.returncode == 0
    return samples


def judge(samples: list[dict], name: str) -> str:
    """Print how a figure grew; return a fault, or nothing."""
    values, quarter = [sample[name] for sample in samples], len(samples) // 4
    before, after = (
        statistics.median(part) for part in (values[quarter : 2 * quarter], values[-quarter:])
    )
    share, least = MAX_GROWTH[name]
    words = f"{name}: {before:.1f} in the second quarter, {after:.1f} in the last"
    print(words, flush=True)
    return words if after > before * (1 + share) + least else ""


if __name__ == "__main__":
    main()
