"""`chairlift demo`: a server, seven prompts on one stream, and the picture of what happened."""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.live import Live

from chairlift.api.config import Batching
from chairlift.api.errors import ChairliftError, ServerError
from chairlift.api.types import Chat, ChatMessage
from chairlift.checkpoints.files.folder import DEMO, MODEL_HELP, check_model
from chairlift.cli.board import Board, Line
from chairlift.cli.picture import render_terminal
from chairlift.cli.remote import answer_all
from chairlift.cli.watched_steps import WatchedTimeline, watched_rows, watched_times
from chairlift.timeline.svg import render_svg
from chairlift.timeline.values import Timeline

if TYPE_CHECKING:
    from chairlift.client import AsyncClient
    from chairlift.v1 import generation_pb2, server_pb2

PROMPTS: tuple[tuple[str, int], ...] = (
    ("Tell me a story about a fox and a river.", 64),
    ("Hello!", 32),
    ("Why is the sky blue?", 64),
    ("What is continuous batching?", 64),
    ("Write a poem about the sea.", 64),
    ("What is a chairlift?", 64),
    ("Count down from 10.", 32),
)
"""Prompts of different lengths, and the longest answer of each."""

FRAME_S = 0.05
"""The small model is too fast to watch: a step is shown for this long."""
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 10.0
WATCH_TIMEOUT_S = 10.0


def demo(
    model: Annotated[str, typer.Argument(help=MODEL_HELP)] = DEMO,
    *,
    rows: Annotated[int, typer.Option(help="Rows of the batch: few, so that requests wait.")] = 4,
    tokens: Annotated[int, typer.Option(help="Token budget of a step; cuts prompts.")] = 16,
    batching: Annotated[Batching, typer.Option(help="Policy to watch.")] = (Batching.CONTINUOUS),
    picture: Annotated[Path, typer.Option(help="File of the picture.")] = Path(
        "chairlift-demo.svg"
    ),
) -> None:
    """Serve a small model, stream seven prompts at once and draw which request had which row."""
    check_model(model)
    console = Console()
    board = Board([text for text, _ in PROMPTS])
    with _server(model, rows, tokens, batching) as (target, process):
        recorded = asyncio.run(_stream_prompts(console, target, process, board))
    console.print(board.answers())
    timeline = recorded.timeline(batching, rows, board)
    console.print(render_terminal(timeline, console.width), "")
    title = f"{len(PROMPTS)} prompts, {rows} rows, {batching} batching"
    try:
        picture.write_text(render_svg([timeline], title, lanes=()), encoding="utf-8")
    except OSError as error:
        message = f"cannot write the picture: {error}"
        raise ChairliftError(message) from None
    console.print(f"the picture: {picture}")
    raise typer.Exit(1 if any(line.has_failed for line in board.lines) else 0)


