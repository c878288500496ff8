"""vLLM's CPU build: its offline engine, as its documentation has it at its best.

Its workers take all cores but one unless they are told to reserve none, and it advises to preload
Intel's OpenMP and tcmalloc (Debian: libtcmalloc-minimal4), which is done where they exist. On AMD's
processors with AVX-512 its layers are those of zentorch.
"""

import ctypes.util
import os
import sys
import time
from pathlib import Path

from protocol import Job, print_result, read_job

SETTINGS = {
    # GiB for keys and values.
    "VLLM_CPU_KVCACHE_SPACE": "2",
    "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
    "VLLM_LOGGING_LEVEL": "WARNING",
}


def preload() -> None:
    """Start this process again with the libraries that vLLM advises, unless it has them."""
    iomp = Path(sys.prefix) / "lib" / "libiomp5.so"
    tcmalloc = ctypes.util.find_library("tcmalloc_minimal")
    found = [str(iomp)] if iomp.exists() else []
    found += [tcmalloc] if tcmalloc else []
    if found and "LD_PRELOAD" not in os.environ:
        os.environ["LD_PRELOAD"] = ":".join(found)
        os.execv(sys.executable, [sys.executable, *sys.argv])


def main(job: Job) -> None:
    """Warm up and measure."""
    from vllm import LLM, SamplingParams

    longest = max(len(prompt) + num_output for prompt, num_output in job.work)
    engine = LLM(
        str(job.model),
        dtype=job.dtype,
        max_num_seqs=job.rows,
        max_model_len=longest,
        enable_prefix_caching=False,
    )

    def run(work: list[tuple[list[int], int]]) -> int:
        sampling = [
            SamplingParams(temperature=0, max_tokens=n, ignore_eos=True, detokenize=False)
            for _, n in work
        ]
        prompts = [{"prompt_token_ids": prompt} for prompt, _ in work]
        answers = engine.generate(prompts, sampling, use_tqdm=False)
        return sum(len(answer.outputs[0].token_ids) for answer in answers)

    run(job.warm_up)
    start = time.perf_counter()
    output_tokens = run(job.work)
    print_result(output_tokens, time.perf_counter() - start)


if __name__ == "__main__":
    preload()
    os.environ.update(SETTINGS)
    main(read_job())
