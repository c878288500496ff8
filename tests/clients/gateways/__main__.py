"""`make check-gateways`: smg, Dynamo's selection, Triton's client, Envoy with a picker: real ones.

    python -m tests.clients.gateways TOOLS [smg] [pairs] [dynamo] [triton] [picker]

A client whose package cannot be installed is an error.
"""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.clients.gateways import dynamo, pairs, picker, proxies, smg

HERE = Path(__file__).parent
TRITON = "tritonclient[grpc]==2.73.0"


def main() -> None:
    tools = Path(sys.argv[1]).resolve() / "clients"
    chosen = sys.argv[2:] or ["smg", "pairs", "dynamo", "triton", "picker"]
    if "triton" in chosen:
        python = environment(tools / "tritonclient", TRITON)
        with served("--protocol", "oip", listen="127.0.0.1:0") as address:
            subprocess.run([python, "-P", HERE / "triton_program.py", address], check=True)
    if "dynamo" in chosen:
        python = environment(tools / "dynamo", dynamo.PACKAGE, "pyzmq")
        dynamo.check(python, [smg.free_port() for _ in range(2)])
    if "picker" in chosen:
        command = proxies.command_in(environment(tools / "envoy", proxies.PACKAGE))
        picker.check(command, environment(tools / "picker", *picker.PACKAGES))
    if "smg" in chosen:
        command = environment(tools / "smg", smg.PACKAGE).with_name("smg")
        protocol = ("--protocol", "vllm", "--kv-events", "grpc", "--metrics-listen")
        with contextlib.ExitStack() as stack:
            ports = [smg.free_port() for _ in range(2)]
            workers = [
                stack.enter_context(running(*protocol, f"127.0.0.1:{port}", listen="127.0.0.1:0"))
                for port in ports
            ]
            smg.check(command, [address for address, _ in workers], ports, workers[0][1].kill)

    if "pairs" in chosen:
        check_pairs(environment(tools / "smg", smg.PACKAGE).with_name("smg"))


def check_pairs(command: Path) -> None:
    """Run the gateway before a prefill and a decode server."""
    ports = [smg.free_port() for _ in range(2)]
    doors = [("--protocol", "vllm", "--metrics-listen", f"127.0.0.1:{port}") for port in ports]
    with running(*doors[0], "--role", "prefill", listen="127.0.0.1:0") as (prefill, process):
        roles = ("--role", "decode", "--prefill-peers", prefill, "--strict-roles")
        with running(*doors[1], *roles, listen="127.0.0.1:0") as (decode, _):
            pairs.check(command, (prefill, ports[0]), (decode, ports[1]), process.kill)


def environment(folder: Path, *packages: str) -> Path:
    """Install packages, unless they are; return the interpreter."""
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages]
    subprocess.run(pip, check=True)
    return python


@contextlib.contextmanager
def served(*options: str, listen: str) -> Iterator[str]:
    """Serve the demo model; yield the address."""
    with running(*options, listen=listen) as (address, _):
        yield address


@contextlib.contextmanager
def running(*options: str, listen: str) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    """Serve the demo model; yield the address and the process."""
    command = [sys.executable, "-m", "chairlift", "serve", "--log-level", "error"]
    command += ["--listen", listen, *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            lines = iter(server.stdout.readline, "")
            address = next(line.split()[2] for line in lines if line.startswith("serving on"))
            yield address, server
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