@contextmanager
def _server(
    model: str, rows: int, tokens: int, batching: Batching
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Run a server in a process of its own; yield its address and the process."""
    with tempfile.TemporaryDirectory(prefix="chairlift-") as folder:
        target = f"unix:{folder}/demo.sock"
        command = [sys.executable, "-m", "chairlift", "serve", model, "--listen", target]
        command += ["--max-num-seqs", str(rows), "--max-num-batched-tokens", str(tokens)]
        command += ["--batching", batching.value, "--drain-grace", "0s"]
        # Settings of the user's own server do not apply to the demo.
        environment = {k: v for k, v in os.environ.items() if not k.startswith("CHAIRLIFT_")}
        process = subprocess.Popen(command, env=environment)
        try:
            yield target, process
        finally:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


async def _stream_prompts(
    console: Console, target: str, process: subprocess.Popen[bytes], board: Board
) -> "StepRecorder":
    """Send the prompts, show the answers as they come, and return the recorded steps."""
    from chairlift.client import connect_async, new_start

    starts = [
        new_start(
            Chat([ChatMessage("user", text)]), max_tokens=limit, temperature=0, request_id=str(i)
        )
        for i, (text, limit) in enumerate(PROMPTS)
    ]
    async with connect_async(target) as client:
        await _until_serving(client, process)
        recorder = StepRecorder()
        recording = asyncio.create_task(recorder.record(await client.watch_steps()))
        await _show(console, client, board, starts)
        await recorder.until((await client.load()).num_steps)
        recording.cancel()
    return recorder


async def _show(
    console: Console, client: "AsyncClient", board: Board, starts: "list[generation_pb2.Start]"
) -> None:
    """Answer all prompts at full speed and show them in slow motion, in the same order."""
    film = SlowMotion([line.prompt for line in board.lines])
    with Live(film.board, console=console, transient=True, refresh_per_second=25):
        showing = asyncio.create_task(film.play())
        started = time.perf_counter()
        await answer_all(
            client, board, starts, lambda number, _text: film.take(number, board.lines[number])
        )
        seconds = time.perf_counter() - started
        film.end()
        await showing
    num_tokens = sum(line.num_tokens for line in board.lines)
    console.print(
        f"{len(starts)} answers, {num_tokens} tokens in {seconds:.2f} s, shown in slow motion\n",
        style="dim",
    )


class SlowMotion:
    """Replays the growth of some lines, at most one step per `FRAME_S`."""

    def __init__(self, prompts: list[str]) -> None:
        self.board = Board(prompts)
        self._takes: asyncio.Queue[tuple[int, Line] | None] = asyncio.Queue()

    def take(self, number: int, line: Line) -> None:
        """Queue the present state of a line."""
        self._takes.put_nowait((number, copy(line)))

    def end(self) -> None:
        """Note that nothing follows."""
        self._takes.put_nowait(None)

    async def play(self) -> None:
        """Show one queued state after the other."""
        grown: set[int] = set()
        while (take := await self._takes.get()) is not None:
            number, line = take
            # A step computes one token per request: a second one of a line starts the next frame.
            if number in grown and not line.outcome:
                await asyncio.sleep(FRAME_S)
                grown.clear()
            grown.add(number)
            self.board.lines[number] = line


async def _until_serving(client: "AsyncClient", process: subprocess.Popen[bytes]) -> None:
    async with asyncio.timeout(START_TIMEOUT_S):
        while process.poll() is None:
            with suppress(ServerError):
                if await client.is_serving():
                    return
            await asyncio.sleep(0.1)
    message = "the server did not start"
    raise ChairliftError(message)


class StepRecorder:
    """Records what each row did, from a watch of the engine's steps."""

    def __init__(self) -> None:
        self._steps: list[server_pb2.Step] = []
        self._grown = asyncio.Event()

    async def record(self, steps: "AsyncIterator[server_pb2.Step]") -> None:
        """Record steps until the watch ends."""
        async for step in steps:
            self._steps.append(step)
            self._grown.set()

    def timeline(self, name: str, num_rows: int, board: Board) -> Timeline:
        """Return the steps of the prompts.

        Args:
            name: Name of the timeline.
            num_rows: Rows of the batch.
            board: The answers; line `i` is that of the request with the id `i`.
        """
        watched = WatchedTimeline(name, num_rows)
        number_of: dict[str, int] = {}
        for step in self._steps:
            rows = [row for row in watched_rows(step) if row.request_id]
            number_of |= {row.handle: int(row.request_id) for row in rows}
            if rows:
                watched.add_rows(rows, step.preempted_handles, watched_times(step))
        for handle, number in number_of.items():
            line = board.lines[number]
            label = f"{line.prompt}  ({line.num_tokens} tokens)"
            watched.name_request(handle, label=label, number=number + 1)
        return watched.timeline()

    async def until(self, step: int) -> None:
        """Wait for a step: the watch is another call and may lag behind the answers."""
        async with asyncio.timeout(WATCH_TIMEOUT_S):
            while not self._steps or self._steps[-1].step < step:
                self._grown.clear()
                await self._grown.wait()
