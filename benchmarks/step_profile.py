"""What a decode step costs beside arithmetic: `python -m benchmarks.step_profile`.

A model of 24 layers that are 64 wide has next to no arithmetic, so its step is what a model of 24
layers pays for Python, PyTorch's operations and the way into the kernels. Seconds are of the
thread's own processor time, which other processes on the machine hardly change.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

NUM_LAYERS = 24
PROMPT = list(range(3, 19))


def main() -> None:
    """Prints a line per batch size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        make_narrow_model(Path(folder))
        for rows in options.rows:
            print(json.dumps(measure(folder, rows, options.steps)), flush=True)


def measure(model: str, rows: int, steps: int) -> dict[str, float]:
    """Gives the median parts of a decode step with `rows` rows, and Python calls per layer."""
    from chairlift import Engine, Request, Sampling, Stopping

    engine = Engine(model, max_num_seqs=rows, num_threads=1, dtype="float32")
    for _ in range(rows):
        stopping = Stopping(max_tokens=steps + 60, ignore_eos=True)
        engine.add(Request(PROMPT, Sampling(temperature=0), stopping))
    for _ in range(30):
        engine.advance()

    step_s, forward_s = [], []
    forward = engine.runner.model.forward

    def timed_forward(*inputs: object) -> object:
        start = time.thread_time()
        hidden = forward(*inputs)
        forward_s.append(time.thread_time() - start)
        return hidden

    engine.runner.model.forward = timed_forward  # type: ignore[method-assign]
    for _ in range(steps):
        start = time.thread_time()
        engine.advance()
        step_s.append(time.thread_time() - start)
    engine.runner.model.forward = forward  # type: ignore[method-assign]
    return {
        "rows": rows,
        "step_s": statistics.median(step_s),
        "layer_s": statistics.median(forward_s) / NUM_LAYERS,
        "outside_layers_s": statistics.median(step_s) - statistics.median(forward_s),
        "python_calls_per_layer": calls(engine.runner.model.forward, engine) / NUM_LAYERS,
    }


def calls(_: object, engine: "object") -> int:
    """Counts the calls, of Python and of C functions, in one step."""
    count = 0

    def note(_frame: object, event: str, _arg: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    engine.advance()  # type: ignore[attr-defined]
    sys.setprofile(None)
    return count


def make_narrow_model(folder: Path) -> None:
    """Writes a random Llama with many layers and little in them."""
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
