"""Any decoder of `transformers` that attends by `AttentionInterface`, on our paged attention.

`transformers` computes the layers of all rows as one sequence; where a layer attends, its keys and
values go to the KV cache and each row reads its own. Which tokens a layer sees is what its mask
says: in the place of a mask a layer gets the size of its window. What cannot be served that way is
refused when the model loads, by a probe: a prompt that is computed whole and in two parts.

Slower than the families of `families/`, and the bits of a row depend on the batch.
"""

from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from chairlift.api.errors import ModelError
from chairlift.attention.backend import AttentionBackend, Scoring
from chairlift.attention.metadata import AttentionMetadata
from chairlift.model.config import ModelConfig
from chairlift.model.forward.kv_cache import allocate_kv_cache
from chairlift.model.generic.config import TOLERANCES, explained, import_transformers

NAME: Final = "chairlift"
"""The name of our attention among those of `transformers`."""
_OWNER: Final = "chairlift_owner"
_PROMPT: Final = 12
_PART: Final = 7
_FAR: Final = 1 << 20
"""A position at which the masks are looked at."""

_Mask = tuple[Callable[..., Any], int | None]
_masks: ContextVar[list[_Mask] | None] = ContextVar("_masks", default=None)
"""Each mask that the model creates in a probe: whether a query sees a key, and the window."""


class GenericTransformer:
    """A decoder that `transformers` computes over a paged KV cache.

    What `forward` returns are logits already: a model may scale them in its own way.

    Attributes:
        config: The configuration.
        backend: Holds the keys and values.
        adapters: None: no adapter changes such a model.
    """

    adapters = None

    def __init__(self, config: ModelConfig, model: Any, backend: AttentionBackend) -> None:  # noqa: ANN401 - of `transformers`
        self.config = config
        self.backend = backend
        self._model = model
        self._slots: tuple[Tensor, ...] = ()
        self._caches: tuple[Tensor, ...] = ()
        self._metadata: AttentionMetadata | None = None
        self._attended: list[int] = []
        for module in model.modules():
            if hasattr(module, "layer_idx"):
                # Not by `setattr` of the module, which would take a model for a part of it.
                object.__setattr__(module, _OWNER, self)

    @classmethod
    def load(
        cls, folder: Path, config: ModelConfig, backend: AttentionBackend
    ) -> "GenericTransformer":
        """Read the weights, and compare a prompt with the same in two parts.

        Raises:
            ModelError: The checkpoint does not fit, or the model cannot be served this way.
        """
        with explained(folder):
            transformers = import_transformers()
            transformers.AttentionInterface.register(NAME, _attend)
            transformers.AttentionMaskInterface.register(NAME, _mask)
            model, info = transformers.AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=config.dtype,
                attn_implementation=NAME,
                local_files_only=True,
                use_safetensors=True,
                output_loading_info=True,
            )
        for name in sorted({*info["missing_keys"], *map(str, info["mismatched_keys"])}):
            message = f"{folder}: {name}: missing or of another shape"
            raise ModelError(message)
        loaded = cls(config, model.eval().requires_grad_(requires_grad=False), backend)
        with explained(folder):
            loaded._check()
        return loaded

    def copy_blocks(self, kv_cache: Tensor, pairs: Tensor) -> None:
        """See `Transformer.copy_blocks`."""
        self.backend.copy_blocks(kv_cache, kv_cache, pairs)

    def reserve(self, max_tokens: int) -> None:
        """Reserve nothing: `transformers` allocates as it computes."""

    def forward(
        self,
        input_ids: Tensor,
        metadata: AttentionMetadata,
        kv_cache: Tensor,
        selected: Tensor | None = None,
        adapters: Tensor | None = None,
        states: object = None,
    ) -> Tensor:
        """Compute the logits `[S, vocab_size]` of a ragged batch, and write its keys and values.

        Args:
            input_ids: int32 `[T]`.
            metadata: The row, position and cache slots of each token.
            kv_cache: From `allocate_kv_cache`.
            selected: int32 `[S]`: the tokens whose logits are wanted; None wants all.
            adapters: None.
            states: None.
        """
        assert adapters is None, "refused by the settings"
        assert states is None, "as above"
        self._metadata, self._caches = metadata, kv_cache.unbind()
        self._slots = metadata.slot_mapping.unbind()
        output = self._model(
            input_ids=input_ids.long().unsqueeze(0),
            position_ids=metadata.positions.long().unsqueeze(0),
            use_cache=False,
            logits_to_keep=0 if selected is None else selected.long(),
        )
        logits: Tensor = output.logits[0]
        return logits

    def logits(self, hidden: Tensor, out: Tensor | None = None) -> Tensor:
        """Widen the logits to float32 `[S, vocab_size]`."""
        return hidden.float() if out is None else out.copy_(hidden)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, at: Scoring) -> Tensor:
        """Write keys and values of a layer, and attend; all are `[T, heads, head_dim]`.

        Raises:
            ModelError: The heads are not those of the configuration.
        """
        metadata, shape = self._metadata, self.config.spec.shape
        assert metadata is not None, "set by `forward`"
        expected = (shape.num_heads, shape.num_kv_heads, shape.num_kv_heads, shape.head_dim)
        got = (query.shape[1], key.shape[1], value.shape[1], value.shape[2])
        if got != expected or query.shape[2] != key.shape[2] != value.shape[2]:
            message = f"attention: expected heads and their size {expected}, got {got}"
            raise ModelError(message)
        self._attended.append(layer)
        cache = self._caches[layer]
        self.backend.write(cache, key, value, self._slots[0], metadata.block_size)
        return self.backend.attend(query, cache, metadata, group=0, scoring=at)

    @torch.inference_mode()
    def _check(self) -> None:
        """Compute a prompt whole and in parts.

        Raises:
            ModelError: Layers do not attend, or see other tokens than those before them, or the
                logits differ.
        """
        block_size = 16
        cache = allocate_kv_cache(self.config, self.backend, 2, block_size)
        ids = torch.arange(_PROMPT, dtype=torch.int32) % self.config.spec.vocab_size
        masks: list[_Mask] = []
        token = _masks.set(masks)
        try:
            whole = self.forward(ids, _one_row(0, _PROMPT, block_size), cache)[-1].float()
        finally:
            _masks.reset(token)
        expected = [*range(self.config.spec.num_layers)]
        if sorted(self._attended) != expected:
            message = f"{len({*self._attended})} of {len(expected)} layers attend"
            raise ModelError(message)
        if not all(_is_causal(*mask) for mask in masks):
            message = "attention: expected a token to see those before it, all or of a window"
            raise ModelError(message)
        self.forward(ids[:_PART], _one_row(0, _PART, block_size), cache)
        rest = _one_row(_PART, _PROMPT, block_size)
        parts = self.forward(ids[_PART:], rest, cache)[-1].float()
        self._attended.clear()
        limit = TOLERANCES[self.config.dtype] * float(whole.abs().max())
        if not float((whole - parts).abs().max()) <= limit:
            message = "a prompt that is computed in parts has other logits: a layer has a state"
            raise ModelError(message)


