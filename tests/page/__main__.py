"""`make check-page`: the live page in a real Chromium, in every state, size and scheme.

    python -m tests.page TOOLS [CHECK...] [SCENE...]

The screenshots are in TOOLS/page/shots, to be looked at.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from chairlift.client import connect

from tests.page.stand_in import SCENES

HERE = Path(__file__).parent
PLAYWRIGHT = "playwright>=1.60,<2"
AXE = "axe-core@4.14.1"
ON_SCENES = (
    *("starts_with_a_button", "sends_prompts", "stops_and_shows_tables", "moves_over_cells"),
    *("connects_again", "asks_for_a_token", "rests_while_hidden", "shows_markup_as_text"),
    *("looks_through_a_lens", "changes_the_theme", "works_without_scripts", "looks"),
)
ON_A_SERVER = "runs_on_a_server"
ON_A_FILE = "turns_the_sliders"
GAIN_PAGE = HERE.parents[1] / "docs" / "figures" / "gain.html"


def chromium() -> str | None:
    """Return the path of a Chromium, if there is one."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


def install(folder: Path) -> None:
    """Install the packages, unless they are."""
    if not (folder / "bin" / "python").exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = [folder / "bin" / "python", "-m", "pip", "install", "--quiet"]
    if not list(folder.glob("lib/*/site-packages/playwright")):
        subprocess.run([*pip, "--disable-pip-version-check", PLAYWRIGHT], check=True)
    if not (folder / "node_modules" / "axe-core").exists():
        command = ["npm", "install", "--silent", "--no-audit", "--no-save", AXE]
        subprocess.run(command, cwd=folder, check=True)


def browse(folder: Path, checks: list[str], scenes: list[str]) -> None:
    """Serve scenes and run checks of them in a browser."""
    command = [sys.executable, "-m", "tests.page.stand_in", *scenes]
    with started(command) as lines:
        program(folder, checks, dict(next(lines).split() for _ in scenes))


@contextlib.contextmanager
def started(command: list[str]) -> Iterator[Iterator[str]]:
    """Run a server; yield the lines that it prints."""
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        try:
            yield iter(server.stdout.readline, "")
        finally:
            server.terminate()


def program(folder: Path, checks: list[str], urls: dict[str, str]) -> dict[str, object]:
    """Run checks in a browser, and return what they print as JSON."""
    (folder / "shots").mkdir(exist_ok=True)
    axe = folder / "node_modules" / "axe-core" / "axe.min.js"
    command = [folder / "bin" / "python", HERE / "browser_program.py", folder / "shots", axe]
    command += [*checks, "--", *(f"{name}={url}" for name, url in urls.items())]
    environment = os.environ | {"CHROMIUM": chromium() or ""}
    printed = {}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as browser:
        assert browser.stdout is not None
        for line in browser.stdout:
            if line.startswith("{"):
                printed |= json.loads(line)
            else:
                print(line, end="", flush=True)
    assert browser.returncode == 0, f"checks failed: {checks}"
    return printed


def check_figures(folder: Path) -> None:
    """Compare the figures of the page of a real server with those of GetLoad."""
    command = [sys.executable, "-m", "chairlift", "serve", "demo", "--max-num-seqs", "4"]
    command += ["--log-level", "error", "--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0"]
    with started(command) as lines:
        served = {words[0]: words for words in map(str.split, until_page(lines))}
        figures = program(folder, [ON_A_SERVER], {"server": served["page"][1].rstrip("/")})
        with connect(served["serving"][2]) as client:
            load = client.load()
    shown = figures["figures"]
    assert isinstance(shown, dict)
    (activity,) = load.tenants
    p50_ms = activity.time_to_first_token_p50.ToMicroseconds() / 1e3
    tiles = [tile.splitlines() for tile in shown["tiles"]]
    assert tiles[1][0].startswith(f"{load.num_running} of 4"), tiles
    assert tiles[2][0].startswith(f"{load.num_waiting}"), tiles
    number, unit, *_ = tiles[3][0].split()
    ttft_ms = float(number.replace(",", "")) * {"ms": 1, "s": 1000}[unit]
    # Two digits are shown.
    assert abs(ttft_ms / p50_ms - 1) < 0.05, (tiles, p50_ms)
    cached = load.num_cached_blocks / load.num_blocks
    assert f"{cached * 100:.1f}".removesuffix(".0") in shown["kvLine"], (shown, cached)
    hits = load.num_prefix_hits / max(1, load.num_prefix_queries)
    assert not load.num_prefix_queries or f"{hits * 100:.0f} %" in shown["kvNote"], (shown, hits)
    print("the figures of the page are those of GetLoad")


def until_page(lines: Iterator[str]) -> Iterator[str]:
    """Yield lines up to that of the page."""
    for line in lines:
        yield line
        if line.startswith("page "):
            return


def main() -> None:
    if chromium() is None:
        message = "check-page: expected Chromium: on Debian `apt install chromium`"
        raise SystemExit(message)
    folder = Path(sys.argv[1]) / "page"
    install(folder)
    scenes = [name for name in sys.argv[2:] if name in SCENES] or [*SCENES]
    checks = [name for name in sys.argv[2:] if name not in SCENES] or [
        *ON_SCENES,
        ON_A_SERVER,
        ON_A_FILE,
    ]
    on_scenes = [name for name in checks if name in ON_SCENES]
    if on_scenes:
        browse(folder, on_scenes, scenes)
    if ON_A_FILE in checks:
        program(folder, [ON_A_FILE], {"gain": GAIN_PAGE.as_uri()})
    if ON_A_SERVER in checks:
        check_figures(folder)


if __name__ == "__main__":
    main()
