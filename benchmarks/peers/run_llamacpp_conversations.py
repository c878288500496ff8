"""Conversations with llama.cpp's server: each in a slot of its own, which keeps its prompt."""

import argparse
import json
import os
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from protocol import Job
from run_llamacpp import convert, start


def converse(
    address: str, slot: int, system: list[int], messages: list[list[int]], answer: int
) -> tuple[int, int]:
    """Hold one conversation; return the tokens of its prompts, and those that were computed."""
    history, num_prompt, num_computed = [*system], 0, 0
    for message in messages:
        history += message
        body = {
            "prompt": history,
            "n_predict": answer,
            "ignore_eos": True,
            "temperature": 0,
            "cache_prompt": True,
            "return_tokens": True,
            "id_slot": slot,
        }
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(
            f"{address}/completion", json.dumps(body).encode(), headers
        )
        with urllib.request.urlopen(request) as response:
            result = json.load(response)
        num_prompt += len(history)
        num_computed += result["timings"]["prompt_n"]
        history += result["tokens"]
    return num_prompt, num_computed


def converse_all(
    address: str, system: list[int], conversations: list[list[list[int]]], answer: int
) -> list[tuple[int, int]]:
    """Hold all conversations at a time; return what `converse` does of each."""

    def hold(slot: int) -> tuple[int, int]:
        return converse(address, slot, system, conversations[slot], answer)

    with ThreadPoolExecutor(len(conversations)) as pool:
        return list(pool.map(hold, range(len(conversations))))


def main() -> None:
    """Print a line of JSON."""
    os.environ["no_proxy"] = "127.0.0.1"
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("conversations", type=Path)
    parser.add_argument("--converted", type=Path, required=True)
    parser.add_argument("--threads", type=int, required=True)
    options = parser.parse_args()
    works = json.loads(options.conversations.read_text(encoding="utf-8"))
    system, conversations, answer = (works[0][key] for key in ("system", "conversations", "answer"))
    lengths = [sum(len(message) + answer for message in turns) for turns in conversations]
    longest = [([0] * len(system), max(lengths))]
    rows = len(conversations)
    job = Job(options.model, longest, "bfloat16", rows, options.threads, options.converted, False)
    if not job.converted.exists():
        convert(job)
    process, address = start(job)
    try:
        converse(address, 0, system[:16], [[5, 6, 7]], 4)
        seconds = []
        for work in works:
            began = time.perf_counter()
            counts = converse_all(address, work["system"], work["conversations"], answer)
            seconds.append(round(time.perf_counter() - began, 2))
    finally:
        process.terminate()
        process.wait()
    prompt, computed = (sum(numbers) for numbers in zip(*counts, strict=True))
    found = {"prompt_tokens": prompt, "computed_tokens": computed}
    print(json.dumps({"seconds": seconds[0], "again_s": seconds[1], **found}), flush=True)


if __name__ == "__main__":
    main()
