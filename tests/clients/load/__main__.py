"""`make check-load`: guidellm beside `chairlift bench serve`, on one server of the demo model.

    python -m tests.clients.load UV TOOLS

guidellm, in an environment of its own, and `chairlift bench serve --url` send the same load in
turns: requests of equal lengths, so many at a time. The figures stand side by side, with the
differences of their definitions. Both must have all answers in full; how near the figures are is
to be read, since a tool that shares the machine with the server takes time from it.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from chairlift.bench.workload import Item
from chairlift.cli.bench.http_stream import url_of
from chairlift.cli.bench.openai_load import send_openai_load
from chairlift.cli.bench.sent_load import figures
from chairlift.demo import MODEL_DIR

from tests.clients.openai.__main__ import served

GUIDELLM = "guidellm>=0.8.1,<0.9"
NUM_PROMPT, NUM_OUTPUT, CONCURRENCY, NUM_REQUESTS, TURNS = 32, 64, 8, 64, 3
DEFINITIONS = (
    "TTFT: from sending to the first event with text, in both.",
    "TPOT: ours is (latency - TTFT) / (tokens - 1), which guidellm calls ITL. Its own TPOT has the "
    "time to the first token in it.",
    "tokens/s: ours over the time from the first request to the last event. guidellm's is a mean "
    "over its whole run.",
)
Figures = Mapping[str, float]


def main() -> None:
    uv, folder = sys.argv[1], Path(sys.argv[2]) / "load"
    python = folder / "bin" / "python"
    if not list(folder.glob("lib/*/site-packages/guidellm")):
        subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, folder], check=True)
        install = [uv, "pip", "install", "--quiet", "--python", python, GUIDELLM]
        subprocess.run(install, check=True)
    with served("demo") as url:
        ours(url)
        runs = [(ours(url), guidellm(python, url)) for _ in range(TURNS)]
    print(*table(runs), "", *DEFINITIONS, sep="\n")


def ours(url: str) -> Figures:
    """Return the figures of our own load."""
    # A prompt of distinct words, so that the prefix cache finds nothing.
    work = [
        Item([(i * 7 + k * (i + 1)) % 97 for k in range(NUM_PROMPT)], NUM_OUTPUT)
        for i in range(NUM_REQUESTS)
    ]
    load = asyncio.run(send_openai_load(url_of(url), "demo", work, concurrency=CONCURRENCY))
    found = figures(load)
    assert found["failed"] == 0, found
    assert found["output_tokens"] == NUM_REQUESTS * NUM_OUTPUT, found
    return {
        "TTFT mean, ms": 1e3 * float(found["ttft_mean_s"]),
        "TPOT mean, ms": 1e3 * float(found["tpot_mean_s"]),
        "latency mean, ms": 1e3 * float(found["latency_mean_s"]),
        "output tokens/s": float(found["tokens_per_s"]),
    }


def guidellm(python: Path, url: str) -> Figures:
    """Return the figures of guidellm by our names."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.json"
        options = {
            "--backend": f"kind=openai_http,target={url.removesuffix('/v1')},"
            "request_format=/v1/completions",
            "--profile": f"kind=concurrent,streams={CONCURRENCY}",
            "--constraint": f"kind=max_requests,count={NUM_REQUESTS}",
            "--tokenizer": f"kind=huggingface_auto,model={MODEL_DIR}",
            "--data": f"kind=synthetic_text,prompt_tokens={NUM_PROMPT},output_tokens={NUM_OUTPUT}",
            "--output": f"kind=json,path={path}",
        }
        words = [word for option in options.items() for word in option]
        environment = os.environ | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        run = subprocess.run(
            [python, "-m", "guidellm", "run", *words, "--disable-console"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert run.returncode == 0, run.stdout + run.stderr
        (benchmark,) = json.loads(path.read_text())["benchmarks"]
    metrics = benchmark["metrics"]
    totals = metrics["request_totals"]
    assert totals["successful"] == NUM_REQUESTS, totals
    assert metrics["output_token_count"]["successful"]["mean"] == NUM_OUTPUT

    def mean(name: str) -> float:
        return float(metrics[name]["successful"]["mean"])

    return {
        "TTFT mean, ms": mean("time_to_first_token_ms"),
        "TPOT mean, ms": mean("inter_token_latency_ms"),
        "latency mean, ms": 1e3 * mean("request_latency"),
        "output tokens/s": mean("output_tokens_per_second"),
    }


def table(runs: list[tuple[Figures, Figures]]) -> Iterator[str]:
    """Yield the median turn of each figure, theirs beside ours, with their ratio."""
    yield (
        f"{NUM_REQUESTS} requests of {NUM_PROMPT} + {NUM_OUTPUT} tokens, {CONCURRENCY} at a time; "
        f"medians of {TURNS} turns, load of the machine {os.getloadavg()[0]:.1f}"
    )
    yield f"{'':20}{'bench serve':>14}{'guidellm':>14}{'ratio':>9}"
    for name in runs[0][0]:
        our, their = (sorted(run[side][name] for run in runs)[TURNS // 2] for side in (0, 1))
        yield f"{name:20}{our:14.1f}{their:14.1f}{their / our:9.2f}"


if __name__ == "__main__":
    main()
