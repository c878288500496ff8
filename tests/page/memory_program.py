"""Watches the live page for a while, and prints the memory of the browser as lines of JSON.

    python memory_program.py URL SECONDS EACH_S

Needs playwright alone. A line has the JavaScript heap after a collection and the anonymous memory
of the page's process, in MiB, and the numbers of nodes and listeners.
"""

import json
import os
import sys
import time

from browser_program import opened, until_shown
from playwright.sync_api import sync_playwright
from process_memory import anonymous_mib

MIB = 1 << 20


def main() -> None:
    url, seconds, each_s = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=os.environ["CHROMIUM"], args=["--no-sandbox"]
        )
        processes = browser.new_browser_cdp_session()
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
                known = processes.send("SystemInfo.getProcessInfo")["processInfo"]
                renderers = [found["id"] for found in known if found["type"] == "renderer"]
                line = {
                    "heap": named["JSHeapUsedSize"] / MIB,
                    "page": max(map(anonymous_mib, renderers)),
                    "nodes": named["Nodes"],
                    "listeners": named["JSEventListeners"],
                    "tiles": page.locator("#tiles b").all_inner_texts(),
                }
                print(json.dumps(line), flush=True)
        browser.close()


if __name__ == "__main__":
    main()
