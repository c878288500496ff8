"""What sliding windows free: `python -m benchmarks.windows`.

By replay, so that the figures are the same everywhere: the same traffic and memory for a model of
two KV groups, none of which has a window, or one of which has. One line of JSON each.
"""

import json

from chairlift.replay.options import ReplayOptions
from chairlift.replay.recipes import draw_trace
from chairlift.replay.run import replay
from chairlift.replay.settings import settings_of, step_time_of

NUM_REQUESTS, NUM_BLOCKS = 400, 4_000
OPTIONS = ReplayOptions(max_num_seqs=256, max_num_batched_tokens=512)
WINDOWS: dict[str, list[int | None]] = {
    "none": [None, None],
    "1,024 tokens, every second layer": [None, 1024],
    "128 tokens, every second layer": [None, 128],
    "1,024 tokens, every layer": [1024, 1024],
}


def main() -> None:
    """Print a line for each recipe and model."""
    for recipe in ("sharegpt-like", "chat", "long"):
        for name, windows in WINDOWS.items():
            print(json.dumps({"recipe": recipe, "windows": name} | measure(recipe, windows)))


def measure(recipe: str, windows: list[int | None]) -> dict[str, float]:
    """Return how many requests ran at once, and how long all of them took."""
    trace = draw_trace(recipe, num_requests=NUM_REQUESTS, rate_per_s=1e6)
    settings = settings_of(trace.header, OPTIONS, None)
    own = {"kv_windows": windows, "num_kv_blocks": NUM_BLOCKS, "max_queued_requests": 10_000}
    settings = settings.model_copy(update=own | {"max_model_len": 32_768})
    replayed = replay(trace, settings, step_time_of(trace.header, [], OPTIONS))
    decoding = replayed.step_rows.mean()
    seconds = replayed.run.seconds
    return {
        "rows_at_once": float(decoding),
        "steps": len(replayed.step_rows),
        "seconds": float(seconds),
        "refused": sum(replayed.unanswered.values()),
    }


if __name__ == "__main__":
    main()
