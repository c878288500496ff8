"""A prefill or a decode server is killed or stopped amid a transfer: the same tokens, none held."""

import asyncio
import random
import signal
import socket
import time
from contextlib import closing
from dataclasses import dataclass
from itertools import cycle, islice, product
from pathlib import Path

from chairlift.v1 import generation_pb2 as pb

from tests.chaos.figures import Figures, Scale
from tests.chaos.served import Setup
from tests.engine import tiny_model
from tests.server.connection import receive, start

TINY = "tiny"
WINDOWS = "gemma3, windows, two ropes"
STATES = "falcon h1, multipliers, tied"
ROUNDS = {
    Scale.QUICK: {TINY: 8, STATES: 4},
    Scale.MEDIUM: {TINY: 40, WINDOWS: 16, STATES: 16},
    Scale.LONG: {TINY: 100, WINDOWS: 100, STATES: 100},
}
"""Losses for each model."""
STEP_S = 0.02
"""Of the prefill server: a prompt is some four chunks, and so long is each."""
NUM_CHUNKS = 4
NUM_TOKENS = 240
BOUND_S = 30.0
"""An answer takes a second where its transfer is given up, and is computed then."""


async def run(scale, lab):
    losses = Losses()
    for model, rounds in ROUNDS[scale].items():
        folder = None
        if model is not TINY:
            folder = str(lab.scratch / model.split(",")[0])
            tiny_model.write_family(Path(folder), model)
        await lose(lab, folder, rounds, losses)
    others = ", ".join(model for model in ROUNDS[scale] if model is not TINY)
    return Figures(
        "kill -9 and SIGSTOP of a prefill or a decode server amid a transfer",
        f"{sum(ROUNDS[scale].values())} rounds, at each of {NUM_CHUNKS} chunks; also {others}",
        [
            f"all answers equal ({losses.num_whole} whole, {losses.num_partial} with some blocks)",
            f"the longest {losses.longest_s:.1f} s",
            f"nothing held {losses.held_s:.1f} s after the loss of a decode server",
        ],
    )


@dataclass
class Losses:
    """What was seen."""

    num_whole: int = 0
    num_partial: int = 0
    longest_s: float = 0.0
    held_s: float = 0.0


async def lose(lab, folder, rounds, losses):
    """Lose servers of a model, so many times.

    Args:
        lab: Starts them.
        folder: The model's; None is the tiny model.
        rounds: How many times.
        losses: Where to count.
    """
    plain = await (lab.server() if folder is None else lab.server(folder=folder))
    address = f"unix:{lab.scratch / 'prefill.sock'}"
    with closing(socket.create_server(("127.0.0.1", 0))) as probe:
        port = probe.getsockname()[1]
    prefill_setup = Setup(server={"role": "prefill"}, step_s=STEP_S, folder=folder)
    decode_setup = Setup(
        server={"role": "decode", "prefill_peers": (address,)},
        transfers_anything=True,
        folder=folder,
    )
    prefill = await lab.start(prefill_setup, address)
    decode = await lab.start(decode_setup, f"127.0.0.1:{port}")
    draw = random.Random(5)
    cases = product(range(NUM_CHUNKS), ("prefill", "decode"), (signal.SIGKILL, signal.SIGSTOP))
    for number, (chunk, victim, how) in enumerate(islice(cycle(cases), rounds)):
        prompt = [draw.randrange(1, 380) for _ in range(NUM_TOKENS)]
        expected = await answer(plain, prompt)
        began = time.monotonic()
        asked = asyncio.create_task(answer(decode, prompt))
        await asyncio.sleep((chunk + draw.random()) * STEP_S)
        lost = prefill if victim == "prefill" else decode
        lost.signal(how)
        if victim == "prefill" or how == signal.SIGSTOP:
            if victim == "decode":
                losses.held_s = max(losses.held_s, await until_free(prefill))
                lost.signal(signal.SIGCONT)
            got = await asyncio.wait_for(asked, BOUND_S)
            assert got[0] == expected[0], f"round {number}: other tokens"
            losses.num_whole += got[1] >= NUM_TOKENS - 16
            losses.num_partial += 0 < got[1] < NUM_TOKENS - 16
            losses.longest_s = max(losses.longest_s, time.monotonic() - began)
        if how == signal.SIGSTOP:
            lost.signal(signal.SIGCONT)
        else:
            assert await lost.exit_code() == 137
            if victim == "prefill":
                prefill = await lab.start(prefill_setup, address)
            else:
                # It ends with its server, or not at all.
                asked.cancel()
                await asyncio.gather(asked, return_exceptions=True)
                losses.held_s = max(losses.held_s, await until_free(prefill))
                decode = await lab.start(decode_setup, f"127.0.0.1:{port}")
        await until_free(prefill)
        await until_free(decode, "num_segments")
        await decode.until_idle()
        await prefill.until_idle()
        lab.progress(f"{number + 1} rounds")
    # Nothing was lost in the last round: a transfer is whole again.
    prompt = [draw.randrange(1, 380) for _ in range(NUM_TOKENS)]
    expected, got = await answer(plain, prompt), await answer(decode, prompt)
    assert got[0] == expected[0]
    assert got[1] > 0
    assert await decode.inside("num_shared_blocks") > 0
    for server in (prefill, decode):
        server.signal(signal.SIGTERM)
        assert await server.exit_code() == 0


async def answer(server, prompt):
    """Return the tokens of an answer, and how many of its prompt's were transferred."""
    async with server.stub() as stub:
        received = await receive(stub.Generate(iter([start(prompt=prompt, max_tokens=8)])))
    end = received.end("a")
    assert end.finished.reason == pb.FINISH_REASON_LENGTH, end
    return received.tokens("a"), end.finished.usage.transferred_tokens


async def until_free(server, *figures):
    """Wait until a server has nothing of transfers; return the seconds.

    Args:
        server: The server.
        figures: What has to be zero; by default all that a prefill server has.
    """
    began = time.monotonic()
    figures = figures or ("num_requests", "held_bytes", "num_segments")
    # A request that was on its way when its caller stopped may come in between.
    while any([await server.inside(figure) for figure in figures]):
        assert time.monotonic() < began + BOUND_S
        await asyncio.sleep(0.01)
    return time.monotonic() - began
