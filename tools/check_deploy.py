"""`make check-deploy`: what can be known about deploy/ without a cluster and without Docker.

python -m tools.check_deploy TOOLS [kubernetes|systemd ...]
"""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
DEPLOY: Final = ROOT / "deploy"
VALIDATOR: Final = "kubernetes-validate==1.37.0"


def main() -> None:
    """Run the parts that are named, or all."""
    tools, chosen = Path(sys.argv[1]).resolve(), sys.argv[2:]
    for part in (kubernetes, systemd):
        if not chosen or part.__name__ in chosen:
            print(f"==> {part.__name__}", flush=True)
            part(tools)


def kubernetes(tools: Path) -> None:
    """Validate the manifests; the pool is a resource of another project, without a schema there."""
    folder = tools / "kubernetes-validate"
    if not (folder / "bin" / "python").exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = folder / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", VALIDATOR], check=True)
    for name in ("deployment.yaml", "sidecar.yaml"):
        path = DEPLOY / "kubernetes" / name
        subprocess.run([folder / "bin" / "kubernetes-validate", "--strict", path], check=True)


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
