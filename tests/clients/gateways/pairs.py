"""The smg gateway before a prefill and a decode server: `--pd-disaggregation`.

Equal answers alone do not show that blocks move, since the decode server could compute the prompt:
the counters of both servers and of the gateway do.
"""

import contextlib
import re
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai

from tests.clients.gateways.smg import MODEL, STORY, free_port, until_answered

NUM_PROMPTS = 6


def check(
    command: Path,
    prefill: tuple[str, int],
    decode: tuple[str, int],
    kill: Callable[[], None],
) -> None:
    """Run the gateway, and talk to it.

    Args:
        command: The gateway's.
        prefill: Address of a prefill server of the demo model, and the port of its metrics.
        decode: The same of a decode server before it, which computes no long prompt.
        kill: Kills the prefill server.
    """
    with (
        gateway(command, prefill[0], decode[0]) as (url, metrics),
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60) as client,
    ):
        check_moves(client, prefill[1], decode[1], metrics)
        check_forms(client)
        check_death(client, decode[1], kill)
    print("pairs: passed")


@contextlib.contextmanager
def gateway(command: Path, prefill: str, decode: str) -> Iterator[tuple[str, int]]:
    """Start the gateway; yield its URL and the port of its metrics once it is ready."""
    port, metrics = free_port(), free_port()
    arguments = ["launch", "--host", "127.0.0.1", "--port", str(port), "--pd-disaggregation"]
    arguments += ["--prefill", f"grpc://{prefill}", "--decode", f"grpc://{decode}"]
    arguments += ["--prometheus-port", str(metrics), "--prometheus-host", "127.0.0.1"]
    arguments += ["--log-level", "warn"]
    with subprocess.Popen([command, *arguments]) as process:
        try:
            until_answered(f"http://127.0.0.1:{port}/readiness", process)
            yield f"http://127.0.0.1:{port}", metrics
        finally:
            process.terminate()


def check_moves(client: openai.OpenAI, prefill: int, decode: int, gateway: int) -> None:
    """Send prompts: the first server computes each once, and the second gets its blocks."""
    given: dict[str, Any] = {"model": MODEL, "max_tokens": 12, "temperature": 0}
    num_blocks = 0
    for number in range(NUM_PROMPTS):
        prompt = f"Part {number}. {STORY * 8}"
        usage = client.completions.create(prompt=prompt, **given).usage
        assert usage is not None
        assert usage.completion_tokens <= 12
        num_blocks += (usage.prompt_tokens - 1) // 16
    received = sample(decode, "chairlift_transfer_received_blocks_total")
    whole = sample(decode, "chairlift_transfer_whole_prompts_total")
    sent = sample(prefill, "chairlift_transfer_sent_blocks_total")
    hits = sample(prefill, "chairlift_prefix_cache_hits_total")
    print(f"pairs: of {num_blocks} blocks {received:.0f} were transferred")
    assert (received, sent) == (num_blocks, num_blocks)
    assert whole == NUM_PROMPTS
    # The call of the decode server finds what the gateway's request has computed.
    assert hits >= num_blocks, (hits, num_blocks)
    assert sample(prefill, "chairlift_transfer_held_bytes") == 0
    relayed = sample(gateway, "smg_pd_kv_connector_mode_total", 'mode="nixl"')
    print(f"pairs: the gateway relayed {relayed:.0f} prompts")
    assert relayed == NUM_PROMPTS


def check_forms(client: openai.OpenAI) -> None:
    """Compare an answer in parts with a whole one; a request of two answers is served, too."""
    given: dict[str, Any] = {"model": MODEL, "max_tokens": 12, "temperature": 0}
    messages: Any = [{"role": "user", "content": f"Go on. {STORY * 4}"}]
    whole = client.chat.completions.create(messages=messages, **given)
    stream = client.chat.completions.create(messages=messages, stream=True, **given)
    parts = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
    assert "".join(parts) == whole.choices[0].message.content
    two = client.chat.completions.create(messages=messages, n=2, **given)
    assert len(two.choices) == 2
    print("pairs: answers agree, whole and streamed")


def check_death(client: openai.OpenAI, decode: int, kill: Callable[[], None]) -> None:
    """Kill the prefill server: the gateway refuses, and the decode server runs nothing."""
    kill()
    status = 0
    try:
        client.completions.create(model=MODEL, prompt=f"Last. {STORY * 8}", max_tokens=4)
    except openai.APIStatusError as error:
        status = error.status_code
    print(f"pairs: without the prefill server {status}")
    assert status >= 500
    assert sample(decode, "chairlift_requests_running") == 0


def sample(port: int, name: str, label: str = "") -> float:
    """Return a value of the metrics at a port, summed over the samples that have the label."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as response:
        text = response.read().decode()
    found = re.findall(rf"^{name}(?:{{[^}}]*{re.escape(label)}[^}}]*}})? (\S+)$", text, re.M)
    assert found or label, f"{name} is no metric"
    return sum(map(float, found))
