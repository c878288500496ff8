"""Settings of a replay that may differ from the recorded run."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from chairlift.replay.device_models import DeviceName
from chairlift.replay.reservation import Reserve


class ReplayOptions(BaseModel):
    """Settings that replace the trace's; None keeps the trace's."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True
    )

    batch_size: Annotated[int, Field(ge=1)] | None = None
    """Requests of a full static or dynamic batch."""
    batch_window_s: Annotated[float, Field(ge=0)] | None = None
    """dynamic: longest wait of the oldest request for a full batch."""
    batch_timeout_s: Annotated[float, Field(ge=0)] | None = None
    """static: the same, while streams stay open."""
    max_num_seqs: Annotated[int, Field(ge=1)] | None = None
    """Rows of the batch."""
    max_num_batched_tokens: Annotated[int, Field(ge=1)] | None = None
    """Token budget of a step."""
    step_budget_s: Annotated[float, Field(gt=0)] | None = None
    """Time of a step: prompts are cut into chunks that fit."""
    max_model_len: Annotated[int, Field(ge=2)] | None = None
    """Longest sequence, prompt and answer; longer answers are cut."""
    max_queued_requests: Annotated[int, Field(ge=1)] | None = None
    """Cap of the waiting queue."""
    block_size: Annotated[int, Field(ge=1)] | None = None
    """Tokens of a KV block."""
    kv_cache_memory: Annotated[int, Field(ge=1)] | None = None
    """Memory of the KV cache, such as 2GiB."""
    prefix_cache: bool | None = None
    """Share the KV blocks of equal prompt beginnings."""
    reserve: Reserve | None = None
    """KV memory that a request reserves at its start; default: none, blocks as it grows."""
    device_model: DeviceName | None = None
    """Step time and KV memory of a device that runs a model, by name."""
    step_fixed_s: Annotated[float, Field(ge=0)] | None = None
    """Time of a step with nothing in it."""
    step_per_token_s: Annotated[float, Field(ge=0)] | None = None
    """Time of each token that is computed."""
    step_per_context_token_s: Annotated[float, Field(ge=0)] | None = None
    """Time of each token whose keys and values are read."""
