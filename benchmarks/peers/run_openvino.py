"""OpenVINO GenAI: its continuous batching pipeline."""

import os
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
    """Export the checkpoint; weights are stored as float16, the usual format, then compressed.

    int8 has a scale for each output, int4 a scale and a zero point for 32 inputs of an output, as
    Chairlift's int4 has a scale and a minimum. NNCF is called here, since `main_export` takes a
    `quantization_config` and leaves the weights as they are.
    """
    import nncf
    from optimum.exporters.openvino import main_export
    from optimum.intel import OVConfig

    partial = job.converted.with_name(job.converted.name + ".partial")
    stored = OVConfig(dtype="fp32" if job.dtype == "float32" else "fp16")
    main_export(str(job.model), partial, task="text-generation-with-past", ov_config=stored)
    modes = {
        "int8": {"mode": nncf.CompressWeightsMode.INT8_SYM},
        "int4": {"mode": nncf.CompressWeightsMode.INT4_ASYM, "group_size": 32, "ratio": 1.0},
    }
    if job.dtype in modes:
        file = partial / "openvino_model.xml"
        model = nncf.compress_weights(openvino.Core().read_model(file), **modes[job.dtype])
        compressed = partial / "compressed.xml"
        openvino.save_model(model, compressed)
        # The first file is mapped until the model is gone.
        del model
        for suffix in (".xml", ".bin"):
            compressed.with_suffix(suffix).rename(file.with_suffix(suffix))
    partial.rename(job.converted)


def pipeline(job: Job) -> openvino_genai.ContinuousBatchingPipeline:
    """Load the model with as many rows as the others have."""
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.cache_size = CACHE_GIB
    scheduler.max_num_seqs = job.rows
    scheduler.max_num_batched_tokens = STEP_TOKENS
    scheduler.dynamic_split_fuse = True
    scheduler.enable_prefix_caching = False
    # Held to AVX2 it still believes that the processor computes bf16; such a processor has f32.
    is_wide = job.dtype == "float32" or "ONEDNN_MAX_CPU_ISA" in os.environ
    precision = "f32" if is_wide else "bf16"
    properties = {"INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": job.threads}
    # The plugin would take eight bits, but a model that is exported in 16 asks for as many.
    if job.kv_cache_dtype == "int8":
        properties["KV_CACHE_PRECISION"] = "u8"
    return openvino_genai.ContinuousBatchingPipeline(
        str(job.converted), scheduler, "CPU", properties
    )


def run(
    pipe: openvino_genai.ContinuousBatchingPipeline, work: list[tuple[list[int], int]], rows: int
) -> int:
    """Run the work to its end, `rows` requests at once, and count the tokens.

    With chunked prompts the scheduler does not hold to `max_num_seqs`: a request is added when
    another has ended.
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
