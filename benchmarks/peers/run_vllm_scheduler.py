"""vLLM's scheduler alone: decode steps without a model, as `chairlift bench scheduler` has them.

    python run_vllm_scheduler.py MODEL RUNNING STEPS

Prints p50 and p99 of schedule plus update in one JSON line. Requests and blocks are as there: a
prompt of 128 tokens and up, blocks of 16, one in 16 of which fills in each step, and the prefix
cache. Text is not part of it, since vLLM makes it in another process.
"""

import json
import os
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.v1.core.sched.scheduler import Scheduler

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

PROMPT_TOKENS = 128
BLOCK_SIZE = 16
VOCAB_SIZE = 32_000


def make_scheduler(model: str, running: int, longest: int) -> "Scheduler":
    """Return a scheduler of one group of layers, with blocks for all requests."""
    import torch
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    config = EngineArgs(
        model=model,
        max_num_seqs=running,
        max_num_batched_tokens=max(8192, running),
        max_model_len=2 * longest,
        block_size=BLOCK_SIZE,
        enable_prefix_caching=True,
    ).create_engine_config()
    layers = FullAttentionSpec(
        block_size=BLOCK_SIZE, num_kv_heads=1, head_size=1, dtype=torch.float32
    )
    num_blocks = 1 + running * (-(-longest // BLOCK_SIZE) + 1)
    config.cache_config.num_gpu_blocks = num_blocks
    return Scheduler(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(
            num_blocks=num_blocks,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], layers)],
        ),
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK_SIZE,
    )


def add_requests(scheduler: "Scheduler", running: int, longest: int) -> None:
    """Add requests whose blocks fill in different steps."""
    from vllm import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.request import Request

    init_none_hash(sha256)
    hasher = get_request_block_hasher(BLOCK_SIZE, sha256)
    for i in range(running):
        length = PROMPT_TOKENS + i % BLOCK_SIZE
        scheduler.add_request(
            Request(
                request_id=str(i),
                prompt_token_ids=[(7 * i + j) % VOCAB_SIZE for j in range(length)],
                sampling_params=SamplingParams(max_tokens=longest, ignore_eos=True),
                pooling_params=None,
                block_hasher=hasher,
            )
        )


def decode_steps(scheduler: "Scheduler", running: int, steps: int) -> list[float]:
    """Return the seconds of schedule plus update of steps in which all requests decode."""
    from vllm.v1.outputs import ModelRunnerOutput

    seconds: list[float] = []
    while len(seconds) < steps:
        started = time.perf_counter()
        planned = scheduler.schedule()
        scheduled = time.perf_counter()
        counts = planned.num_scheduled_tokens
        ids = list(counts)
        requests = [scheduler.requests[request_id] for request_id in ids]
        sampled = [
            [5] if request.num_computed_tokens >= request.num_prompt_tokens else []
            for request in requests
        ]
        output = ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={request_id: index for index, request_id in enumerate(ids)},
            sampled_token_ids=sampled,
        )
        updating = time.perf_counter()
        scheduler.update_from_output(planned, output)
        ended = time.perf_counter()
        if len(ids) == planned.total_num_scheduled_tokens == running:
            seconds.append((scheduled - started) + (ended - updating))
    return sorted(seconds)


def main() -> None:
    """Measure what the command line names."""
    model, running, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    longest = PROMPT_TOKENS + BLOCK_SIZE + running * PROMPT_TOKENS // 1024 + 64 + steps
    scheduler = make_scheduler(model, running, longest)
    add_requests(scheduler, running, longest)
    seconds = decode_steps(scheduler, running, steps)
    result = {
        "running": running,
        "step_p50_s": seconds[len(seconds) // 2],
        "step_p99_s": seconds[len(seconds) * 99 // 100],
    }
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
