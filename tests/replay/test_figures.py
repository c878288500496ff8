"""What is known of batching without any model: KV waste, and what static batching must lose."""

import numpy as np
import pytest
from chairlift.api.config import Batching
from chairlift.replay.format import StepTime
from chairlift.replay.recipes import draw_trace
from chairlift.replay.run import replay

ROWS = 16
CONSTANT = StepTime(fixed_s=0.01, per_token_s=0, per_context_token_s=0)


def test_blocks_of_16_waste_less_than_3_percent_on_chat():
    trace = draw_trace("chat", num_requests=400, rate_per_s=8)
    run = replay(trace, trace.header, trace.header.step_time).run
    assert 0 < run.kv_waste / run.num_steps < 0.03


def slot_use(trace, batching):
    rows = {"max_num_seqs": ROWS, "batch_size": ROWS}
    header = trace.header.model_copy(update=rows | {"batching": batching})
    for request in trace.requests:
        # The bound knows no prompts: one step computes each, and no answer waits for memory.
        request.arrival, request.num_prompt = 0, 1
    trace.flushes = [0]
    run = replay(trace, header, CONSTANT).run
    return run.num_rows / (run.num_steps * ROWS), run.num_output_tokens / run.seconds


@pytest.mark.parametrize("law", ["chat", "anyscale", "nano", "sharegpt-like"])
def test_static_batching_loses_what_it_must_and_continuous_nothing(law):
    # A quarter of the lengths leaves the bound, a ratio, as it is.
    trace = draw_trace(law, num_requests=125 * ROWS, scale=4)
    lengths = np.array([r.num_output for r in trace.requests]).reshape(-1, ROWS)
    bound = lengths.sum() / (ROWS * lengths.max(axis=1).sum())
    static, static_rate = slot_use(trace, Batching.STATIC)
    continuous, continuous_rate = slot_use(trace, Batching.CONTINUOUS)
    assert static == pytest.approx(bound, abs=0.02)
    assert continuous > 0.95
    assert continuous_rate / static_rate == pytest.approx(1 / bound, rel=0.1)
