"""An engine whose model computes nothing: the rest of a step is Chairlift itself.

The scheduler, the text, the event loop and the streams are the real ones, and every request gets
tokens of readable words as fast as they can be delivered, or at a pace of so many steps a second.
"""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Unpack

import torch

from chairlift.api.config import EngineConfig, EngineSettings
from chairlift.attention.cpu import CpuBackend
from chairlift.checkpoints.files.folder import resolve_model
from chairlift.engine.engine import Engine
from chairlift.engine.loading.devices import ResolvedDevice
from chairlift.engine.loading.loaded import LoadedModel, OnProgress
from chairlift.engine.runner.model_runner import ModelRunner
from chairlift.engine.runner.sampler import Sampled
from chairlift.engine.runner.shape import RunnerShape
from chairlift.engine.runner.step_inputs import StepInputs
from chairlift.model.config import ModelConfig
from chairlift.model.forward.transformer import Transformer
from chairlift.model.weights.layers import load_weights
from chairlift.text.tokenizer import Tokenizer

_TEXT = "A chairlift never stops: each rider steps off at the top, and the other riders stay on. "
_MAX_MODEL_LEN = 65_536


class NullEngine(Engine):
    """The demo model's engine, without its forward pass and its KV memory."""

    def __init__(self, *, step_time_s: float = 0.0, **settings: Unpack[EngineSettings]) -> None:
        """Load the demo model; contexts may be longer than the model's.

        Args:
            step_time_s: A step ends at a multiple of this on the monotonic clock, so that a reader
                of its tokens can tell how long they took; 0 is as fast as possible.
            settings: Fields of `EngineConfig`. Without `drafts` there are none: the words repeat,
                and a step that yields several of them would not show what one token costs.

        Raises:
            ConfigError: A setting is wrong.
        """
        loader = partial(_load, round(step_time_s * 1e9))
        if settings.get("drafts") is None:
            settings["drafts"] = "off"
        super().__init__(
            "demo", on_progress=None, clock=time.monotonic_ns, loader=loader, **settings
        )


def _load(
    period_ns: int, model: str | Path, config: EngineConfig, on_progress: OnProgress | None
) -> LoadedModel:
    """Read the model; no KV cache is allocated, however long the contexts."""
    folder = resolve_model(str(model))
    model_config = ModelConfig.load(folder, config.dtype)
    weights = load_weights(folder, model_config, on_progress)
    backend, tokenizer = CpuBackend(), Tokenizer.load(folder)
    max_model_len = config.max_model_len or _MAX_MODEL_LEN
    ids = tokenizer.encode(_TEXT, add_special_tokens=False)

    def new_runner(
        loaded: LoadedModel, shape: RunnerShape, clock: Callable[[], int]
    ) -> _NullRunner:
        assert isinstance(loaded.transformer, Transformer), "the demo model is a decoder"
        return _NullRunner(loaded.transformer, shape, ids, period_ns, clock)

    return LoadedModel(
        config=model_config,
        tokenizer=tokenizer,
        transformer=Transformer(model_config, weights, backend),
        kv_cache=torch.empty(0),
        num_blocks=1 + config.max_num_seqs * -(-max_model_len // config.block_size),
        max_model_len=max_model_len,
        resolved=ResolvedDevice(config, backend, None),
        runner_factory=new_runner,
    )


class _NullRunner(ModelRunner):
    """Keeps the tables, but takes its tokens from a list."""

    def __init__(
        self,
        model: Transformer,
        shape: RunnerShape,
        ids: list[int],
        period_ns: int,
        clock: Callable[[], int],
    ) -> None:
        super().__init__(model, torch.empty(0), shape, clock)
        max_samples = shape.max_num_seqs + shape.max_num_drafts
        self._words = torch.tensor(ids, dtype=torch.int32).repeat(2 + max_samples // len(ids))
        self._num_words = len(ids)
        self._num_steps = 0
        self._period_ns = period_ns
        self._clock = clock

    def move_blocks(self, inputs: StepInputs) -> None:
        """Move nothing: there are no blocks."""

    def run(self, inputs: StepInputs) -> Sampled:
        """Return the next word for every row that samples."""
        num_samples = len(inputs.sample_rows)
        self._num_steps += 1
        first = self._num_steps % self._num_words
        sampled = Sampled(
            tokens=self._words[first : first + num_samples],
            logprobs=torch.zeros(num_samples),
            ranks=torch.ones(num_samples, dtype=torch.int32),
        )
        if self._period_ns:
            time.sleep((self._period_ns - self._clock() % self._period_ns) * 1e-9)
        return sampled

    def probe(self) -> None:
        """Find nothing wrong."""
