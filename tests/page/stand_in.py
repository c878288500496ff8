"""A stand-in for the server, which plays scripted frames: states that a real server hardly shows.

python -m tests.page.stand_in SCENE PORT
"""

import asyncio
import contextlib
import json
import random
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field

import uvicorn
from chairlift.server.page.static_files import _FILE_HEADERS, static_files
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

PREFILL, DECODE, LAST, VERIFY = range(4)
TEXT = "The sky is blue because air scatters short waves more than long ones. "
WORDS = TEXT.split()


@dataclass
class Scene:
    """What the server does. `lost` and the like may be set while it serves."""

    num_rows: int = 16
    load: float = 0.8
    """Share of the rows that requests keep busy; 0 is a server without requests."""
    first_steps: int = 240
    """Steps of the first frame."""
    step_us: int = 9000
    stall_every: int = 0
    """Each such step a long prompt holds up the others."""
    dropped_every: int = 0
    """Before each such frame, 18 steps are dropped."""
    others: float = 0.15
    """Share of the requests that another tenant has."""
    num_waiting: int = 0
    state: str = "SERVING"
    token: str = ""
    status: int = 200
    is_lost: bool = False
    stops_after: int = 0
    """Frames after which no steps follow."""
    start_ms: int = field(default_factory=lambda: int(time.time() * 1000) - 8_040_000)
    tenants: int = 1
    may_run: bool = True
    names: str = "story"
    model: str = "smollm2"


