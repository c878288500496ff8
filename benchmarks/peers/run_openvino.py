"""OpenVINO GenAI: its continuous batching pipeline."""

import time
from typing import Any

import numpy as np
import openvino
import openvino_genai
from protocol import STEP_TOKENS, Job, print_result, read_job

# Bytes of memory for keys and values, in GiB.
CACHE_GIB = 2
RUNNING = openvino_genai.GenerationStatus.RUNNING


def convert(job: Job) -> None:
    """Export the checkpoint; 16-bit weights are stored as float16, the format's usual one.

    int8 has a scale for each output, int4 one for 32 inputs of an output, as Chairlift's.
    """
    from optimum.exporters.openvino import main_export
    from optimum.intel import OVConfig, OVWeightQuantizationConfig

    stored = {
        "float32": OVConfig(dtype="fp32"),
        "bfloat16": OVConfig(dtype="fp16"),
        "int8": OVConfig(quantization_config=OVWeightQuantizationConfig(bits=8, sym=True)),
        "int4": OVConfig(
            quantization_config=OVWeightQuantizationConfig(
                bits=4, sym=True, group_size=32, ratio=1.0
            )
        ),
    }
    partial = job.converted.with_name(job.converted.name + ".partial")
    ov_config = stored[job.dtype]
    main_export(str(job.model), partial, task="text-generation-with-past", ov_config=ov_config)
    partial.rename(job.converted)


def pipeline(job: Job) -> openvino_genai.ContinuousBatchingPipeline:
    """Load the model with as many rows as the others have."""
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.cache_size = CACHE_GIB
    scheduler.max_num_seqs = job.rows
    scheduler.max_num_batched_tokens = STEP_TOKENS
    scheduler.dynamic_split_fuse = True
    scheduler.enable_prefix_caching = False
    precision = "f32" if job.dtype == "float32" else "bf16"
    properties = {"INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": job.threads}
    return openvino_genai.ContinuousBatchingPipeline(
        str(job.converted), scheduler, "CPU", properties
    )


def run(
    pipe: openvino_genai.ContinuousBatchingPipeline, work: list[tuple[list[int], int]], rows: int
) -> int:
    """Run the work to its end, `rows` requests at once, and count the tokens.

    Whoever adds more gets more: with chunked prompts the scheduler does not hold to `max_num_seqs`.
    """
    handles: list[Any] = []
    for number, (prompt, num_output) in enumerate(work):
        while sum(handle.get_status() == RUNNING for handle in handles) == rows:
            pipe.step()
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = num_output
        config.ignore_eos = True
        config.do_sample = False
        ids = openvino.Tensor(np.array([prompt], dtype=np.int64))
        handles.append(pipe.add_request(number, ids, config))
    while pipe.has_non_finished_requests():
        pipe.step()
    return sum(len(handle.read_all()[0].generated_ids) for handle in handles)


def main() -> None:
    """Convert the model if needed, warm up and measure."""
    job = read_job()
    if not job.converted.exists():
        convert(job)
    pipe = pipeline(job)
    run(pipe, job.warm_up, job.rows)
    start = time.perf_counter()
    output_tokens = run(pipe, job.work, job.rows)
    print_result(output_tokens, time.perf_counter() - start)


if __name__ == "__main__":
    main()
