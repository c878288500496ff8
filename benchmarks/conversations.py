"""Conversations with a hybrid, with and without prefix reuse: `python -m benchmarks.conversations`.

Several conversations with a common system prompt run at a time; each sends its next turn, which
repeats all before, when its answer has ended. Rounds with prefix cache and snapshots and rounds
without them alternate, with `--peer` also rounds of llama.cpp's server, a slot for each of them, or
of vLLM's engine, which `make bench-peers` installs. A round holds the conversations twice, the
second time with other tokens (`again_s`): what an engine has not written while it loaded it writes
for the first time in the first, for which the system has to provide memory. Then one request
decodes behind a short and a long context. Without `--model` the model has the shape of Qwen 3.5
0.8B and random weights. One line of JSON for each round.
"""

import argparse
import json
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from chairlift import Engine
from chairlift.api.machine import available_cores
from chairlift.api.types import Finished, Request, Sampling, Stopping, Tokens

from benchmarks.peers.__main__ import HERE, HOME, made_model
from benchmarks.peers.comparison import read_result
from benchmarks.peers.converted import HOME as CONVERTED
from benchmarks.peers.converted import fingerprint
from benchmarks.peers.environments import install
from benchmarks.peers.processes import call


def main() -> None:
    """Print a line for each round, and the times of a decode step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--model", type=Path, help="folder or GGUF file; default: the shape of Qwen 3.5 0.8B"
    )
    parser.add_argument("--conversations", type=int, default=16)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--system", type=int, default=256, help="tokens of the system prompt")
    parser.add_argument(
        "--message", type=int, default=64, help="tokens of a message, within a quarter"
    )
    parser.add_argument("--answer", type=int, default=64, help="tokens of an answer")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--contexts", type=int, nargs="*", default=[1024, 16_384])
    parser.add_argument("--peer", choices=("llamacpp", "vllm"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = options.model or made_model("qwen3.5")
        work = drawn(options)
        for number in range(options.rounds):
            for reuse in (True, False):
                rows = options.conversations
                with Engine(model, max_num_seqs=rows, prefix_cache=reuse, drafts="off") as engine:
                    found = converse(engine, work)
                    found["again_s"] = converse(engine, with_other_tokens(work))["seconds"]
                print(json.dumps({"round": number, "prefix_cache": reuse, **found}), flush=True)
            if options.peer is not None:
                found = converse_with_peer(options.peer, model, work, Path(folder))
                print(json.dumps({"round": number, "peer": options.peer, **found}), flush=True)
        if options.contexts:
            with Engine(model, max_num_seqs=1, drafts="off") as engine:
                for context in options.contexts:
                    found = {"context": context, "step_s": step_s(engine, context)}
                    print(json.dumps(found), flush=True)


class Work(NamedTuple):
    """Conversations, in tokens."""

    system: list[int]
    """Before all of them."""
    conversations: list[list[list[int]]]
    """The messages of each."""
    answer: int
    """Tokens of each answer."""


def drawn(options: argparse.Namespace) -> Work:
    """Draw the messages."""
    draw = random.Random(0)

    def message(length: int) -> list[int]:
        return [draw.randrange(3, 30_000) for _ in range(length)]

    system = message(options.system)
    messages = [
        [message(_around(draw, options.message)) for _ in range(options.turns)]
        for _ in range(options.conversations)
    ]
    return Work(system, messages, options.answer)


def with_other_tokens(work: Work) -> Work:
    """Return conversations as long, of which no token is where it was."""
    conversations = [[[t + 1 for t in m] for m in turns] for turns in work.conversations]
    return Work([token + 1 for token in work.system], conversations, work.answer)


def converse_with_peer(peer: str, model: Path, work: Work, folder: Path) -> dict[str, Any]:
    """Hold the conversations with a peer, twice; return what `converse` does, and `again_s`."""
    python = install(peer, HOME)
    path = folder / "work.json"
    works = [work, with_other_tokens(work)]
    path.write_text(json.dumps([each._asdict() for each in works]), encoding="utf-8")
    command: list[str | Path] = [python, HERE / f"run_{peer}_conversations.py", model, path]
    if peer == "llamacpp":
        converted = CONVERTED / f"llamacpp-bfloat16-{fingerprint(model)}"
        if model.is_file():
            # Both engines read the weights of a GGUF file as they are stored.
            converted = model
        CONVERTED.mkdir(exist_ok=True)
        command += ["--converted", converted, "--threads", str(available_cores())]
    return read_result(peer, call(command))


def converse(engine: Engine, work: Work) -> dict[str, Any]:
    """Hold all conversations; return their time and how many tokens of prompts were computed."""
    system, messages, answer = work
    histories = [[*system] for _ in messages]
    computed = [0] * len(messages)
    turns: dict[int, tuple[int, int]] = {}
    counts = {"prompt_tokens": 0, "cached_tokens": 0, "recomputed_tokens": 0}

    def send(conversation: int, turn: int) -> None:
        histories[conversation] += messages[conversation][turn]
        stopping = Stopping(max_tokens=answer, ignore_eos=True)
        request = Request(list(histories[conversation]), Sampling(temperature=0), stopping)
        turns[engine.add(request).request_id] = conversation, turn

    began = time.perf_counter()
    for conversation in range(len(messages)):
        send(conversation, 0)
    while engine.has_work:
        for event in engine.step():
            conversation, turn = turns[event.request_id]
            if isinstance(event, Tokens):
                histories[conversation] += event.token_ids
            elif isinstance(event, Finished):
                usage = event.usage
                counts["prompt_tokens"] += usage.prompt_tokens
                counts["cached_tokens"] += usage.cached_tokens
                known = computed[conversation] - usage.cached_tokens
                counts["recomputed_tokens"] += max(0, known)
                # The last token of an answer is never computed.
                computed[conversation] = len(histories[conversation]) - 1
                if turn + 1 < len(messages[conversation]):
                    send(conversation, turn + 1)
    seconds = time.perf_counter() - began
    share = counts["recomputed_tokens"] / counts["prompt_tokens"]
    return {"seconds": round(seconds, 2), **counts, "recomputed": round(share, 4)}


def _around(draw: random.Random, length: int) -> int:
    """Return a length within a quarter, so that turns end anywhere in a block."""
    return draw.randint(3 * length // 4, 5 * length // 4)


def step_s(engine: Engine, context: int) -> float:
    """Return the median duration of a decode step of one request behind so many tokens."""
    draw = random.Random(context)
    prompt = [draw.randrange(3, 30_000) for _ in range(context)]
    engine.add(Request(prompt, Sampling(temperature=0), Stopping(max_tokens=40, ignore_eos=True)))
    durations = []
    while engine.has_work:
        output = engine.advance()
        engine.events(output)
        if output.record is not None and output.record.num_tokens.sum() == 1:
            durations.append(output.record.duration_s)
    return round(statistics.median(durations[4:]), 5)


if __name__ == "__main__":
    main()
