"""vLLM's CPU build: its offline engine."""

import os
import time

from protocol import Job, print_result, read_job

# GiB for keys and values.
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")


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
    main(read_job())
