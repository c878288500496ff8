"""transformers: static batches, padded, each as long as its longest answer."""

import time

import torch
from protocol import Job, print_result, read_job
from transformers import AutoModelForCausalLM, PreTrainedModel

PAD = 2


def run(model: PreTrainedModel, work: list[tuple[list[int], int]], rows: int) -> int:
    """Run the work, `rows` requests at a time, and count the tokens that were asked for."""
    for start in range(0, len(work), rows):
        part = work[start : start + rows]
        width = max(len(prompt) for prompt, _ in part)
        ids = torch.full((len(part), width), PAD)
        mask = torch.zeros_like(ids)
        for row, (prompt, _) in enumerate(part):
            ids[row, width - len(prompt) :] = torch.tensor(prompt)
            mask[row, width - len(prompt) :] = 1
        longest = max(num_output for _, num_output in part)
        model.generate(
            ids,
            attention_mask=mask,
            do_sample=False,
            max_new_tokens=longest,
            min_new_tokens=longest,
            pad_token_id=PAD,
        )
    return sum(num_output for _, num_output in work)


def main(job: Job) -> None:
    """Warm up and measure."""
    torch.set_num_threads(job.threads)
    model = AutoModelForCausalLM.from_pretrained(
        job.model, dtype=getattr(torch, job.dtype), attn_implementation="sdpa"
    ).eval()
    with torch.inference_mode():
        run(model, job.warm_up, job.rows)
        start = time.perf_counter()
        output_tokens = run(model, job.work, job.rows)
    print_result(output_tokens, time.perf_counter() - start)


if __name__ == "__main__":
    main(read_job())
