"""How well a model in a format predicts a text, alone and beside a reference, on the CPU.

A text is cut into windows, and each is computed as a sequence of its own, so that no score depends
on the windows before. Perplexity (Jelinek et al., 1977) says how well the text is predicted; the
Kullback-Leibler divergence from a reference says how far the probabilities of all tokens moved,
and shows differences that are too small for a perplexity.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Self

import torch
from torch import Tensor

from chairlift.api.config import Device, Dtype, KvCacheDtype, Quantize, engine_config
from chairlift.api.errors import ConfigError, ModelError
from chairlift.api.machine import memory_limit
from chairlift.attention.metadata import AttentionMetadata
from chairlift.checkpoints.files.folder import resolve_model
from chairlift.engine.loading.devices import ResolvedDevice, resolve_device
from chairlift.engine.loading.load import set_threads
from chairlift.model.config import ModelConfig
from chairlift.model.forward.kv_cache import allocate_kv_cache
from chairlift.model.forward.transformer import Transformer
from chairlift.model.memory.plan import plan_memory
from chairlift.model.parts.recurrent import allocate_states
from chairlift.model.weights.layers import load_weights
from chairlift.model.weights.resident import trim_heap
from chairlift.text.tokenizer import Tokenizer

DEFAULT_WINDOW: Final = 512
MIN_TOKENS: Final = 2
"""Tokens of a window: the first one is not scored."""
MAX_LOSS: Final = 700.0
"""Nats per token; the perplexity of a greater loss is no float64."""

_ROWS: Final = 32
"""Tokens whose logits are in memory at a time."""


@dataclass(frozen=True, slots=True)
class ModelFormat:
    """A model and the format that it is computed in, before its weights are read."""

    name: str
    folder: Path
    config: ModelConfig
    resolved: ResolvedDevice

    @classmethod
    def of(
        cls,
        name: str,
        *,
        dtype: Dtype = Dtype.AUTO,
        quantize: Quantize = Quantize.NONE,
        kv_cache_dtype: KvCacheDtype = KvCacheDtype.AUTO,
        num_threads: int | None = None,
    ) -> Self:
        """Read the configuration of a model.

        Args:
            name: `demo`, a local folder, or a Hugging Face id.
            dtype: The setting of `EngineConfig`, like the next three.
            quantize: Format of the weights.
            kv_cache_dtype: Element type of keys and values.
            num_threads: Threads of the kernels.

        Raises:
            ModelError: There is no such model, or its configuration is wrong.
            ConfigError: The format is a GPU's alone.
        """
        settings = engine_config(
            device=Device.CPU,
            dtype=dtype,
            quantize=quantize,
            kv_cache_dtype=kv_cache_dtype,
            num_threads=num_threads,
            max_num_seqs=1,
        )
        folder = resolve_model(name)
        config = ModelConfig.load(folder, settings.dtype)
        if not config.has_head:
            message = f"{name}: expected a model that generates text, got one without a head"
            raise ModelError(message)
        return cls(name, folder, config, resolve_device(settings, config))

    @property
    def description(self) -> str:
        """The format in words: `bfloat16, int4 weights`, or `bfloat16, Q4_1 weights` as stored."""
        settings = self.resolved.settings
        parts = [str(self.config.dtype).removeprefix("torch.")]
        if settings.quantize is not Quantize.NONE:
            parts.append(f"{settings.quantize} weights")
        elif (stored := self.config.stored_format) is not None:
            parts.append(f"{stored} weights")
        if settings.kv_cache_dtype is not KvCacheDtype.AUTO:
            parts.append(f"{settings.kv_cache_dtype} keys and values")
        return ", ".join(parts)

    def with_window(self, window: int) -> ResolvedDevice:
        """Return the place with the settings of one sequence of `window` tokens."""
        changes = {"max_num_batched_tokens": window, "max_model_len": window}
        settings = self.resolved.settings.model_copy(update=changes)
        return replace(self.resolved, settings=settings)


@dataclass(frozen=True, slots=True)
class Quality:
    """How well a model predicts a text."""

    num_tokens: int
    """Scored tokens: all but the first of each window."""
    perplexity: float
    kl: float | None = None
    """Mean of KL(reference || model) over the scored tokens, in nats; None without a reference."""
    agreement: float | None = None
    """Share of the scored tokens where model and reference have the same likeliest token."""


class WindowModel:
    """A loaded model that computes one window at a time."""

    def __init__(self, model: ModelFormat, window: int) -> None:
        """Read the weights, and allocate keys and values for one window.

        Args:
            model: The model and its format.
            window: The most tokens of a window.

        Raises:
            ModelError: The weights cannot be loaded.
        """
        resolved, config = model.with_window(window), model.config
        set_threads(resolved.settings)
        self.name = model.name
        self._backend, self._block_size = resolved.backend, resolved.settings.block_size
        weights = load_weights(
            model.folder,
            config,
            quantize=resolved.settings.quantize,
            kernels=resolved.backend.kernels,
        )
        trim_heap()
        self._model = Transformer(config, weights, resolved.backend)
        self._model.reserve(window)
        num_groups, columns = len(config.spec.kv_windows), -(-window // self._block_size)
        self._tables = 1 + torch.arange(num_groups * columns).int().view(num_groups, 1, columns)
        num_blocks = 1 + self._tables.numel()
        self._states = allocate_states(config.spec, 1)
        self._cache = allocate_kv_cache(config, self._backend, num_blocks, self._block_size)

    def hidden(self, ids: Tensor) -> Tensor:
        """Compute the hidden states `[T, H]` of a window, valid until the next call.

        Args:
            ids: int32 `[T]`.
        """
        places = torch.arange(len(ids))
        blocks, offsets = places // self._block_size, places % self._block_size
        metadata = AttentionMetadata(
            rows=torch.zeros(1).int(),
            query_start_loc=torch.tensor([0, len(ids)]).int(),
            seq_lens=torch.tensor([len(ids)]).int(),
            positions=places.int(),
            slot_mapping=self._tables[:, 0, blocks] * self._block_size + offsets.int(),
            block_tables=self._tables,
            block_size=self._block_size,
        )
        return self._model.forward(ids, metadata, self._cache, states=self._states)

    def log_probs(self, hidden: Tensor) -> Tensor:
        """Return the float64 log probabilities `[S, vocab_size]` after the hidden `[S, H]`.

        The divergence of two near formats is less than float32 can tell from 0.
        """
        return torch.log_softmax(self._model.logits(hidden), -1, dtype=torch.float64)


class _Sums:
    """Sums over the scored tokens of one model."""

    def __init__(self) -> None:
        self.num_tokens = 0
        self.loss = 0.0
        self.kl = 0.0
        self.num_equal = 0

    def add(self, log_probs: Tensor, targets: Tensor) -> None:
        """Add the loss of the tokens `[S]` that follow, given `[S, vocab_size]`."""
        self.num_tokens += len(targets)
        self.loss -= float(log_probs.gather(1, targets[:, None]).sum())

    def compare(self, log_probs: Tensor, reference: Tensor) -> None:
        """Add the divergence from the reference and the agreement, both `[S, vocab_size]`."""
        self.num_equal += int((log_probs.argmax(-1) == reference.argmax(-1)).sum())
        self.kl += float((reference.exp() * (reference - log_probs)).sum())

    def quality(self, name: str, *, is_compared: bool) -> Quality:
        """Return the means; raise ModelError if the loss is not finite."""
        loss = self.loss / self.num_tokens
        # False also where the loss is not a number.
        if not loss < MAX_LOSS:
            message = f"{name}: expected a loss below {MAX_LOSS:g} nats per token, got {loss:g}"
            raise ModelError(message)
        if not is_compared:
            return Quality(self.num_tokens, math.exp(loss))
        num_tokens = self.num_tokens
        kl, agreement = self.kl / num_tokens, self.num_equal / num_tokens
        return Quality(num_tokens, math.exp(loss), kl, agreement)


def measure_quality(
    windows: Sequence[Tensor],
    model: WindowModel,
    reference: WindowModel | None = None,
    on_progress: Callable[[int], None] = lambda _: None,
) -> list[Quality]:
    """Score windows by a model, and compare its probabilities with those of a reference.

    Memory holds the hidden states of one window and the logits of some of its tokens.

    Args:
        windows: int32 `[T]` each, of at least 2 tokens.
        model: Whose quality is measured.
        reference: A model of the same vocabulary size; None compares with nothing.
        on_progress: Called with the tokens of a window after each model has computed it.

    Returns:
        The quality of the model, then that of the reference, which has no divergence.

    Raises:
        ModelError: The logits are not finite, or so wrong that the perplexity is not.
    """
    models = [model] if reference is None else [model, reference]
    sums = [_Sums() for _ in models]
    with torch.inference_mode():
        for ids in windows:
            states = []
            for each in models:
                states.append(each.hidden(ids))
                on_progress(len(ids))
            targets = ids[1:].long()
            for start in range(0, len(targets), _ROWS):
                part = slice(start, min(start + _ROWS, len(targets)))
                pairs = zip(models, states, strict=True)
                log_probs = [each.log_probs(hidden[part]) for each, hidden in pairs]
                for sum_, scores in zip(sums, log_probs, strict=True):
                    sum_.add(scores, targets[part])
                if reference is not None:
                    sums[0].compare(*log_probs)
    return [
        sum_.quality(each.name, is_compared=reference is not None and each is model)
        for sum_, each in zip(sums, models, strict=True)
    ]


def check_formats(
    formats: Sequence[ModelFormat], window: int | None, memory: int | None = None
) -> int:
    """Check that models can be compared and fit into memory together; return the window.

    Args:
        formats: The model, and the reference if there is one.
        window: Tokens of a window; None is 512, or the context of the models where it is shorter.
        memory: Bytes this process may use; None asks the system.

    Raises:
        ConfigError: The vocabularies differ (`against`), a model has a shorter context (`window`),
            or the memory is too small (`memory`).
    """
    first, *others = formats
    for other in others:
        sizes = first.config.spec.vocab_size, other.config.spec.vocab_size
        if sizes[0] != sizes[1]:
            message = (
                f"against: expected a model with the vocabulary size of {first.name}, {sizes[0]},"
                f" got {other.name} with {sizes[1]}"
            )
            raise ConfigError(message)
    longest = min(each.config.max_model_len for each in formats)
    chosen = min(DEFAULT_WINDOW, longest) if window is None else window
    if chosen > longest:
        message = f"window: expected at most max_model_len, {longest}, got {chosen}"
        raise ConfigError(message)
    places = [each.with_window(chosen) for each in formats]
    num_bytes = sum(
        plan_memory(resolved.settings, each.config, resolved.backend, memory).total_bytes
        for resolved, each in zip(places, formats, strict=True)
    )
    limit = memory_limit() if memory is None else memory
    if num_bytes > limit:
        models = "both models together" if len(formats) > 1 else first.name
        message = (
            f"memory: expected at most {limit} bytes (all that this process may use), got"
            f" {num_bytes} for {models}"
        )
        raise ConfigError(message)
    return chosen


def cut_windows(model: ModelFormat, text: str, window: int, max_tokens: int) -> list[Tensor]:
    """Tokenize a text without special tokens and cut it into windows.

    Where the tokenizer begins a text with the bos token, each window begins with it, since the
    model has seen no text without: it counts in `window`, not in `max_tokens`, and is not scored.

    Args:
        model: Whose tokenizer is used.
        text: Any text.
        window: Tokens of a window, at least 2.
        max_tokens: The first tokens of the text that are used.

    Returns:
        int32 `[T]` each: `window` tokens, the last one what is left, if those are 2 or more.

    Raises:
        ConfigError: The text has less than 2 tokens.
        ModelError: The tokenizer cannot be read, or has tokens that the model does not know.
    """
    tokenizer = Tokenizer.load(model.folder)
    ids = tokenizer.encode(text, add_special_tokens=False)[:max_tokens]
    if len(ids) < MIN_TOKENS:
        message = f"text: expected at least {MIN_TOKENS} tokens, got {len(ids)}"
        raise ConfigError(message)
    vocab_size = model.config.spec.vocab_size
    if max(ids) >= vocab_size:
        message = (
            f"{model.name}: expected token ids below the vocabulary size {vocab_size}, got"
            f" {max(ids)} from the tokenizer"
        )
        raise ModelError(message)
    start = tokenizer.encode("")[:1]
    prefix = start if start == [tokenizer.bos_token_id] else []
    return list(_windows(ids, prefix, window))


def _windows(ids: list[int], prefix: list[int], window: int) -> Iterator[Tensor]:
    """Yield the prefix and the next tokens of the text, `window` together."""
    step = window - len(prefix)
    for start in range(0, len(ids), step):
        cut = prefix + ids[start : start + step]
        if len(cut) >= MIN_TOKENS:
            yield torch.tensor(cut, dtype=torch.int32)
