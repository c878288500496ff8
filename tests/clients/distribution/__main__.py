"""`make check-client-wheel`: the wheel of `chairlift-client`, in an environment of its own.

python -m tests.clients.distribution UV TOOLS
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[3]
MAX_BYTES = 100 * 10**6

IMPORTS = """
import sys
import chairlift_client
from chairlift.client import connect, connect_async
from chairlift.v1 import generation_pb2_grpc, server_pb2, tokenizer_pb2
assert connect is chairlift_client.connect
heavy = {"torch", "numpy", "tokenizers", "chairlift._core"} & set(sys.modules)
assert not heavy, heavy
with connect(sys.argv[1]) as client:
    generation = client.generate("Once upon a time", max_tokens=8, ignore_eos=True)
    assert generation.all()[0].num_tokens == 8
"""


def main() -> None:
    uv, tools = sys.argv[1], Path(sys.argv[2]).resolve()
    with tempfile.TemporaryDirectory() as folder:
        address = f"unix:{folder}/server.sock"
        environment = tools / "client-wheel"
        install(uv, Path(folder), environment)
        command = [sys.executable, "-m", "chairlift", "serve", "--log-level", "error"]
        with subprocess.Popen(
            [*command, "--listen", address], stdout=subprocess.PIPE, text=True
        ) as server:
            assert server.stdout is not None
            try:
                next(line for line in iter(server.stdout.readline, "") if "serving on" in line)
                use(environment / "bin", address)
            finally:
                server.terminate()


def install(uv: str, folder: Path, environment: Path) -> None:
    """Build the wheel and install it; print what it takes."""
    subprocess.run([uv, "venv", "--quiet", "--clear", environment], check=True)
    build = [uv, "build", "--quiet", "--wheel", "--out-dir", folder, ROOT / "clients" / "python"]
    subprocess.run(build, check=True)
    (wheel,) = folder.glob("chairlift_client-*.whl")
    python = environment / "bin" / "python"
    install = [uv, "pip", "install", "--quiet", "--link-mode", "copy", "--python", python]
    subprocess.run([*install, wheel], check=True)
    files = [path for path in (environment / "lib").rglob("*") if path.is_file()]
    num_bytes = sum(path.stat().st_size for path in files if not path.is_symlink())
    print(f"installed: {num_bytes / 10**6:.0f} MB, with all it needs")
    assert num_bytes < MAX_BYTES
    # For `bench serve` alone, and not counted.
    subprocess.run([*install, f"{wheel}[bench]"], check=True)


def use(bin_folder: Path, address: str) -> None:
    """Run every command, and a program."""
    subprocess.run([bin_folder / "python", "-I", "-c", IMPORTS, address], check=True)
    target = ["--target", address]
    program = bin_folder / "chairlift-client"
    story = run([program, "generate", "Once upon a time", "--max-tokens", "8", "--json", *target])
    assert json.loads(story)["text"]
    assert run([program, "chat", *target], typed="Why is the sky blue?\n").strip()
    assert run([program, "top", "--once", *target]).strip()
    load = ["bench", "serve", "--requests", "4", "--max-tokens", "8", "--json", *target]
    assert run([program, *load]).strip()
    print("generate, chat, top and bench serve run")


def run(command: list[object], typed: str = "") -> str:
    """Run a command; return what it prints."""
    done = subprocess.run(
        [str(part) for part in command],
        input=typed,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


if __name__ == "__main__":
    main()
