"""The workload of `make bench-cuda` by continuous batching of `transformers`, on this machine.

    python -m benchmarks.cuda.beside_transformers          one JSON object; --tiny runs anywhere

In a process of its own: `benchmarks.cuda` runs where `transformers` is not installed. The model has
the same shape and random weights, the requests have the same lengths, and nothing is downloaded.
"""

import argparse
import json
import logging
import time
from collections.abc import Iterable, Sequence

import torch
import transformers
from chairlift.model.config import ModelConfig
from chairlift.model.specs.model_spec import LayerShape
from transformers import AutoModelForCausalLM, GenerationConfig, Qwen3Config
from transformers.generation import ContinuousBatchingConfig
from transformers.generation.continuous_batching import ContinuousBatchingManager

from benchmarks.cuda.end_to_end import QWEN3_0_6B, qwen3
from benchmarks.cuda.lengths import workload

TINY = qwen3(LayerShape(64, 128, 4, 2, 16), num_layers=2, vocab_size=512)
"""For a machine without a GPU."""
TIME_LIMIT_S = 300
"""For the answers to all requests."""


def config_of(model: ModelConfig) -> Qwen3Config:
    """The same shape in the words of `transformers`."""
    spec, sizes, layer = model.spec, model.spec.shape, model.spec.layers[0]
    return Qwen3Config(
        vocab_size=spec.vocab_size,
        hidden_size=sizes.hidden_size,
        intermediate_size=sizes.intermediate_size,
        num_hidden_layers=spec.num_layers,
        num_attention_heads=sizes.num_heads,
        num_key_value_heads=sizes.num_kv_heads,
        head_dim=sizes.head_dim,
        max_position_embeddings=model.max_model_len,
        rms_norm_eps=layer.norm.eps,
        rope_theta=layer.attention.rope.theta,
        tie_word_embeddings=spec.head.is_tied,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the workload once to warm up with a few requests, then whole."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--tiny", action="store_true", help="a model for a machine without a GPU")
    chosen = parser.parse_args(arguments)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not chosen.tiny:
        parser.exit(1, "beside_transformers: no GPU: PyTorch finds none (--tiny runs anywhere)\n")
    logging.getLogger("ContinuousBatchingLogger").setLevel(logging.ERROR)
    config = config_of(TINY if chosen.tiny else QWEN3_0_6B)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(
            config, dtype=torch.bfloat16, attn_implementation="sdpa"
        ).eval()
    settings = GenerationConfig(do_sample=False, max_new_tokens=1024, eos_token_id=-1)
    # On a GPU everything is left to the library, which knows its machine; a CPU has no such rules.
    batching = (
        ContinuousBatchingConfig()
        if device == "cuda"
        else ContinuousBatchingConfig(num_blocks=512, page_size=32, max_batch_tokens=256)
    )
    with model.continuous_batching_context_manager(
        generation_config=settings, continuous_batching_config=batching
    ) as manager:
        run(manager, workload(8, seed=1))
        began = time.perf_counter()
        output_tokens = run(manager, workload(chosen.requests))
        seconds = time.perf_counter() - began
    figures = {
        "name": f"transformers {transformers.__version__}, {chosen.requests} requests U(100, 1024)",
        "device": device,
        "output_tokens": output_tokens,
        "seconds": float(f"{seconds:.4g}"),
        "tokens_per_s": float(f"{output_tokens / seconds:.4g}"),
    }
    print(json.dumps(figures))


def run(manager: ContinuousBatchingManager, work: Iterable[tuple[int, int]]) -> int:
    """Run requests of these lengths; return the number of tokens.

    Raises:
        RuntimeError: A request failed, or all of them did.
        TimeoutError: There is no answer for too long.
    """
    waiting = set()
    for num_prompt, num_output in work:
        prompt = [1 + i % 500 for i in range(num_prompt)]
        waiting.add(manager.add_request(prompt, max_new_tokens=num_output, eos_token_id=-1))
    num_tokens = 0
    began = time.monotonic()
    while waiting:
        if time.monotonic() - began > TIME_LIMIT_S:
            message = f"transformers left {len(waiting)} requests without an answer"
            raise TimeoutError(message)
        result = manager.get_result(timeout=1.0)
        if result is not None and result.is_finished():
            if result.error is not None:
                raise RuntimeError(result.error)
            waiting.remove(result.request_id)
            num_tokens += len(result.generated_tokens)
        elif not manager.is_running():
            message = "transformers ended its thread amid the work"
            raise RuntimeError(message)
    return num_tokens


if __name__ == "__main__":
    main()
