"""Runs plans for an encoder, which computes a text when its last chunk is in a step.

A step may hold a part of a prompt, but an encoder needs the whole text at once. So the ids of a
prompt wait in a table of rows until all of them are there. The scheduler treats an encoder like a
decoder.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from chairlift.api.pooled import Pooled, Vector
from chairlift.api.types import PoolingTask
from chairlift.engine.pooling.layers import Layer
from chairlift.engine.runner.model_runner import ModelRunner
from chairlift.engine.runner.sampler import Sampled
from chairlift.engine.runner.shape import RunnerShape
from chairlift.engine.runner.step_inputs import StepInputs
from chairlift.model.encoders.bidirectional import BidirectionalEncoder
from chairlift.model.encoders.encoder import Encoder, Packed

if TYPE_CHECKING:
    from chairlift.model.forward.transformer import Transformer


class EncoderRunner(ModelRunner):
    """Keeps the row tables, and computes vectors instead of tokens."""

    def __init__(
        self,
        model: Encoder | BidirectionalEncoder,
        shape: RunnerShape,
        clock: Callable[[], int],
        layers: Sequence[Layer],
    ) -> None:
        """Allocate the tables.

        Args:
            model: Computes hidden states.
            shape: Sizes.
            clock: Returns nanoseconds.
            layers: Behind the pooling.
        """
        # The tables and the plan's part are the same; `run`, `probe` and `move_blocks` are not.
        super().__init__(cast("Transformer", model), torch.empty(0), shape, clock)
        self._encoder = model
        self._layers = layers
        self._classifier = model.config.spec.classifier if isinstance(model, Encoder) else None
        longest = model.config.max_model_len
        # A step ends as many prompts as fit the budget, and one that it holds a part of.
        model.reserve(shape.max_num_batched_tokens + longest)
        self._ids = torch.zeros(shape.max_num_seqs, longest + 1, dtype=torch.int32)

    def move_blocks(self, inputs: StepInputs) -> None:
        """Move nothing: blocks hold nothing."""

    @torch.inference_mode()
    def run(self, inputs: StepInputs) -> Sampled:
        """Compute the texts that end in a step, and keep their vectors."""
        input_ids, metadata, sample_rows, *_ = inputs
        counts = metadata.query_start_loc.diff()
        row_of_token = metadata.rows.repeat_interleave(counts)
        self._ids[row_of_token.long(), metadata.positions.long()] = input_ids
        num_samples = len(sample_rows)
        if num_samples == 0:
            return Sampled.empty(0)
        rows = row_of_token[sample_rows.long()]
        lengths = metadata.positions[sample_rows.long()] + 1
        pooled = [self.pooled.get(slot) for slot in self._row_slot[rows.long()].tolist()]
        batch = self._pack(rows, lengths, pooled)
        results = self._results(self._encoder.forward(batch), batch.starts, pooled)
        is_finite = torch.ones(num_samples, dtype=torch.bool)
        for place, (keeper, result) in enumerate(zip(pooled, results, strict=True)):
            if keeper is not None:
                keeper.raw = result
                is_finite[place] = bool(np.isfinite(result).all())
        tokens = torch.where(is_finite, 0, -1).to(torch.int32)
        ones = torch.ones(num_samples, dtype=torch.int32)
        self._last_token.index_copy_(0, rows.long(), tokens)
        return Sampled(tokens, torch.zeros(num_samples), ones)

    def _pack(self, rows: Tensor, lengths: Tensor, pooled: list[Pooled | None]) -> Packed:
        """Gather the texts of some rows."""
        starts = torch.zeros(len(rows) + 1, dtype=torch.int32)
        torch.cumsum(lengths, 0, out=starts[1:])
        positions = torch.arange(int(starts[-1])) - starts[:-1].repeat_interleave(lengths)
        ids = self._ids[rows.repeat_interleave(lengths).long(), positions]
        positions = positions.int()
        types = None
        if any(keeper is not None and keeper.num_first is not None for keeper in pooled):
            num_first = [
                int(length) if keeper is None or keeper.num_first is None else keeper.num_first
                for keeper, length in zip(pooled, lengths, strict=True)
            ]
            bounds = torch.tensor(num_first, dtype=torch.int32).repeat_interleave(lengths)
            types = (positions >= bounds).int()
        return Packed(ids, positions, starts, types)

    def _results(self, hidden: Tensor, starts: Tensor, pooled: list[Pooled | None]) -> list[Vector]:
        """Return the vector, or the logits, of each text."""
        hidden = hidden.float()
        results: dict[str, Tensor] = {}
        keys = [self._key(keeper) for keeper in pooled]
        counted, firsts = _counted(hidden, starts, pooled)
        for key in dict.fromkeys(keys):
            is_scores, pooling = key.startswith("scores"), key.rpartition(" ")[2]
            vectors = pool(counted, firsts, pooling)
            if is_scores:
                assert isinstance(self._encoder, Encoder), "the only kind with a classifier"
                results[key] = self._encoder.classify(vectors)
            else:
                results[key] = self._apply_layers(vectors)
        arrays = {key: result.numpy() for key, result in results.items()}
        return [arrays[key][place].copy() for place, key in enumerate(keys)]

    def _key(self, keeper: Pooled | None) -> str:
        """Return the kind of a result and its pooling."""
        if keeper is None:
            return "vector cls"
        if keeper.task is PoolingTask.CLASSIFY and self._classifier is not None:
            return f"scores {self._classifier.pooling}"
        return f"vector {keeper.pooling}"

    def _apply_layers(self, vectors: Tensor) -> Tensor:
        for layer in self._layers:
            vectors = layer(vectors)
        return vectors

    @torch.inference_mode()
    def probe(self) -> None:
        """Compute a text of one token.

        Raises:
            ArithmeticError: The hidden state is not finite.
        """
        one, zero = torch.tensor([0, 1], dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
        if not bool(self._encoder.forward(Packed(zero, zero, one)).isfinite().all()):
            message = "the hidden states are not finite"
            raise ArithmeticError(message)


def _counted(hidden: Tensor, starts: Tensor, pooled: list[Pooled | None]) -> tuple[Tensor, Tensor]:
    """Return the hidden states that count in the pooling, and where those of each text start."""
    left_out = [0 if keeper is None else keeper.num_prompt for keeper in pooled]
    if not any(left_out):
        return hidden, starts
    lengths = starts.diff()
    # One token of a text is left, at least.
    firsts = torch.minimum(torch.tensor(left_out, dtype=torch.int32), lengths - 1)
    places = torch.arange(len(hidden)) - starts[:-1].repeat_interleave(lengths)
    counts = places >= firsts.repeat_interleave(lengths)
    return hidden[counts], functional.pad((lengths - firsts).cumsum(0), (1, 0)).int()


def pool(hidden: Tensor, starts: Tensor, pooling: str) -> Tensor:
    """Return a vector for each text, float32 `[S, H]`; each depends on its text alone.

    Args:
        hidden: float32 `[T, H]`.
        starts: int32 `[S + 1]`.
        pooling: `cls`, `mean`, `max` or `last`.
    """
    if pooling == "cls":
        return hidden[starts[:-1].long()]
    if pooling == "last":
        return hidden[starts[1:].long() - 1]
    return torch.segment_reduce(hidden, pooling, offsets=starts.long(), axis=0)
