"""Brings a model into memory: folder, configuration, tokenizer, weights, KV cache."""

import functools
import logging
import time
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

from chairlift import _core
from chairlift.api.choices import ModelImpl
from chairlift.api.config import EngineConfig, check_instruction_set, engine_config
from chairlift.api.errors import ConfigError, ModelError
from chairlift.api.machine import available_cores, memory_limit
from chairlift.api.pooled import NOTHING
from chairlift.api.types import Sampling
from chairlift.checkpoints.checkpoint import check_files
from chairlift.checkpoints.files.folder import resolve_model
from chairlift.engine.loading.devices import ResolvedDevice, load_kernels, resolve_device
from chairlift.engine.loading.draft import check_tokenizers, plan_draft
from chairlift.engine.loading.encoder import encoder_settings, load_encoder
from chairlift.engine.loading.loaded import HostPool, LoadedModel, OnProgress
from chairlift.engine.loading.ranks import load_lead, of_rank, rank_threads
from chairlift.engine.lora.registry import Adapters
from chairlift.engine.pooling.decoder import decoder_abilities
from chairlift.engine.prepare.grammars import ConstraintPreparer
from chairlift.engine.prepare.preparer import Preparer
from chairlift.engine.prepare.stopping import RequestLimits
from chairlift.engine.prepare.text_queue import TextLimits
from chairlift.engine.ranks.lead import Ranks
from chairlift.engine.ranks.processes import RANK_MODULE
from chairlift.kernels.cuda.device import Accelerator
from chairlift.model.config import ModelConfig
from chairlift.model.encoders.families import is_encoder, load_encoder_config
from chairlift.model.encoders.spec import EncoderConfig
from chairlift.model.forward.kv_cache import allocate_kv_cache, touch_first_blocks
from chairlift.model.forward.transformer import Transformer
from chairlift.model.generic.config import load_generic_config
from chairlift.model.generic.transformer import GenericTransformer
from chairlift.model.lora.tables import AdapterTables
from chairlift.model.memory.encoders import plan_encoder
from chairlift.model.memory.plan import MemoryPlan, plan_memory
from chairlift.model.parts.recurrent import States, allocate_state_pool, allocate_states, num_states
from chairlift.model.weights.layers import load_weights
from chairlift.model.weights.resident import release_library_pages, trim_heap
from chairlift.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

_MEASURED_BLOCKS = 16
_ROUNDS = 5


@functools.cache
def _release_library_pages_once() -> None:
    # Its first engine is what a process loads libraries for; for each further one it would read the
    # mappings of the process, tenths of a second, and take pages out that are in use.
    release_library_pages()


def set_threads(config: EngineConfig) -> None:
    """Set the threads of the kernels, whatever the number of engines in the process.

    Raises:
        ConfigError: The environment names an instruction set that there is not.
    """
    check_instruction_set()
    # The kernels have their own threads. PyTorch's would only spin beside them, since all it does
    # here is gather and add.
    torch.set_num_threads(1)
    _core.set_num_threads(rank_threads(config))


def load_model(
    model: str | Path,
    settings: EngineConfig,
    on_progress: OnProgress | None,
    accelerator: Accelerator | None = None,
    rank_module: str = RANK_MODULE,
) -> LoadedModel:
    """Read a model, and allocate its KV cache and the host memory for swapped blocks.

    Args:
        model: Its name, as `resolve_model` takes it.
        settings: The engine's settings.
        on_progress: Called with the bytes of weights that are read, and all of them: of the model,
            then of its draft model.
        accelerator: The GPU to use; None looks for one.
        rank_module: Has `main`, the process of another rank.

    Raises:
        ModelError: The model cannot be loaded.
        ConfigError: A setting does not fit the model.
    """
    folder = resolve_model(str(model))
    config = load_config(folder, settings)
    if isinstance(config, EncoderConfig) or config.spec.bidirectional:
        return load_encoder(folder, config, settings, on_progress)
    max_model_len = settings.max_model_len or config.max_model_len
    if max_model_len > config.max_model_len:
        message = (
            f"max_model_len: expected at most the model's {config.max_model_len},"
            f" got {max_model_len}"
        )
        raise ConfigError(message)
    # LongRoPE depends on the longest sequence that is served.
    config = replace(config, max_model_len=max_model_len)
    resolved = resolve_device(settings, config, accelerator)
    settings, backend = resolved.settings, resolved.backend
    config = of_rank(config, resolved)
    if not config.has_head and (resolved.accelerator is not None or settings.draft is not None):
        what = "a draft model" if resolved.accelerator is None else "a GPU"
        message = f"{folder}: no head scores the vocabulary: it gives vectors alone, without {what}"
        raise ModelError(message)
    config = load_kernels(resolved, config)
    plan = plan_at(resolved, config)
    tokenizer = Tokenizer.load(folder)
    config = replace(config, eos_token_ids=end_token_ids(config, tokenizer))
    draft = plan_draft(settings, config, plan.num_blocks)
    if draft is not None:
        check_tokenizers(folder, tokenizer, draft.folder)
    transformer, ranks = _load_part(folder, config, resolved, plan, on_progress, rank_module)
    trim_heap()
    kv_cache = allocate_kv_cache(config, backend, plan.num_blocks, settings.block_size)
    if resolved.accelerator is None:
        touch_first_blocks(kv_cache, plan.weight_bytes)
        _release_library_pages_once()
    num_snapshots = plan.num_state_snapshots
    states, state_pool = _new_states(resolved, config, num_snapshots)
    return LoadedModel(
        config=config,
        tokenizer=tokenizer,
        transformer=transformer,
        kv_cache=kv_cache,
        num_blocks=plan.num_blocks,
        max_model_len=max_model_len,
        resolved=resolved,
        host_pool=new_host_pool(resolved, config, kv_cache, plan),
        states=states,
        state_pool=state_pool,
        num_state_snapshots=num_snapshots if config.spec.has_state else None,
        pooling=NOTHING
        if resolved.accelerator is not None or isinstance(transformer, GenericTransformer)
        else decoder_abilities(folder, config, max_model_len),
        draft=None if draft is None else load_model(draft.folder, draft.settings, on_progress),
        draft_folder=None if draft is None else draft.folder,
        ranks=ranks,
    )


