"""A model in memory."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from chairlift.api.config import EngineConfig
from chairlift.api.pooled import NOTHING, PoolingAbilities
from chairlift.attention.cuda import CudaBackend
from chairlift.engine.loading.devices import ResolvedDevice
from chairlift.engine.ranks.device_lead import LeadPass
from chairlift.engine.ranks.lead import Ranks
from chairlift.engine.runner.device_pass import DevicePass
from chairlift.engine.runner.device_runner import DeviceRunner
from chairlift.engine.runner.model_runner import ModelRunner
from chairlift.engine.runner.shape import RunnerShape
from chairlift.model.config import ModelConfig
from chairlift.model.encoders.bidirectional import BidirectionalEncoder
from chairlift.model.encoders.encoder import Encoder
from chairlift.model.encoders.spec import EncoderConfig
from chairlift.model.forward.transformer import Transformer
from chairlift.model.generic.transformer import GenericTransformer
from chairlift.model.parts.recurrent import States
from chairlift.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

OnProgress = Callable[[int, int], None]
"""Called with the bytes of weights that are read and the bytes that there are."""


class HostPool(NamedTuple):
    """Host memory for KV blocks of preempted requests, and the time to move one there.

    On a GPU the pool is pinned memory, which its kernels reach across the bus. On a CPU it is
    memory like that of the KV cache.
    """

    blocks: Tensor
    """The shape of the KV cache, with another number of blocks."""
    num_blocks: int
    block_time: int
    """Nanoseconds to move a block one way."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in memory."""

    config: ModelConfig | EncoderConfig
    tokenizer: Tokenizer
    transformer: Transformer | GenericTransformer | Encoder | BidirectionalEncoder
    kv_cache: Tensor
    num_blocks: int
    """Blocks of the KV cache, the null block included."""
    max_model_len: int
    """Tokens of prompt and output: the model's, or less where the settings say so."""
    resolved: ResolvedDevice
    """Where it runs, and the settings as they hold there."""
    host_pool: HostPool | None = None
    """For blocks of preempted requests; without it they are computed again."""
    runner_factory: "RunnerFactory | None" = None
    """Builds the runner; None takes that of the place."""
    states: States | None = None
    """States of a hybrid on a CPU, for all rows, the probe and the snapshots."""
    state_pool: Tensor | None = None
    """Those of a hybrid on a GPU."""
    num_state_snapshots: int | None = None
    """Snapshots of a hybrid's states; None for another model."""
    pooling: PoolingAbilities = NOTHING
    """What it gives besides text."""
    draft: "LoadedModel | None" = None
    """Its draft model."""
    draft_folder: Path | None = None
    """Folder or file of that."""
    ranks: Ranks | None = None
    """The processes that compute the other parts of it."""

    def new_runner(self, shape: RunnerShape, clock: Callable[[], int]) -> ModelRunner:
        """Build the runner of the model, with empty tables.

        Args:
            shape: Sizes of the tables.
            clock: Nanoseconds.

        Raises:
            ModelError: Another rank cannot load its part.
        """
        if self.runner_factory is not None:
            return self.runner_factory(self, shape, clock)
        if self.ranks is not None:
            self.ranks.begin(shape)
        model, resolved, kv_cache = self.transformer, self.resolved, self.kv_cache
        assert isinstance(model, Transformer | GenericTransformer), "an encoder brings its runner"
        host_pool = None if self.host_pool is None else self.host_pool.blocks
        if resolved.accelerator is None:
            return ModelRunner(model, kv_cache, shape, clock, host_pool, states=self.states)
        assert isinstance(resolved.backend, CudaBackend), "the only backend of an accelerator"
        assert isinstance(model, Transformer), "the other kind runs on a CPU"
        return DeviceRunner(
            model,
            backend=resolved.backend,
            kv_cache=kv_cache,
            shape=shape,
            clock=clock,
            accelerator=resolved.accelerator,
            on_capture=_log_capture,
            host_pool=host_pool,
            state_pool=self.state_pool,
            new_pass=DevicePass if self.ranks is None else partial(LeadPass, self.ranks),
        )


RunnerFactory = Callable[[LoadedModel, RunnerShape, Callable[[], int]], ModelRunner]
"""From a model, the sizes of the tables and a clock to the runner."""
Loader = Callable[[str | Path, EngineConfig, OnProgress | None], LoadedModel]
"""The form of `load_model`; benchmarks and tests bring their own."""


def _log_capture(done: int, total: int) -> None:
    # A hundred sizes on a GPU: a line for each would hide the others.
    if done == total or done % 16 == 0:
        logger.info("recorded the launches of %d of %d sizes of a step", done, total)
