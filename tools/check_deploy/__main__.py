"""`make check-deploy`: what can be known about deploy/ without a cluster and without Docker.

python -m tools.check_deploy TOOLS [--crds FOLDER] [kubernetes|systemd ...]
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
DEPLOY: Final = ROOT / "deploy"
VALIDATOR: Final = "kubernetes-validate==1.37.0"


def main() -> None:
    """Run the parts that are named, or all."""
    parser = argparse.ArgumentParser()
    parser.add_argument("tools", type=Path)
    parser.add_argument("--crds", type=Path)
    parser.add_argument("parts", nargs="*")
    options = parser.parse_args()
    tools = options.tools.resolve()
    if not options.parts or "kubernetes" in options.parts:
        print("==> kubernetes", flush=True)
        kubernetes(tools, options.crds)
    if not options.parts or "systemd" in options.parts:
        print("==> systemd", flush=True)
        systemd(tools)


def kubernetes(tools: Path, crds: Path | None) -> None:
    """Validate the manifests, in an environment of its own.

    Args:
        tools: Where it is installed.
        crds: A folder of CustomResourceDefinitions, which a manifest has to satisfy, too.
    """
    folder = tools / "kubernetes-validate"
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", VALIDATOR], check=True)
    command: list[str | Path] = [python, "-m", "tools.check_deploy.manifests"]
    command.append(DEPLOY / "kubernetes")
    if crds is not None:
        command.append(crds.resolve())
    subprocess.run(command, check=True, env=os.environ | {"PYTHONPATH": str(ROOT)})


def systemd(tools: Path) -> None:
    """Verify the unit, with a program in the place of the one that it starts."""
    if shutil.which("systemd-analyze") is None:
        print("    skipped: no systemd-analyze")
        return
    folder = tools / "systemd"
    folder.mkdir(parents=True, exist_ok=True)
    text = (DEPLOY / "systemd" / "chairlift.service").read_text(encoding="utf-8")
    unit = folder / "chairlift.service"
    unit.write_text(text.replace("/opt/chairlift/bin/chairlift", "/bin/true"), encoding="utf-8")
    subprocess.run(["systemd-analyze", "verify", "--man=no", unit], check=True)


if __name__ == "__main__":
    main()
