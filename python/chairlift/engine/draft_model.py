"""A draft model: a smaller model draws what may follow, and the model checks that in one step.

```text
tokens of an answer    ... a b c
draft model            ... a b c -> d      what it has not read yet, with a draw behind
                                 d -> e    a pass for each further draft, of all answers at once
proposed                     d e           the step checks them beside c
```

The scheduler says which answers have a use for drafts, and how many pay. The draft model draws with
the seed, temperature, top-k, top-p and min-p of the answer: where both models agree on a
distribution, they draw the same token. Penalties, masks and adapters are the model's alone.

The keys and values are in a small cache of its own. Those of drafts that were wrong are written
again. An answer that finds no block takes those of the answer that had no drafts for longest.
Nothing here can change or fail an answer: a fault turns the draft model off.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final

import torch

from chairlift import _core
from chairlift.attention.metadata import AttentionMetadata
from chairlift.engine.core import Core
from chairlift.engine.loading.loaded import LoadedModel
from chairlift.engine.runner.sampler import Sampled, Sampler
from chairlift.engine.runner.staging import InputBuffers
from chairlift.model.forward.transformer import Transformer

logger = logging.getLogger(__name__)

_READ_PER_TOKEN: Final = 64
"""Tokens that are read of an answer for each that it has drawn: a short answer to a long prompt is
not worth reading the prompt."""
_OUTLIER: Final = 4
"""A pass longer than this many times the others was held up by something else."""
_FADE: Final = 0.998
"""Factor of the time of a pass per step in which none pays: after a while one is measured again."""

Key = tuple[int, int]
"""Request and which of its answers."""


@dataclass(slots=True, eq=False)
class _Answer:
    """What the draft model has of an answer."""

    index: int
    slot: int
    num_written: int = 0
    """Tokens whose keys and values are written."""
    drafted: list[int] = field(default_factory=list)
    """Drafts whose keys and values are written behind them."""
    unread: list[int] = field(default_factory=list)
    """Tokens behind them, the last one at least."""
    blocks: list[int] = field(default_factory=list)
    line: int = 0
    """Line of the block tables, in this round."""
    last_round: int = 0

    @property
    def position(self) -> int:
        """Where its next token goes."""
        return self.num_written + len(self.drafted)

    def follow(self, tokens: Sequence[int]) -> None:
        """Keep the drafts that were right: the tokens begin at `num_written`."""
        # The last token is computed again, for the draw behind it.
        pairs = zip(self.drafted, tokens[:-1], strict=False)
        num_right = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
        if num_right is None:
            num_right = min(len(self.drafted), len(tokens) - 1)
        self.num_written += num_right
        self.drafted = []
        self.unread = list(tokens[num_right:])


class DraftModel:
    """Proposes drafts for answers that decode, before each step is planned.

    Attributes:
        is_on: Whether it does; a fault ends that.
        model: The draft model.
        kv_cache: Its pool of blocks.
    """

    def __init__(self, loaded: LoadedModel, sampler: Sampler, clock: Callable[[], int]) -> None:
        """Begin without answers.

        Args:
            loaded: The draft model.
            sampler: The model's, with the parameters of each slot.
            clock: Nanoseconds.
        """
        assert isinstance(loaded.transformer, Transformer), "an encoder is refused"
        self.is_on = True
        self.model = loaded.transformer
        self.kv_cache = loaded.kv_cache
        self._max_model_len = loaded.max_model_len
        self._vocab_size = loaded.config.spec.vocab_size
        self._sampler = sampler
        self._clock = clock
        settings = loaded.resolved.settings
        self._block_size = settings.block_size
        self._max_tokens = settings.max_num_batched_tokens
        self._max_rows = min(settings.max_num_seqs, self._max_tokens)
        max_blocks = -(-loaded.max_model_len // settings.block_size)
        self._tables = torch.zeros(1, self._max_rows, max_blocks, dtype=torch.int32)
        self._buffers = InputBuffers.allocate(self._max_rows, self._max_tokens, 1, self._max_rows)
        kinds = (torch.float32, torch.int32, torch.float32, torch.float32, torch.int64)
        self._parameters = [torch.zeros(self._max_rows, dtype=kind) for kind in kinds]
        # Block 0 is the null block.
        self._num_blocks = loaded.num_blocks - 1
        self._free_blocks = list(range(self._num_blocks, 0, -1))
        self._answers: dict[Key, _Answer] = {}
        self._num_rounds = 0
        self._pass_ns = 0.0
        self.model.reserve(self._max_tokens)

    @property
    def num_answers(self) -> int:
        """Answers whose tokens it has read."""
        return len(self._answers)

    @property
    def num_used_blocks(self) -> int:
        """Blocks of its KV cache that answers have."""
        return self._num_blocks - len(self._free_blocks)

    def forget(self, ended: Iterable[int]) -> None:
        """Free what requests have that ended."""
        gone = set(ended)
        for key in [key for key in self._answers if key[0] in gone]:
            self._free(self._answers.pop(key))

    def propose(self, core: Core) -> None:
        """Propose drafts for the next step, if any pay."""
        if not self.is_on:
            return
        with core.guarded():
            num_drafts, found = core.scheduler.undrafted(round(self._pass_ns))
        if num_drafts == 0:
            self._pass_ns *= _FADE if found else 1
            return
        try:
            answers = self._follow(core.scheduler, found)
            drafts = self._draw(self._with_room(answers, num_drafts), num_drafts)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:
            # A panic in a kernel is no Exception.
            logger.exception("the draft model failed and drafts no more; no request fails")
            self.is_on = False
            self.forget({request_id for request_id, _ in self._answers})
            return
        with core.guarded():
            for key, tokens in drafts:
                request_id, index = key
                core.scheduler.draft(request_id, tokens, index, by_model=True)

    def _follow(
        self, scheduler: _core.Scheduler, found: Iterable[_core.Undrafted]
    ) -> list[tuple[Key, _Answer]]:
        """Return the answers that are worth reading, up to date."""
        self._num_rounds += 1
        answers = []
        for sequence in found:
            key = sequence.request_id, sequence.index
            answer = self._answers.get(key) or _Answer(sequence.index, sequence.slot)
            num_unread = sequence.num_prompt + sequence.num_output - answer.num_written
            if num_unread > _READ_PER_TOKEN * sequence.num_output:
                continue
            answer.follow(scheduler.tokens_from(sequence.slot, answer.num_written))
            # Both have the tokens of the tokenizer; what lies behind is padding, of any length.
            if max(answer.unread) >= self._vocab_size:
                continue
            # None of this round makes way for another one.
            answer.last_round = self._num_rounds
            self._answers[key] = answer
            answers.append((key, answer))
        # Those that lack least go first: one that has a whole prompt to read delays none of them.
        return sorted(answers, key=lambda pair: len(pair[1].unread))

    def _with_room(
        self, answers: Iterable[tuple[Key, _Answer]], num_drafts: int
    ) -> list[tuple[Key, _Answer]]:
        """Return the answers that have blocks, now, for their tokens and so many drafts."""
        chosen: list[tuple[Key, _Answer]] = []
        for key, answer in answers:
            num_tokens = answer.num_written + len(answer.unread) + num_drafts
            if len(chosen) == self._max_rows or not self._grow(answer, num_tokens):
                continue
            answer.line = len(chosen)
            blocks = torch.tensor(answer.blocks, dtype=torch.int32)
            self._tables[0, answer.line, : len(blocks)] = blocks
            chosen.append((key, answer))
        return chosen

    def _draw(
        self, answers: Sequence[tuple[Key, _Answer]], num_drafts: int
    ) -> list[tuple[Key, list[int]]]:
        """Read what the answers have got since the last time, and draw drafts behind."""
        room, reading, parts, ready = self._max_tokens, [], [], []
        for key, answer in answers:
            part = answer.unread[:room]
            if not part:
                break
            reading.append(answer)
            parts.append(part)
            room -= len(part)
            # At most the last one has more to read than there is room for.
            if len(part) == len(answer.unread):
                ready.append((key, answer))
        if not reading:
            return []
        tokens = self._compute(reading, parts, len(ready))
        for answer, part in zip(reading, parts, strict=True):
            answer.num_written += len(part)
        drafts: dict[Key, list[int]] = {key: [] for key, _ in ready}
        for left in reversed(range(num_drafts)):
            drawn = zip(ready, tokens, strict=True)
            # Nothing follows logits that are not finite.
            going = [(key, answer, token) for (key, answer), token in drawn if token >= 0]
            for key, _, token in going:
                drafts[key].append(token)
            if left == 0 or not going:
                break
            ready = [(key, answer) for key, answer, _ in going]
            batch = [answer for _, answer in ready]
            tokens = self._compute(batch, [[token] for _, _, token in going], len(batch))
            for _, answer, token in going:
                answer.drafted.append(token)
        return [(key, tokens) for key, tokens in drafts.items() if tokens]

    @torch.inference_mode()
    def _compute(
        self, answers: Sequence[_Answer], parts: Sequence[Sequence[int]], num_drawn: int
    ) -> list[int]:
        """Write the keys and values of some tokens of each answer; draw behind the first answers.

        Returns:
            A token for each of the first `num_drawn` answers; -1 where the logits are not finite.
        """
        began = self._clock()
        ids = [token for part in parts for token in part]
        num_rows, num_tokens, buffers = len(parts), len(ids), self._buffers
        starts = [0, *accumulate(map(len, parts))]
        # A pass of one token of each row, with a draw behind, is recorded.
        views = (num_rows,) if num_tokens == num_drawn else None
        metadata = self._metadata(answers, parts, starts, views)
        buffers.input_ids.numpy()[:num_tokens] = ids
        buffers.sample_rows.numpy()[:num_drawn] = [end - 1 for end in starts[1 : num_drawn + 1]]
        hidden = self.model.forward(
            buffers.input_ids[:num_tokens],
            metadata,
            self.kv_cache,
            None if views else buffers.sample_rows[:num_drawn],
        )
        if num_drawn == 0:
            return []
        drawn = answers[:num_drawn]
        slots, index, position = torch.tensor(
            [
                [answer.slot for answer in drawn],
                [answer.index for answer in drawn],
                metadata.seq_lens[:num_drawn].tolist(),
            ],
            dtype=torch.int32,
        )
        sampled = Sampled.empty(num_drawn)
        self._sampler.gather(slots, *self._parameters)
        temperature, top_k, top_p, min_p, seed = (table[:num_drawn] for table in self._parameters)
        _core.sample(
            self.model.logits(hidden),
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            seed=seed,
            index=index,
            position=position,
            tokens=sampled.tokens,
            logprobs=sampled.logprobs,
            ranks=sampled.ranks,
            scored=torch.zeros_like(sampled.ranks),
        )
        if num_tokens <= 2 * num_rows:
            self._learn(self._clock() - began)
        return sampled.tokens.tolist()

    def _metadata(
        self,
        answers: Sequence[_Answer],
        parts: Sequence[Sequence[int]],
        starts: Sequence[int],
        views: tuple[int, ...] | None,
    ) -> AttentionMetadata:
        buffers, size = self._buffers, self._block_size
        num_rows, num_tokens = len(parts), starts[-1]
        positions: list[int] = []
        slots: list[int] = []
        for answer, part in zip(answers, parts, strict=True):
            places = range(answer.position, answer.position + len(part))
            positions += places
            slots += [answer.blocks[place // size] * size + place % size for place in places]
        ends = [answer.position + len(part) for answer, part in zip(answers, parts, strict=True)]
        buffers.rows.numpy()[:num_rows] = [answer.line for answer in answers]
        buffers.query_start_loc.numpy()[: num_rows + 1] = starts
        buffers.seq_lens.numpy()[:num_rows] = ends
        buffers.positions.numpy()[:num_tokens] = positions
        buffers.slot_mapping.numpy()[0, :num_tokens] = slots
        return AttentionMetadata(
            rows=buffers.rows[:num_rows],
            query_start_loc=buffers.query_start_loc[: num_rows + 1],
            seq_lens=buffers.seq_lens[:num_rows],
            positions=buffers.positions[:num_tokens],
            slot_mapping=buffers.slot_mapping[:, :num_tokens],
            block_tables=self._tables,
            block_size=size,
            views=views,
        )

    def _learn(self, took_ns: int) -> None:
        """Learn how long a pass takes that draws one draft for each answer."""
        before = self._pass_ns
        took = min(took_ns, _OUTLIER * before) if before else took_ns
        self._pass_ns = 0.9 * before + 0.1 * took if before else float(took)

    def _grow(self, answer: _Answer, num_tokens: int) -> bool:
        """Give an answer the blocks of so many tokens; False if it cannot have them."""
        num_blocks = -(-num_tokens // self._block_size)
        if num_tokens > self._max_model_len or num_blocks > self._num_blocks:
            return False
        while len(answer.blocks) + len(self._free_blocks) < num_blocks:
            idle = [answer for answer in self._answers.values() if answer.blocks]
            oldest = min(idle, key=lambda answer: answer.last_round)
            if oldest.last_round == self._num_rounds:
                return False
            self._free(oldest)
        while len(answer.blocks) < num_blocks:
            answer.blocks.append(self._free_blocks.pop())
        return True

    def _free(self, answer: _Answer) -> None:
        self._free_blocks += answer.blocks
        answer.blocks, answer.drafted, answer.num_written = [], [], 0
