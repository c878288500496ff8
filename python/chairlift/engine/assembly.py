"""Puts the parts of an engine together, each with the sizes that the others need."""

import secrets
from collections.abc import Callable

import torch

from chairlift import _core
from chairlift.attention.cuda import CudaBackend
from chairlift.config import EngineConfig
from chairlift.engine.device_runner import Captured, DeviceRunner
from chairlift.engine.loading import LoadedModel
from chairlift.engine.model_runner import ModelRunner, RunnerShape
from chairlift.engine.prepare import Limits, Preparer
from chairlift.engine.text_limits import TextLimits
from chairlift.machine import available_cores
from chairlift.scheduler import new_scheduler
from chairlift.types import Sampling


def set_threads(config: EngineConfig) -> None:
    """Gives the cores to the kernels, whatever the number of engines in the process."""
    # The kernels have their own threads. PyTorch's would only spin beside them, since all it does
    # here is gather and add.
    torch.set_num_threads(1)
    _core.set_num_threads(config.num_threads or available_cores())


def steps_in_flight(config: EngineConfig) -> int:
    """Gives how many steps may run before the first of them has ended.

    A CPU computes a step on the thread that plans it: there is nothing to overlap. For a GPU the
    settings say 2 (`devices.py`).
    """
    return config.steps_in_flight or 1


def new_runner(
    loaded: LoadedModel, shape: RunnerShape, clock: Callable[[], int], on_capture: Captured | None
) -> ModelRunner:
    """Builds the runner of a model, with empty tables."""
    model, place, kv_cache = loaded.transformer, loaded.place, loaded.kv_cache
    host_pool = None if loaded.host_pool is None else loaded.host_pool.blocks
    if place.accelerator is None:
        return ModelRunner(model, kv_cache, shape, clock, host_pool)
    assert isinstance(place.backend, CudaBackend), "the only backend of an accelerator"
    return DeviceRunner(
        *(model, place.backend, kv_cache, shape, clock, place.accelerator, on_capture, host_pool)
    )


def scheduler_of(config: EngineConfig, loaded: LoadedModel) -> _core.Scheduler:
    """Builds an idle scheduler for a model.

    Raises:
        ConfigError: A setting is out of range.
    """
    host_pool = loaded.host_pool
    return new_scheduler(
        config,
        max_model_len=loaded.max_model_len,
        vocab_size=loaded.config.spec.vocab_size,
        num_blocks=loaded.num_blocks,
        kv_windows=loaded.config.spec.kv_windows,
        hash_key=secrets.token_bytes(32),
        token_table=loaded.tokenizer.token_table(loaded.config.spec.vocab_size),
        steps_in_flight=steps_in_flight(config),
        num_host_blocks=0 if host_pool is None else host_pool.num_blocks,
        swap_block_time=0 if host_pool is None else host_pool.block_time,
    )


def runner_shape(
    config: EngineConfig, loaded: LoadedModel, scheduler: _core.Scheduler
) -> RunnerShape:
    """Gives the sizes of the runner's tables, which are the scheduler's."""
    return RunnerShape(
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        num_kv_groups=len(loaded.config.spec.kv_windows),
        max_blocks_per_row=-(-scheduler.max_context_len // config.block_size),
        block_size=config.block_size,
        num_slots=scheduler.num_slots,
        steps_in_flight=steps_in_flight(config),
    )


def new_preparer(config: EngineConfig, loaded: LoadedModel, scheduler: _core.Scheduler) -> Preparer:
    """Builds what checks requests against the model and the server."""
    limits = Limits(
        vocab_size=loaded.config.spec.vocab_size,
        text=TextLimits(
            max_bytes=config.max_text_bytes,
            longest_token_bytes=loaded.tokenizer.longest_token_bytes,
            max_model_len=loaded.max_model_len,
            max_context_len=scheduler.max_context_len,
        ),
        eos_token_ids=loaded.config.eos_token_ids or loaded.tokenizer.eos_token_ids,
        max_answers=scheduler.max_answers,
    )
    model = loaded.config.generation
    defaults = Sampling(model.temperature, model.top_k, model.top_p, model.min_p)
    return Preparer(config, loaded.tokenizer, limits, defaults)
