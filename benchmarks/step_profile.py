"""Where the time of a decode step goes: `python -m benchmarks.step_profile [--model FOLDER]`.

With a model: the parts of its step. Without one: what a step costs beside arithmetic. A model of
24 layers that are 64 wide has next to no arithmetic, so its step is what a model of 24 layers pays
for Python, PyTorch's operations and the way into the kernels. Those seconds are of the thread's own
processor time, which other processes on the machine change little.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chairlift import Engine

NUM_LAYERS = 24
PROMPT = list(range(3, 19))


def main() -> None:
    """Print a line per batch size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--model", help="smollm2, or a folder")
    parser.add_argument("--quantize", default="none", help="of a model in bfloat16")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.model is None:
            make_narrow_model(Path(folder))
        for rows in options.rows:
            if options.model is None:
                result = measure_overhead(folder, rows, options.steps)
            else:
                result = measure_parts(options.model, options.quantize, rows, options.steps)
            print(json.dumps(result), flush=True)


def measure_overhead(model: str, rows: int, steps: int) -> dict[str, float]:
    """Return processor time of the engine's thread, in the layers and outside, medians."""
    engine = decoding(model, rows, steps, num_threads=1, dtype="float32")
    runner_model = engine.runner.model
    forward, step_s, forward_s = runner_model.forward, [], []

    def timed_forward(*inputs: Any) -> Any:  # noqa: ANN401
        start = time.thread_time()
        hidden = forward(*inputs)
        forward_s.append(time.thread_time() - start)
        return hidden

    runner_model.forward = timed_forward  # type: ignore[method-assign, assignment]
    for _ in range(steps):
        start = time.thread_time()
        engine.advance()
        step_s.append(time.thread_time() - start)
    del runner_model.forward
    step, layers = statistics.median(step_s), statistics.median(forward_s)
    return {
        "rows": rows,
        "step_s": step,
        "layer_s": layers / NUM_LAYERS,
        "outside_layers_s": step - layers,
        "calls_per_layer": round(count_calls(engine) / NUM_LAYERS, 1),
    }


def measure_parts(model: str, quantize: str, rows: int, steps: int) -> dict[str, float]:
    """Return the parts of a model's decode step by the clock on the wall, medians."""
    engine = decoding(model, rows, steps, dtype="bfloat16", quantize=quantize)
    records = [engine.advance().record for _ in range(steps)]
    times = [record.times for record in records if record]
    parts = {
        name: statistics.median(getattr(parts, name) for parts in times)
        for name in ("schedule_s", "inputs_s", "forward_s", "sample_s", "update_s")
    }
    return {"rows": rows, "step_s": sum(parts.values()), **parts}


def decoding(model: str, rows: int, steps: int, **settings: Any) -> "Engine":  # noqa: ANN401
    """An engine in which `rows` requests decode for `steps` steps and more."""
    from chairlift import Engine, Request, Sampling, Stopping

    # A row with drafts has several tokens.
    engine = Engine(model, max_num_seqs=rows, prefix_cache=False, drafts="off", **settings)
    for _ in range(rows):
        stopping = Stopping(max_tokens=steps + 60, ignore_eos=True)
        engine.add(Request(PROMPT, Sampling(temperature=0), stopping))
    for _ in range(20):
        engine.advance()
    return engine


def count_calls(engine: "Engine") -> int:
    """Count the calls, of Python and of C functions, in one step."""
    count = 0

    def note(_frame: object, event: str, _arg: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    engine.advance()
    sys.setprofile(None)
    return count


def make_narrow_model(folder: Path) -> None:
    """Write a random Llama with many layers and little in them."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=NUM_LAYERS,
        num_attention_heads=4,
        num_key_value_heads=1,
        max_position_embeddings=1024,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({char: id_ for id_, char in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))


if __name__ == "__main__":
    main()
