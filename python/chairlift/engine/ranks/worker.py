"""A rank other than 0: it computes its part of each step, as rank 0 tells it."""

import torch
from torch import Tensor

from chairlift import _core
from chairlift.engine.ranks.adapter_socket import ReadAdapters
from chairlift.engine.ranks.messages import Inbox, Kind
from chairlift.engine.ranks.segment import Scratch
from chairlift.engine.runner.shape import RunnerShape
from chairlift.model.forward.transformer import Transformer
from chairlift.model.parts.recurrent import States


class RankWorker:
    """The part of one rank: weights, keys and values of its heads."""

    def __init__(self, group: _core.RankGroup, scratch: Scratch, shape: RunnerShape) -> None:
        """Take what it meets the others by, before there are weights."""
        self._group = group
        self._scratch = scratch
        self._shape = shape
        self._inbox = Inbox(shape)
        self._hidden = torch.empty(0)

    def gather(self, x: Tensor, out: Tensor, widths: list[int]) -> None:
        """See `Gather.gather`."""
        self._group.gather(x, out, widths)

    def scratch(self, num_numbers: int, dtype: torch.dtype, *, is_input: bool) -> Tensor:
        """See `Gather.scratch`."""
        return self._scratch.take(num_numbers, dtype, is_input=is_input)

    @torch.inference_mode()
    def run(
        self,
        transformer: Transformer,
        kv_cache: Tensor,
        states: States | None,
        adapters: ReadAdapters | None,
    ) -> None:
        """Compute what the messages of rank 0 ask for, until the group is closed.

        Args:
            transformer: The part of this rank.
            kv_cache: Its blocks; see `allocate_kv_cache`.
            states: The recurrent states of its heads, of a hybrid.
            adapters: Those that it has read; None where there are none.

        Raises:
            RankError: The group has ended otherwise.
        """
        transformer.reserve(self._shape.max_num_batched_tokens)
        inbox = self._inbox
        while (length := self._group.receive(inbox.message)) is not None:
            numbers = inbox.message[1:length]
            match Kind(int(inbox.message[0])):
                case Kind.FORWARD:
                    ids, metadata, selected, slots = inbox.read(length)
                    batch = ids, metadata, kv_cache, selected, slots, states
                    self._hidden = transformer.forward(*batch)
                case Kind.LOGITS:
                    first, count = numbers.tolist()
                    transformer.logits(self._hidden[first : first + count])
                case Kind.COPY_BLOCKS:
                    transformer.copy_blocks(kv_cache, numbers.view(-1, 2))
                case Kind.COPY_STATES:
                    assert states is not None, "of a hybrid"
                    transformer.copy_states(states, numbers.view(-1, 2))
                case Kind.SET_ADAPTER:
                    slot, number = numbers.tolist()
                    assert transformer.adapters is not None, "as rank 0 has them"
                    assert adapters is not None, "as rank 0 has them"
                    transformer.adapters.set(slot, adapters.take(number) if number else None)
