import numpy as np
import pytest
from chairlift.engine.engine import Engine
from chairlift.replay.recipes import draw_trace
from chairlift.replay.recorder import TraceRecorder
from chairlift.replay.trace import read_trace
from chairlift.server.ops.recording import record

from tests.engine.drive import Clock, drain


class TickingClock(Clock):
    """Every look at it takes a millisecond."""

    def __call__(self):
        self.now += 1_000_000
        return self.now


@pytest.fixture
def recorded(tiny_folder, tmp_path):
    """Run a course of an engine under a recorder; return trace, file and the engine's own notes."""

    def run(course=None, *, requests=(), **settings):
        # A trace has no tokens, so that a replay cannot know which drafts were right.
        settings = {"max_num_seqs": 4, "max_num_batched_tokens": 32, "drafts": "off", **settings}
        engine = Engine(tiny_folder, clock=TickingClock(), **settings)
        path = tmp_path / "trace.jsonl"
        recorder = TraceRecorder(path)
        record(engine, recorder)
        steps = []
        engine.watch_steps(lambda r: steps.append((len(r.num_tokens), int(r.num_tokens.sum()))))
        if course is None:
            for request in requests:
                engine.add(request)
            engine.flush()
            drain(engine)
        else:
            course(engine)
        recorder.close()
        return read_trace(path), path, steps, engine

    return run


@pytest.fixture
def lengths_of():
    """Draw a recipe; return prompts, answers and arrival times in seconds."""

    def draw(name, **arguments):
        requests = draw_trace(name, **arguments).requests
        return (
            np.array([r.num_prompt for r in requests]),
            np.array([r.num_output for r in requests]),
            np.array([r.arrival for r in requests]) * 1e-9,
        )

    return draw
