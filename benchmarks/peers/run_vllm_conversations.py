"""Conversations with vLLM's CPU build: its engine, with its prefix cache."""

import argparse
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from run_vllm import SETTINGS, preload

if TYPE_CHECKING:
    from vllm.v1.engine.llm_engine import LLMEngine


def converse(
    engine: "LLMEngine", system: list[int], conversations: list[list[list[int]]], answer: int
) -> tuple[int, int]:
    """Hold all conversations; return the tokens of prompts, and how many were computed."""
    from vllm import SamplingParams

    sampling = SamplingParams(temperature=0, max_tokens=answer, ignore_eos=True, detokenize=False)
    histories = [[*system] for _ in conversations]
    num_prompt = num_computed = 0

    def send(conversation: int, turn: int) -> None:
        histories[conversation] += conversations[conversation][turn]
        prompt = {"prompt_token_ids": [*histories[conversation]]}
        engine.add_request(f"{conversation} {turn} {time.monotonic_ns()}", prompt, sampling)

    for conversation in range(len(conversations)):
        send(conversation, 0)
    while engine.has_unfinished_requests():
        for output in engine.step():
            if not output.finished:
                continue
            conversation, turn = (int(part) for part in output.request_id.split()[:2])
            num_prompt += len(histories[conversation])
            num_computed += len(histories[conversation]) - (output.num_cached_tokens or 0)
            histories[conversation] += output.outputs[0].token_ids
            if turn + 1 < len(conversations[conversation]):
                send(conversation, turn + 1)
    return num_prompt, num_computed


def main() -> None:
    """Print a line of JSON."""
    from vllm import LLM

    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("conversations", type=Path)
    options = parser.parse_args()
    works = json.loads(options.conversations.read_text(encoding="utf-8"))
    system, conversations, answer = (works[0][key] for key in ("system", "conversations", "answer"))
    lengths = [sum(len(message) + answer for message in turns) for turns in conversations]
    engine = LLM(
        str(options.model),
        dtype="bfloat16",
        max_num_seqs=len(conversations),
        max_model_len=len(system) + max(lengths),
        enable_prefix_caching=True,
        skip_tokenizer_init=True,
    ).llm_engine
    converse(engine, system[:16], [[[5, 6, 7]]], 4)
    seconds = []
    for work in works:
        began = time.perf_counter()
        prompt, computed = converse(engine, work["system"], work["conversations"], answer)
        seconds.append(round(time.perf_counter() - began, 2))
    counts = {"prompt_tokens": prompt, "computed_tokens": computed}
    print(json.dumps({"seconds": seconds[0], "again_s": seconds[1], **counts}), flush=True)


if __name__ == "__main__":
    preload()
    os.environ.update(SETTINGS)
    main()
