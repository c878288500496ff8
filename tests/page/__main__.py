"""`make check-page`: the live page in a real Chromium, in every state, size and scheme.

    python -m tests.page TOOLS [CHECK...]

The screenshots are in TOOLS/page/shots, to be looked at.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.page.stand_in import SCENES

HERE = Path(__file__).parent
PLAYWRIGHT = "playwright>=1.60,<2"
AXE = "axe-core@4.14.1"


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
    """Serve the scenes and run the checks in a browser."""
    (folder / "shots").mkdir(exist_ok=True)
    command = [sys.executable, "-m", "tests.page.stand_in", *scenes]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            urls = ["=".join(server.stdout.readline().split()) for _ in scenes]
            program = [folder / "bin" / "python", HERE / "browser_program.py", folder / "shots"]
            axe = folder / "node_modules" / "axe-core" / "axe.min.js"
            environment = os.environ | {"CHROMIUM": chromium() or ""}
            subprocess.run([*program, axe, *checks, "--", *urls], check=True, env=environment)
        finally:
            # The stand-ins serve until their input ends.
            server.stdin.close()
            server.terminate()


def main() -> None:
    if chromium() is None:
        message = "check-page: expected Chromium: on Debian `apt install chromium`"
        raise SystemExit(message)
    folder = Path(sys.argv[1]) / "page"
    install(folder)
    browse(folder, sys.argv[2:], [*SCENES])


if __name__ == "__main__":
    main()
