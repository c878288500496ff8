"""Which draft model an engine has: its settings and memory, and whether it fits the model.

Nothing here reads weights: a draft model that does not fit is refused before those of the model are
read.
"""

from pathlib import Path
from typing import Final, NamedTuple

from chairlift.api.config import Device, Drafts, EngineConfig
from chairlift.api.errors import ConfigError, ModelError
from chairlift.checkpoints.checkpoint import check_files
from chairlift.checkpoints.files.folder import resolve_model
from chairlift.engine.loading.devices import resolve_device
from chairlift.engine.loading.requirement import Requirement, unmet
from chairlift.model.config import ModelConfig
from chairlift.model.encoders.families import is_encoder
from chairlift.model.forward.kv_cache import kv_bytes_per_block
from chairlift.model.memory.plan import MemoryPlan, plan_memory
from chairlift.text.tokenizer import Tokenizer

KV_CACHE_BYTES: Final = 2**28
"""Size of the KV cache of a draft model at most."""


class DraftPlan(NamedTuple):
    """A draft model before it is loaded."""

    folder: Path
    settings: EngineConfig
    """What `load_model` takes for it."""
    memory: MemoryPlan


def plan_draft(settings: EngineConfig, model: ModelConfig, num_blocks: int) -> DraftPlan | None:
    """Return the draft model of an engine on a CPU; None if the settings name none.

    Args:
        settings: The engine's, with the defaults of the device.
        model: The model that it drafts for.
        num_blocks: Blocks of the KV cache of that model.

    Raises:
        ConfigError: There is no such model, it cannot draft, or another setting leaves no drafts.
    """
    _check(settings)
    if settings.draft is None:
        return None
    try:
        folder = resolve_model(settings.draft)
        if is_encoder(folder):
            message = f"draft: expected a model that generates text, got the encoder {folder}"
            raise ConfigError(message)
        config = ModelConfig.load(folder, settings.dtype)
        check_files(folder)
    except ModelError as error:
        message = f"draft: {error}"
        raise ConfigError(message) from None
    if not config.has_head:
        message = f"draft: expected a model that generates text, got {folder}, which has no head"
        raise ConfigError(message)
    if config.spec.has_state:
        message = f"draft: expected a model without recurrent states, got {folder}"
        raise ConfigError(message)
    if len(config.spec.kv_windows) > 1:
        message = f"draft: expected a model whose layers share one window, got {folder}"
        raise ConfigError(message)
    draft_settings = settings.model_copy(
        update={
            "device": Device.CPU,
            "draft": None,
            "draft_quantize": None,
            "quantize": settings.draft_quantize or settings.quantize,
            "drafts": Drafts.OFF,
            "max_model_len": min(
                config.max_model_len, settings.max_model_len or model.max_model_len
            ),
            "swap_memory": None,
            "adapters": None,
            "adapter_folder": None,
            "max_adapters": 0,
        }
    )
    backend = resolve_device(draft_settings, config).backend
    block_bytes = kv_bytes_per_block(config, backend, draft_settings.block_size)
    # No more than the model itself has room for.
    cache_bytes = max(2 * block_bytes, min(KV_CACHE_BYTES, num_blocks * block_bytes))
    draft_settings = draft_settings.model_copy(update={"kv_cache_memory": cache_bytes})
    return DraftPlan(folder, draft_settings, plan_memory(draft_settings, config, backend))


def check_tokenizers(model: Path, ours: Tokenizer, draft: Path) -> None:
    """Check that a draft model has the tokenizer of the model, token by token.

    Args:
        model: Folder or file of the model.
        ours: Its tokenizer.
        draft: Folder or file of the draft model.

    Raises:
        ConfigError: The tokenizer of the draft model cannot be read, or differs in a token.
    """
    try:
        theirs = Tokenizer.load(draft)
    except ModelError as error:
        message = f"draft: {error}"
        raise ConfigError(message) from None
    expected = f"draft: expected the tokenizer of {model}, got that of {draft}:"
    if ours.vocab_size != theirs.vocab_size:
        message = f"{expected} {theirs.vocab_size} tokens instead of {ours.vocab_size}"
        raise ConfigError(message)
    for token in range(ours.vocab_size):
        wanted, got = ours.token_bytes(token), theirs.token_bytes(token)
        if wanted != got:
            message = f"{expected} token {token} is {got!r} instead of {wanted!r}"
            raise ConfigError(message)


def _check(settings: EngineConfig) -> None:
    """Raise ConfigError if other settings do not go with the draft model, or the lack of one."""
    if settings.draft is None:
        if settings.draft_quantize is not None:
            message = (
                f"draft_quantize: expected none without a draft model, got"
                f" {settings.draft_quantize.value}"
            )
            raise ConfigError(message)
        return
    steps, num_tokens = settings.steps_in_flight, settings.max_num_batched_tokens
    more, drafts = f"more than max_num_seqs ({settings.max_num_seqs})", settings.drafts
    requirements = (
        Requirement("drafts", "lookup", drafts, drafts is not Drafts.OFF),
        Requirement("steps_in_flight", "1", steps, steps in (None, 1)),
        Requirement("max_num_batched_tokens", more, num_tokens, settings.max_step_drafts > 0),
    )
    if (problem := unmet(requirements, "with a draft model")) is not None:
        raise ConfigError(problem)
