"""llama.cpp: its server with one slot per row, over its HTTP API."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from protocol import Job, print_result, read_job

HOME = Path(sys.prefix)
START_TIMEOUT_S = 120
OUTTYPES = {"float32": "f32", "bfloat16": "bf16", "int8": "q8_0"}
"""What its converter writes; a second tool makes other formats of bfloat16."""


def convert(job: Job) -> None:
    """Write a GGUF file of the checkpoint: Q8_0 for int8, Q4_0 for int4, else the format named."""
    partial = job.converted.with_name(job.converted.name + ".partial")
    script = HOME / "llama.cpp" / "convert_hf_to_gguf.py"
    outtype = OUTTYPES.get(job.dtype, "bf16")
    options = ["--outtype", outtype, "--outfile", partial]
    if "Qwen3_5" in (job.model / "config.json").read_text(encoding="utf-8"):
        # The made checkpoint has no layers of multi-token prediction.
        options.append("--no-nextn")
    call([sys.executable, script, *options, job.model])
    if job.dtype not in OUTTYPES:
        to = "Q4_0" if job.dtype == "int4" else job.dtype
        whole = partial.rename(partial.with_name(partial.name + ".bf16"))
        call([HOME / "build" / "bin" / "llama-quantize", whole, partial, to])
        whole.unlink()
    partial.rename(job.converted)


def call(command: list[str | Path]) -> None:
    """Run a tool, which writes to standard error only."""
    subprocess.run(command, check=True, stdout=sys.stderr)


def start(job: Job) -> tuple["subprocess.Popen[bytes]", str]:
    """Start the server and wait until it is healthy; return it and its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    longest = max(len(prompt) + num_output for prompt, num_output in job.work)
    context = job.rows * (-(-longest // 256) * 256)
    server = [HOME / "build" / "bin" / "llama-server", "--model", job.converted]
    options = {
        "--parallel": job.rows,
        "--ctx-size": context,
        "--threads": job.threads,
        "--flash-attn": "on",
        "--port": port,
    }
    if job.kv_cache_dtype == "int8":
        options |= {"--cache-type-k": "q8_0", "--cache-type-v": "q8_0"}
    words = [str(word) for option in options.items() for word in option]
    process = subprocess.Popen([*server, *words], stdout=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            urllib.request.urlopen(f"{address}/health", timeout=1)
        except OSError:
            time.sleep(0.2)
        else:
            return process, address
    process.kill()
    sys.exit("llama-server did not start")


def run(address: str, work: list[tuple[list[int], int]]) -> int:
    """Send all of the work at once and count the tokens."""

    def generate(item: tuple[list[int], int]) -> int:
        body = {
            "prompt": item[0],
            "n_predict": item[1],
            "ignore_eos": True,
            "temperature": 0,
            "cache_prompt": False,
        }
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(
            f"{address}/completion", json.dumps(body).encode(), headers
        )
        with urllib.request.urlopen(request) as response:
            return int(json.load(response)["tokens_predicted"])

    with ThreadPoolExecutor(len(work)) as pool:
        return sum(pool.map(generate, work))


def main() -> None:
    """Convert the model if needed, warm up and measure."""
    # The loopback never goes through a proxy.
    os.environ["no_proxy"] = "127.0.0.1"
    job = read_job()
    if not job.converted.exists():
        convert(job)
    if job.convert_only:
        return
    process, address = start(job)
    try:
        run(address, job.warm_up)
        began = time.perf_counter()
        output_tokens = run(address, job.work)
        print_result(output_tokens, time.perf_counter() - began)
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    main()
