"""`make demo-ray`: a local Ray with two engines of the demo model, both at work, and one killed."""

import asyncio
import os
import signal
import sys
import time
from collections import Counter
from typing import Any, Final

import ray
from ray import serve

from chairlift.api.errors import RequestError
from chairlift.api.types import Chat, ChatMessage
from chairlift.client import AsyncClient, AsyncGeneration, connect_async
from chairlift.ray.application import application

_LISTEN: Final = "127.0.0.1:50061"
_HTTP_PORT: Final = 8061
_QUESTIONS: Final = (
    "Tell me a story about a fox and a river.",
    "Why is the sky blue?",
    "What is a chairlift?",
    "Write a poem about the sea.",
)
_NUM_STREAMS: Final = 64
_NUM_TOKENS: Final = 200
_UP_S: Final = 120.0
_SLOW_MACHINE: Final = {
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "120",
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "60",
    "RAY_worker_register_timeout_seconds": "240",
    "RAY_USAGE_STATS_ENABLED": "0",
}


def main() -> None:
    """Start Ray, show both engines at work, kill one, and count."""
    for name, value in _SLOW_MACHINE.items():
        os.environ.setdefault(name, value)
    began = time.monotonic()
    _say("starting a local Ray, which takes half a minute")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": _HTTP_PORT})
        args: dict[str, Any] = {
            "num_replicas": 2,
            "listen": _LISTEN,
            "actor_options": {"num_cpus": 0},
            "server": {"max_num_seqs": 16, "drain_grace_s": 2.0},
        }
        serve.run(application(args), name="chairlift")
        _say(
            f"two engines and an ingress after {time.monotonic() - began:.0f} s: gRPC on {_LISTEN},"
            f" the OpenAI API on http://127.0.0.1:{_HTTP_PORT}/v1"
        )
        asyncio.run(_show())
    finally:
        serve.shutdown()
        ray.shutdown()


async def _show() -> None:
    async with connect_async(_LISTEN) as client:
        await _until_two(client)
        await _questions(client)
        await _kill(client)
        began = time.monotonic()
        await _until_two(client)
        _say(f"Serve has replaced it: two engines again after {time.monotonic() - began:.1f} s")


async def _questions(client: AsyncClient) -> None:
    """Ask each of two assistants each question twice: the second time their engines know them."""
    for ordinal in ("first", "second"):
        generations = [
            client.generate(Chat([system, ChatMessage("user", text)]), max_tokens=30)
            for system in _systems()
            for text in _QUESTIONS
        ]
        await asyncio.gather(*(generation.all() for generation in generations))
        _say(f"{len(generations)} questions, the {ordinal} time: {_by_engine(generations)}")
    for number, generation in enumerate(generations):
        assistant, question = divmod(number, len(_QUESTIONS))
        line = " ".join(generation.answers[0].text.split())[:60]
        place = f"  engine {_engine_of(generation)}, assistant {assistant}"
        _say(f"{place}: {_QUESTIONS[question]} {line}")


def _systems() -> list[ChatMessage]:
    """Return what two assistants are told: beginnings that the router can tell apart."""
    return [ChatMessage("system", f"You are assistant {name}. " * 20) for name in ("A", "B")]


async def _kill(client: AsyncClient) -> None:
    """Kill the process of an engine under many streams, and count what became of them."""
    generations = [
        client.generate([3 + n, 5, 8], max_tokens=_NUM_TOKENS, ignore_eos=True, queue_timeout_s=60)
        for n in range(_NUM_STREAMS)
    ]
    tasks = [asyncio.create_task(_outcome(generation)) for generation in generations]
    while sum(bool(generation.answers[0].num_tokens) for generation in generations) < 8:
        await asyncio.sleep(0.001)
    engines = await serve.get_app_handle("chairlift").engines.remote()
    engine, published = next(iter(engines.items()))
    os.kill(published["pid"], signal.SIGKILL)
    outcomes = Counter(await asyncio.gather(*tasks))
    whole = [g for g in generations if g.answers[0].num_tokens == _NUM_TOKENS]
    _say(
        f"{_NUM_STREAMS} streams of {_NUM_TOKENS} tokens, engine {engine} killed: {dict(outcomes)}"
    )
    _say(f"answers that are whole, by the engine that gave them: {_by_engine(whole)}")


async def _outcome(generation: AsyncGeneration) -> str:
    try:
        await generation.all()
    except RequestError as error:
        began = "after" if generation.answers[0].num_tokens else "before"
        return f"{error.reason.code} {began} its first token"
    return "answered"


async def _until_two(client: AsyncClient) -> None:
    async with asyncio.timeout(_UP_S):
        while True:
            generations = [client.generate([3 + n, 5], max_tokens=2) for n in range(8)]
            await asyncio.gather(*(_outcome(generation) for generation in generations))
            if len({_engine_of(g) for g in generations if g.handle}) == 2:
                return
            await asyncio.sleep(0.2)


def _engine_of(generation: AsyncGeneration) -> str:
    return generation.handle.partition(".")[0]


def _by_engine(generations: list[AsyncGeneration]) -> str:
    parts = []
    for engine, count in sorted(Counter(map(_engine_of, generations)).items()):
        usages = [g.finished.usage for g in generations if g.finished and _engine_of(g) == engine]
        cached = sum(usage.cached_tokens for usage in usages)
        prompt = sum(usage.prompt_tokens for usage in usages)
        parts.append(f"engine {engine} {count} ({cached} of {prompt} prompt tokens cached)")
    return ", ".join(parts)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
