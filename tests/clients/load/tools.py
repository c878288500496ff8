"""The load tools of others: what each needs, how it is called, and its figures by our names."""

import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

Figures = Mapping[str, float]


class Load(NamedTuple):
    """What is sent: requests of equal lengths, so many at a time."""

    num_requests: int
    num_prompt: int
    num_output: int
    concurrency: int


class Server(NamedTuple):
    """A server of the OpenAI API."""

    url: str
    model: Path
    """Its folder, whose name is the model's."""


class Tool(NamedTuple):
    """A tool in an environment of its own."""

    requirement: str
    run: Callable[[Path, Server, Load], Figures]
    """Takes the folder of the environment, the server and the load."""
    definitions: tuple[str, ...]
    """What differs from ours."""


def called(command: list[object], more: Mapping[str, str] | None = None) -> None:
    """Run a program, with more variables in its environment."""
    environment = os.environ | {"TOKENIZERS_PARALLELISM": "false"} | (more or {})
    run = subprocess.run(
        [str(word) for word in command],
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-4000:]


def guidellm(environment: Path, server: Server, load: Load) -> Figures:
    """Return the figures of guidellm."""
    lengths = f"prompt_tokens={load.num_prompt},output_tokens={load.num_output}"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.json"
        options = {
            "--backend": f"kind=openai_http,target={server.url.removesuffix('/v1')},"
            "request_format=/v1/completions",
            "--profile": f"kind=concurrent,streams={load.concurrency}",
            "--constraint": f"kind=max_requests,count={load.num_requests}",
            "--tokenizer": f"kind=huggingface_auto,model={server.model}",
            "--data": f"kind=synthetic_text,{lengths}",
            "--output": f"kind=json,path={path}",
        }
        words = [word for option in options.items() for word in option]
        program = environment / "bin" / "python"
        command = [program, "-m", "guidellm", "run", *words, "--disable-console"]
        called(command, {"HF_HUB_OFFLINE": "1"})
        (benchmark,) = json.loads(path.read_text())["benchmarks"]
    metrics = benchmark["metrics"]
    totals = metrics["request_totals"]
    assert totals["successful"] == load.num_requests, totals
    assert metrics["output_token_count"]["successful"]["mean"] == load.num_output

    def mean(name: str) -> float:
        return float(metrics[name]["successful"]["mean"])

    return {
        "TTFT mean, ms": mean("time_to_first_token_ms"),
        "TPOT mean, ms": mean("inter_token_latency_ms"),
        "latency mean, ms": 1e3 * mean("request_latency"),
        "output tokens/s": mean("output_tokens_per_second"),
    }


def aiperf(environment: Path, server: Server, load: Load) -> Figures:
    """Return the figures of aiperf."""
    with tempfile.TemporaryDirectory() as folder:
        options = {
            "--model": server.model.name,
            "--url": server.url.removesuffix("/v1"),
            "--endpoint-type": "completions",
            "--tokenizer": server.model,
            "--isl": load.num_prompt,
            "--isl-stddev": 0,
            "--osl": load.num_output,
            "--concurrency": load.concurrency,
            "--request-count": load.num_requests,
            "--artifact-dir": folder,
            "--ui": "none",
        }
        words = [word for option in options.items() for word in option]
        words += ["--streaming", "--use-server-token-count", "--use-legacy-max-tokens"]
        words += ["--no-server-metrics", "--no-gpu-telemetry"]
        words += ["--extra-inputs", "ignore_eos:true", "--extra-inputs", "temperature:0"]
        called([environment / "bin" / "aiperf", "profile", *words])
        (path,) = Path(folder).rglob("profile_export_aiperf.json")
        found: dict[str, Any] = json.loads(path.read_text())

    def mean(name: str) -> float:
        return float(found[name]["avg"])

    assert mean("request_count") == load.num_requests, found["request_count"]
    assert mean("output_sequence_length") == load.num_output, found["output_sequence_length"]
    return {
        "TTFT mean, ms": mean("time_to_first_token"),
        "TPOT mean, ms": mean("inter_token_latency"),
        "latency mean, ms": mean("request_latency"),
        "output tokens/s": mean("output_token_throughput"),
    }


TOOLS = {
    "guidellm": Tool(
        "guidellm>=0.8.1,<0.9",
        guidellm,
        (
            "guidellm: its ITL is our TPOT; its own TPOT has the time to the first token in it. "
            "tokens/s is a mean over its whole run.",
        ),
    ),
    "aiperf": Tool(
        "aiperf>=0.13,<0.14",
        aiperf,
        ("aiperf: its ITL is our TPOT; what we call ITL is its inter-chunk latency.",),
    ),
}