class Batch:
    """A batch whose requests come and go by chance, always the same."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.random = random.Random(7)
        self.step = 1000
        self.clock_us = 0
        self.num_frames = 0
        self.count = 0
        self.rows: list[list[int] | None] = [None] * scene.num_rows
        """Number of the request, prompt tokens left, output tokens left, output so far."""

    def frame(self, num_steps: int) -> dict:
        """Run steps and return their frame."""
        scene, rand = self.scene, self.random
        self.num_frames += 1
        frame = {"n": self.num_frames, "num_dropped": 0, "spans": [], "preempted": [], "new": []}
        if scene.dropped_every and self.num_frames % scene.dropped_every == 0:
            frame["num_dropped"] = 18
            self.step += 18
        lists = ("start_us", "duration_us", "parts_us", "num_waiting", "num_tokens", "num_sampled")
        frame |= {"first_step": self.step, "ended": []} | {name: [] for name in lists}
        cells: dict[int, list] = {}
        bands = [[0, 0, 0] for _ in range(64)]
        for _ in range(num_steps):
            stalls = bool(scene.stall_every) and self.step % scene.stall_every == 0
            num_tokens = num_sampled = 0
            for row in range(scene.num_rows):
                band = bands[row * 64 // scene.num_rows]
                if self.rows[row] is None:
                    stalls = self._admit(row, frame, stalls=stalls) and stalls
                if self.rows[row] is None:
                    band[2] += 1
                    continue
                work, tokens = self._compute(row, frame, cells)
                band[0 if work == PREFILL else 1] += 1
                num_tokens += tokens
                num_sampled += 0 if work == PREFILL else tokens
            duration = scene.step_us + rand.randrange(900) + num_tokens * 60
            parts = [60, 160, duration - 720, 400, 100]
            values = (self.clock_us, duration, parts, scene.num_waiting, num_tokens, num_sampled)
            for name, value in zip(lists, values, strict=True):
                frame[name].append(value)
            self.clock_us += duration
            self.step += 1
        frame["spans"] = [span for row in cells.values() for span in row]
        if scene.num_rows > 256:
            frame["bands"] = bands
        return frame

    def _admit(self, row: int, frame: dict, *, stalls: bool) -> bool:
        """Perhaps start a request in an empty row; return whether a long prompt is due."""
        if self.random.random() >= self.scene.load * 0.06 + stalls * 0.5:
            return stalls
        self.rows[row] = self._start(frame, 2000 if stalls else self.random.randrange(4, 60))
        return False

    def _compute(self, row: int, frame: dict, cells: dict[int, list]) -> tuple[int, int]:
        """Compute tokens of a row; return the work and the number of tokens."""
        request, accepted = self.rows[row], 0
        if request[1]:
            work = PREFILL
            tokens = request[1] if request[1] >= 2000 else min(request[1], 24)
            request[1] -= tokens
        else:
            accepted = self.random.randrange(1, 4) if self.random.random() < 0.12 else 0
            tokens = 1 + accepted
            request[2] -= tokens
            request[3] += tokens
            work = LAST if request[2] <= 0 else VERIFY if accepted else DECODE
        last = cells.setdefault(row, [])
        if last and last[-1][3:5] == [request[0], work]:
            last[-1][2] += 1
            last[-1][5] += tokens
            last[-1][6] += accepted
        else:
            last.append([row, self.step, 1, request[0], work, tokens, accepted])
        if work == LAST:
            frame["ended"].append([request[0], "stop", request[3]])
            self.rows[row] = None
        elif work == DECODE and self.random.random() < 0.0008:
            frame["preempted"].append([row, self.step + 1, request[0]])
            self.rows[row] = None
        return work, tokens

    def _start(self, frame: dict, num_prompt: int) -> list[int]:
        if self.random.random() < self.scene.others:
            return [0, num_prompt, self.random.randrange(8, 120), 0]
        self.count += 1
        frame["new"].append([self.count, f"h-{self.count}", f"{self.scene.names}-{self.count}"])
        return [self.count, num_prompt, self.random.randrange(8, 120), 0]

    @property
    def num_running(self) -> int:
        return sum(row is not None for row in self.rows)


def event(name: str, data: dict) -> str:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n"


class StandIn:
    """The routes of the page over a scene."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.files = static_files()
        self.num_feeds = 0
        self.cancelled: set[str] = set()
        self.query: dict[str, str] = {}
        """Query of the last feed."""
        routes = [
            Route("/page/feed", self.feed),
            Route("/page/runs", self.runs, methods=["POST"]),
            Route("/page/runs/{handle}/cancel", self.cancel, methods=["POST"]),
            Route("/scene", self.change, methods=["POST"]),
            *[Route(path, self.static) for path in self.files],
        ]
        self.app = Starlette(routes=routes)

    async def static(self, request: Request) -> Response:
        file = self.files[request.url.path]
        headers = dict(_FILE_HEADERS) | {"content-type": file.content_type}
        return Response(file.body, headers=headers)

    async def change(self, request: Request) -> Response:
        for name, value in (await request.json()).items():
            setattr(self.scene, name, value)
        return JSONResponse({"num_feeds": self.num_feeds, "query": self.query})

    def refusal(self, request: Request) -> Response | None:
        scene = self.scene
        token = request.headers.get("authorization", "")
        if scene.token and token != f"Bearer {scene.token}":
            return JSONResponse({"error": {"message": "a token is needed"}}, status_code=401)
        if scene.status != 200:
            return JSONResponse(
                {"error": {"message": "the model is still loading"}}, status_code=scene.status
            )
        return None

    async def feed(self, request: Request) -> Response:
        refused = self.refusal(request)
        if refused or self.scene.is_lost:
            return refused or Response(status_code=502)
        self.num_feeds += 1
        self.query = query = dict(request.query_params)
        first, num = int(query.get("first_row", 0)), int(query.get("num_rows", 64))
        return StreamingResponse(self.events(first, num), media_type="text/event-stream")

    async def events(self, first: int, num: int) -> AsyncIterator[str]:
        scene, batch = self.scene, Batch(self.scene)
        steps = 4 if scene.num_rows <= 256 else 1
        yield event("hello", self.hello())
        while not scene.is_lost:
            n = batch.num_frames
            if scene.load and not (scene.stops_after and n >= scene.stops_after):
                frame = batch.frame(scene.first_steps if n == 0 else steps)
                if scene.num_rows > 256:
                    frame["spans"] = [s for s in frame["spans"] if first <= s[0] < first + num]
                yield event("frame", frame)
            else:
                batch.num_frames += 1
                batch.rows = [None] * scene.num_rows
            if n % 10 == 0:
                yield event("load", self.load(batch)) + event("blocks", self.blocks(batch))
                yield event("queue", self.queue())
            await asyncio.sleep(0.1)
        yield event("bye", {"reason": "draining"})

    def hello(self) -> dict:
        scene = self.scene
        server = {
            "version": "0.1.0",
            "state": scene.state,
            "device": "cpu",
            "kernels": "avx512",
            "batching": "continuous",
            "max_num_seqs": scene.num_rows,
            "step_budget_ms": 50,
            "max_num_batched_tokens": 512,
            "batch_size": 0,
            "max_queued_requests": 1024,
            "block_size": 16,
            "num_blocks": 2048,
            "prefix_cache": True,
            "start_ms": scene.start_ms,
        }
        model = {
            "name": scene.model,
            "architecture": "LlamaForCausalLM",
            "dtype": "bfloat16",
            "quantization": "int8",
            "kv_cache_dtype": "bfloat16",
            "max_context_len": 8192,
            "has_chat_template": True,
        }
        caller = {"tenant": "", "sees_all": scene.tenants > 1, "may_run": scene.may_run}
        return {"v": 1, "server": server, "model": model, "caller": caller}

    def load(self, batch: Batch) -> dict:
        held = batch.num_running * 60
        tenants = [
            {
                "tenant": f"team-{i}" if i else "",
                "num_generated_tokens": 41_200,
                "num_started": 31 - i,
                "ttft_p50_ms": 31 + i,
                "ttft_p99_ms": 210 + i,
                "reasons": [["stop", False, 28], ["QUOTA_EXCEEDED", True, 3]],
            }
            for i in range(self.scene.tenants)
        ]
        return {
            "num_waiting": self.scene.num_waiting,
            "num_running": batch.num_running,
            "num_rows_held": batch.num_running,
            "num_blocks": 2048,
            "num_preemptions": 3,
            "num_free_blocks": max(0, 2048 - held),
            "num_cached_blocks": 400,
            "num_kv_tokens": held * 15,
            "num_prefix_queries": 900,
            "num_prefix_hits": 580,
            "num_steps": batch.step,
            "num_running_suspended": 1,
            "state": self.scene.state,
            "itl_p50_us": 6100,
            "itl_p99_us": 17_300,
            "tenants": tenants,
        }

    def queue(self) -> dict:
        n = self.scene.num_waiting
        names = ["ROW", "ROW", "BLOCKS", "SHARE", "SUSPENDED", "STEP"]
        own = [
            [f"w-{i}", f"{self.scene.names}-{i + 41}", names[i % 6], i, 0, 120 + i, 400 * i, 90 * i]
            for i in range(min(100, n * 3 // 4))
        ]
        causes = {"ROW": n - n // 4, "BLOCKS": n // 4}
        return {"own": own, "num_own": n * 3 // 4, "num_other": n - n * 3 // 4, "causes": causes}

    def blocks(self, batch: Batch) -> dict:
        held, own, cached, shared, free = [], [], [], [], []
        busy = 512 * min(1.0, batch.num_running * 60 / 2048)
        for cell in range(512):
            here = 4 if cell < busy else 0
            kept = 4 if not here and cell < busy + 100 else 0
            held.append(here)
            own.append(here if cell % 7 else 1 if here else 0)
            cached.append(kept)
            shared.append(1 if here and cell % 31 == 0 else 0)
            free.append(4 - here - kept)
        names = ("held", "own", "cached", "shared", "free")
        lists = dict(zip(names, (held, own, cached, shared, free), strict=True))
        return {"num_blocks": 2048, "cells": 512, **lists}

    async def runs(self, request: Request) -> Response:
        refused = self.refusal(request)
        if refused:
            return refused
        requests = (await request.json())["requests"]
        return StreamingResponse(self.answers(requests), media_type="text/event-stream")

    async def answers(self, requests: list[dict]) -> AsyncIterator[str]:
        for i, request in enumerate(requests):
            yield event("accepted", {"id": request["id"], "handle": f"h-{i + 1}", "request_id": ""})
        # Short ones end one after the other; longer ones last until they are cancelled.
        limits = [request["max_tokens"] for request in requests]
        lengths = [most if most > 64 else 8 + 9 * i for i, most in enumerate(limits)]
        for n in range(max(lengths)):
            await asyncio.sleep(0.03)
            for i, request in enumerate(requests):
                if f"h-{i + 1}" in self.cancelled:
                    self.cancelled.discard(f"h-{i + 1}")
                    lengths[i] = 0
                    yield event("finished", self.finished(request["id"], "cancelled", n))
                elif n < lengths[i]:
                    text = WORDS[n % len(WORDS)] + " "
                    yield event("tokens", {"id": request["id"], "text": text, "num_tokens": 1})
                    if n == lengths[i] - 1:
                        yield event("finished", self.finished(request["id"], "stop", n + 1))

    def finished(self, name: str, reason: str, n: int) -> dict:
        usage = {"prompt_tokens": 9, "cached_tokens": 0, "output_tokens": n}
        itl = [30.2] * max(0, n - 1)
        return {"id": name, "reason": reason, "usage": usage, "ttft_ms": 31.0, "itl_ms": itl}

    async def cancel(self, request: Request) -> Response:
        self.cancelled.add(request.path_params["handle"])
        return Response(status_code=204)


@contextlib.contextmanager
def serving(scene: Scene) -> Iterator[tuple[str, StandIn]]:
    """Serve a scene on a thread; yield its URL and the stand-in."""
    stand_in = StandIn(scene)
    config = uvicorn.Config(stand_in.app, port=0, log_level="error", ws="none", lifespan="off")
    config.timeout_graceful_shutdown = 1
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        found = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{found}", stand_in
    finally:
        server.should_exit = True
        thread.join()


SCENES: dict[str, Scene] = {
    "busy": Scene(num_rows=64, num_waiting=12),
    "few-rows": Scene(num_rows=4, num_waiting=3),
    "never": Scene(load=0),
    "idle": Scene(stops_after=3),
    "dropped": Scene(num_rows=16, dropped_every=20, first_steps=120),
    "stall": Scene(num_rows=16, stall_every=50),
    "draining": Scene(state="DRAINING"),
    "token": Scene(token="secret"),
    "loading": Scene(status=503),
    "refused": Scene(status=403),
    "thousands": Scene(num_rows=4096, load=0.4, num_waiting=800, first_steps=20),
    "all-tenants": Scene(num_rows=32, tenants=4, others=0, num_waiting=140),
    "markup": Scene(names="<img src=x onerror=alert(1)>", model="<b>'model'</b>", num_waiting=5),
    "read-only": Scene(may_run=False),
    "restarted": Scene(),
}


def main() -> None:
    with contextlib.ExitStack() as stack:
        for name in sys.argv[1:] or SCENES:
            url, _ = stack.enter_context(serving(SCENES[name]))
            print(name, url, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