def _one_row(first: int, end: int, block_size: int) -> AttentionMetadata:
    """Return a batch of one row, whose tokens are in block 1."""

    def numbers(*values: int) -> Tensor:
        return torch.tensor(values, dtype=torch.int32)

    positions = torch.arange(first, end, dtype=torch.int32)
    return AttentionMetadata(
        rows=numbers(0),
        query_start_loc=numbers(0, end - first),
        seq_lens=numbers(end),
        positions=positions,
        slot_mapping=(positions + block_size).unsqueeze(0),
        block_tables=numbers(1).view(1, 1, 1),
        block_size=block_size,
    )


def _is_causal(sees: Callable[..., Any], window: int | None) -> bool:
    """Return whether a mask is that of a token that sees those before it, within a window."""
    oldest = 1 if window is None else _FAR - window + 1
    seen = {_FAR: True, _FAR + 1: False, oldest: True, oldest - 1: window is None}
    zero, query = torch.tensor(0), torch.tensor(_FAR)
    with suppress(Exception):
        return all(
            bool(sees(zero, zero, query, torch.tensor(key))) == is_seen
            for key, is_seen in seen.items()
        )
    return False


def _mask(
    *, mask_function: Callable[..., Any], local_size: int | None = None, **_: object
) -> Tensor:
    """Return a window, 0 for none, in the place of a mask."""
    if (masks := _masks.get()) is not None:
        masks.append((mask_function, local_size))
    return torch.tensor(local_size or 0)


def _attend(
    module: Any,  # noqa: ANN401 - of `transformers`
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    **others: object,
) -> tuple[Tensor, None]:
    """Attend for a layer of `transformers`: `[1, heads, T, head_dim]` to `[1, T, heads, ...]`."""
    if attention_mask is None or attention_mask.dim() > 0:
        message = "attention: expected a mask of transformers.masking_utils"
        raise ModelError(message)
    for name, other in others.items():
        if isinstance(other, Tensor) and name != "position_ids":
            message = f"attention: {name} is not supported"
            raise ModelError(message)
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    scoring = Scoring(scale, int(attention_mask) or None, softcap)
    query, key, value = (x[0].transpose(0, 1).contiguous() for x in (query, key, value))
    owner: GenericTransformer = getattr(module, _OWNER)
    return owner.attend(module.layer_idx, query, key, value, scoring).unsqueeze(0), None
