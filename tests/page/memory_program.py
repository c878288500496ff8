"""Watches the live page for a while, and prints the memory of the browser as lines of JSON.

    python memory_program.py URL SECONDS EACH_S

Needs playwright alone. A line has the JavaScript heap after a collection, in MiB, and the numbers
of nodes and listeners of a page that the program drives; and the anonymous memory, in MiB, of the
processes of a second browser that nothing watches: one that is driven keeps all that it receives,
for tools of developers to show.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from browser_program import opened, until_shown
from playwright.sync_api import sync_playwright
from process_memory import anonymous_mib

MIB = 1 << 20


def main() -> None:
    url, seconds, each_s = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
    with sync_playwright() as playwright, unwatched(url) as profile:
        browser = playwright.chromium.launch(
            executable_path=os.environ["CHROMIUM"], args=["--no-sandbox"]
        )
        with opened(browser, url) as page:
            until_shown(page)
            session = page.context.new_cdp_session(page)
            session.send("Performance.enable")
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                page.wait_for_timeout(each_s * 1000)
                session.send("HeapProfiler.collectGarbage")
                metrics = session.send("Performance.getMetrics")["metrics"]
                named = {metric["name"]: metric["value"] for metric in metrics}
                line = {
                    "heap": named["JSHeapUsedSize"] / MIB,
                    "page": sum(map(anonymous_mib, renderers(profile))),
                    "nodes": named["Nodes"],
                    "listeners": named["JSEventListeners"],
                    "tiles": page.locator("#tiles b").all_inner_texts(),
                }
                print(json.dumps(line), flush=True)
        browser.close()


@contextmanager
def unwatched(url: str) -> Iterator[str]:
    """Open a page in a browser of its own; yield the folder of its profile."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [os.environ["CHROMIUM"], "--headless=new", "--no-sandbox"]
        command += [f"--user-data-dir={profile}", url]
        quiet = subprocess.DEVNULL
        with subprocess.Popen(command, stdout=quiet, stderr=quiet) as browser:
            try:
                yield profile
            finally:
                browser.terminate()


def renderers(profile: str) -> list[int]:
    """Return the processes that show pages of a browser."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if b"--type=renderer" in command and profile.encode() in command:
            found.append(int(folder.name))
    return found


if __name__ == "__main__":
    main()
