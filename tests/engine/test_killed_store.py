"""A server with a prefix store that is killed: what it had written is right, or a miss."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.engine.drive import assert_empty, greedy, run, token_ids
from tests.engine.test_prefix_store_models import ALTERNATING, DELTA

MODELS = {"plain": None, "window": ALTERNATING, "hybrid": DELTA}
KILLED = """
import sys
from chairlift.engine.engine import Engine
from chairlift.api.types import Sampling, Stopping
folder, store, key = sys.argv[1:]
engine = Engine(folder, max_num_seqs=8, drafts="off", prefix_store=store,
                prefix_store_bytes="64MiB", prefix_store_key=key, prefix_store_uses=1)
number = 0
while True:
    print(number, flush=True)
    prompt = [(number + 7 * place) % 120 + 3 for place in range(160)]
    engine.generate([prompt], Sampling(temperature=0.0), Stopping(max_tokens=1))
    number += 1
"""


def prompt(number):
    """Return a prompt of the server that is killed; none of the next hundred begins as it does."""
    return [(number + 7 * place) % 120 + 3 for place in range(160)]


@pytest.fixture(params=MODELS.values(), ids=MODELS)
def model(request, tiny, family_folder):
    return tiny.folder if request.param is None else family_folder(request.param)


def num_bytes(folder):
    return sum(path.stat().st_size for path in Path(folder).glob("*.segment"))


def answers(engine, prompts):
    asked = [greedy(prompt, 8, ignore_eos=True) for prompt in prompts]
    return [token_ids(events) for events in run(engine, asked)]


def test_a_server_that_is_killed_while_it_writes_leaves_no_wrong_block(
    make_engine, model, store_settings
):
    arguments = [model, store_settings["prefix_store"], store_settings["prefix_store_key"]]
    process = subprocess.Popen([sys.executable, "-c", KILLED, *arguments], stdout=subprocess.PIPE)
    begun = [int(process.stdout.readline())]
    deadline = time.monotonic() + 60
    while num_bytes(store_settings["prefix_store"]) < 2**20:
        assert time.monotonic() < deadline
    process.send_signal(signal.SIGKILL)
    process.wait()
    begun += [int(line) for line in process.stdout]
    process.stdout.close()
    # The last ones were being written.
    prompts = [prompt(number) for number in (*range(4), *begun[-8:])]
    expected = answers(make_engine(model), prompts)
    engine = make_engine(model, **store_settings)
    assert answers(engine, prompts[:4]) == expected[:4]
    assert engine.load().num_prefix_hits > 0
    assert answers(engine, prompts[4:]) == expected[4:]
    assert engine.prefix_store_stats().loaded > 0
    assert engine.prefix_store_stats().corrupt == 0
    assert_empty(engine)