def end_token_ids(config: ModelConfig | EncoderConfig, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return the tokens that end an answer: all that a file of the model names and it can draw."""
    named = dict.fromkeys((*config.eos_token_ids, *tokenizer.eos_token_ids))
    return tuple(token for token in named if token < config.spec.vocab_size)


def _new_states(
    resolved: ResolvedDevice, config: ModelConfig, num_snapshots: int
) -> tuple[States | None, Tensor | None]:
    """Return the states of a hybrid on a CPU, or the pool that holds them on a GPU."""
    if not config.spec.has_state:
        return None, None
    num_rows = num_states(resolved.settings.max_num_seqs) + num_snapshots
    if resolved.accelerator is None:
        return allocate_states(config.spec, num_rows), None
    return None, allocate_state_pool(config.spec, num_rows, resolved.torch_device)


def _load_part(
    folder: Path,
    config: ModelConfig,
    resolved: ResolvedDevice,
    plan: MemoryPlan,
    on_progress: OnProgress | None,
    rank_module: str,
) -> tuple[Transformer | GenericTransformer, Ranks | None]:
    """Read the weights that this process computes with: all of them where there is one rank."""
    if config.share is None:
        return _load_layers(folder, config, resolved, on_progress), None
    return load_lead(folder, config, resolved, plan, on_progress, rank_module)


def _load_layers(
    folder: Path, config: ModelConfig, resolved: ResolvedDevice, on_progress: OnProgress | None
) -> Transformer | GenericTransformer:
    """Read the weights of a decoder."""
    settings, backend = resolved.settings, resolved.backend
    if settings.model_impl is ModelImpl.TRANSFORMERS:
        # Its layers are PyTorch's, on as many threads as our kernels have.
        torch.set_num_threads(settings.num_threads or available_cores())
        return GenericTransformer.load(folder, config, backend)
    weights = load_weights(
        folder,
        config,
        on_progress,
        settings.quantize,
        kernels=backend.kernels,
        device=resolved.torch_device,
    )
    num_adapters = settings.num_adapter_slots
    tables = AdapterTables(config.spec.num_layers, num_adapters) if num_adapters else None
    return Transformer(config, weights, backend, tables)


def load_config(model: Path, settings: EngineConfig) -> ModelConfig | EncoderConfig:
    """Read the configuration of a decoder or an encoder.

    Raises:
        ModelError: A file is missing or malformed, or a field asks for something unsupported.
    """
    if settings.model_impl is ModelImpl.TRANSFORMERS:
        config: ModelConfig | EncoderConfig = load_generic_config(model, settings.dtype)
    elif is_encoder(model):
        config = load_encoder_config(model, settings.dtype)
    else:
        config = ModelConfig.load(model, settings.dtype)
    # Known before memory is planned.
    check_files(model)
    return config


def new_host_pool(
    resolved: ResolvedDevice, model: ModelConfig, kv_cache: Tensor, plan: MemoryPlan
) -> HostPool | None:
    """Allocate the pool beside a KV cache that is not in use yet, and measure it.

    Args:
        resolved: Where the model runs.
        model: Its shape.
        kv_cache: Its pool of blocks, whose contents are overwritten.
        plan: The size of both pools; None is returned where that is 0.
    """
    num_blocks = plan.num_host_blocks
    if num_blocks == 0:
        return None
    if resolved.accelerator is None:
        blocks = allocate_kv_cache(
            model, resolved.backend, num_blocks, resolved.settings.block_size
        )
    else:
        layers, two, _, *block = kv_cache.shape
        blocks = resolved.accelerator.host_buffer(
            layers, two, num_blocks, *block, dtype=kv_cache.dtype
        )
    # The null block is never written.
    num_moved = min(_MEASURED_BLOCKS, num_blocks, plan.num_blocks - 1)
    return HostPool(blocks, num_blocks, _block_time(resolved, kv_cache, blocks, num_moved))


def _block_time(resolved: ResolvedDevice, kv_cache: Tensor, host: Tensor, num_moved: int) -> int:
    """Return the median time to move a block one way, in nanoseconds."""
    there = torch.arange(num_moved, dtype=torch.int32)
    inward = torch.stack((there, there + 1), dim=1)
    outward = inward.flip(1)

    def move_both_ways() -> int:
        began = time.perf_counter_ns()
        resolved.backend.copy_blocks(host, kv_cache, outward)
        resolved.backend.copy_blocks(kv_cache, host, inward)
        if resolved.accelerator is not None:
            resolved.accelerator.record().synchronize()
        return time.perf_counter_ns() - began

    if resolved.accelerator is not None:
        # A large cache takes time to become zeros.
        resolved.accelerator.record().synchronize()
    with nullcontext() if resolved.accelerator is None else resolved.accelerator.side_stream():
        # The first round touches the pages.
        move_both_ways()
        return max(1, round(median(move_both_ways() for _ in range(_ROUNDS)) / (2 * num_moved)))


def plan_at(resolved: ResolvedDevice, model: ModelConfig) -> MemoryPlan:
    """Return the memory plan of a model where it is to run.

    Raises:
        ConfigError: It does not fit.
    """
    plan = _plan(resolved, model, resolved.free_bytes)
    if model.share is None or resolved.accelerator is not None:
        plan.check(resolved.free_bytes)
    else:
        plan.check(memory_limit() // resolved.settings.num_local_ranks)
    return plan


def _plan(resolved: ResolvedDevice, model: ModelConfig, free_bytes: int | None) -> MemoryPlan:
    settings, is_dedicated = resolved.settings, resolved.accelerator is not None
    plan = plan_memory(settings, model, resolved.backend, free_bytes, is_dedicated=is_dedicated)
    draft = plan_draft(settings, model, plan.num_blocks)
    return plan if draft is None else replace(plan, draft_bytes=draft.memory.total_bytes)


def replan_memory(
    settings: EngineConfig,
    model: ModelConfig | EncoderConfig,
    free_bytes: int | None = None,
    **changes: object,
) -> tuple[MemoryPlan, int | None]:
    """Return the memory plan of a model with some settings changed.

    Args:
        settings: The settings without the changes.
        model: Its shape.
        free_bytes: Free memory of a GPU before it had the model; None reads it now.
        changes: Settings in the place of those.

    Returns:
        The plan, and the free bytes of the GPU that would run the model; None is the CPU.

    Raises:
        ConfigError: A setting is wrong.
    """
    changed = engine_config(**{**settings.model_dump(exclude_unset=True), **changes})
    if isinstance(model, EncoderConfig) or model.spec.bidirectional:
        return plan_encoder(encoder_settings(changed), model), None
    resolved = resolve_device(changed, model)
    model = of_rank(model, resolved)
    free = None if resolved.accelerator is None else free_bytes or resolved.free_bytes
    return _plan(resolved, model, free), free


def new_preparer(
    config: EngineConfig,
    loaded: LoadedModel,
    scheduler: _core.Scheduler,
    token_table: _core.TokenTable,
    adapters: Adapters,
) -> Preparer:
    """Build the preparer, which checks requests against the limits of model and server."""
    limits = RequestLimits(
        vocab_size=loaded.config.spec.vocab_size,
        text=TextLimits(
            max_bytes=config.max_text_bytes,
            longest_token_bytes=loaded.tokenizer.longest_token_bytes,
            max_model_len=loaded.max_model_len,
            max_context_len=scheduler.max_context_len,
        ),
        eos_token_ids=end_token_ids(loaded.config, loaded.tokenizer),
        max_answers=scheduler.max_answers,
        has_scores=loaded.resolved.accelerator is None,
        pooling=loaded.pooling,
    )
    defaults = Sampling(**asdict(loaded.config.generation))
    constraints = ConstraintPreparer(token_table, limits.eos_token_ids)
    return Preparer(config, loaded.tokenizer, limits, defaults, adapters, constraints)
