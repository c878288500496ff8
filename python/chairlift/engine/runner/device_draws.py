"""Draws tokens on a device, with options beyond temperature, top-k, top-p and min-p.

An option of a sequence may depend on its tokens, which are in the core: it is listed for the kernel
while the device computes the logits. So the draw waits for the previous step, and the launch of the
forward pass does not:

```text
device   | forward k | draw k | forward k+1 ·············· | draw k+1
host     launch k+1       wait k | lists k+1 | launch draw k+1 | end step k
```
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from chairlift import _core
from chairlift.engine.runner.sampler import Sampled
from chairlift.engine.runner.staging import Staging
from chairlift.engine.runner.step_inputs import SamplingInputs
from chairlift.kernels.cuda import draw_ops
from chairlift.kernels.cuda.device import Accelerator, Event

_ROW = 16
"""Numbers of a row of lists."""


class Lists(NamedTuple):
    """What the draws of a step ask for, on the device; see `draw_ops.sample_options`."""

    rows: Tensor
    entries: Tensor
    saved: Tensor
    masks: Tensor
    candidates: Tensor
    """int32 `[2, S, n]`: ids, and the bits of log probabilities."""


class ListBuffers:
    """Memory of lists on both sides, which grows to what steps ask for: most ask for nothing."""

    def __init__(self, accelerator: Accelerator, num_hosts: int) -> None:
        """Allocate nothing yet.

        Args:
            accelerator: The device.
            num_hosts: Steps, and parts of steps, whose lists must be on the host at once.
        """
        self._accelerator = accelerator
        device = accelerator.device
        none = torch.zeros(0, dtype=torch.int32)
        self._hosts = [none] * num_hosts
        self._host_candidates = [none] * num_hosts
        self._device = none.to(device)
        self._saved = torch.zeros(0, dtype=torch.float32, device=device)
        self._candidates = none.to(device)

    def upload(self, turn: int, lists: _core.SampleLists, num_draws: int) -> Lists:
        """Copy lists to the device, after what the device does now.

        Args:
            turn: Number of the host's buffer, which no step in flight uses.
            lists: Lists of the step.
            num_draws: S.
        """
        size, num_entries = len(lists), lists.num_entries
        host = self._hosts[turn] = self._grown(self._hosts[turn], size)
        lists.write(host)
        if len(self._device) < size:
            self._device = self._device.new_empty(len(host))
        if len(self._saved) < num_entries:
            self._saved = self._saved.new_empty(_rounded(num_entries))
        width = lists.num_candidates
        if len(self._candidates) < 2 * num_draws * width:
            self._candidates = self._candidates.new_empty(_rounded(2 * num_draws * width))
        sent = self._device[:size]
        sent.copy_(host[:size], non_blocking=True)
        parts = [_ROW * num_draws, 2 * num_entries, lists.num_mask_words]
        rows, entries, masks = torch.split(sent, parts)
        candidates = self._candidates[: 2 * num_draws * width].view(2, num_draws, width)
        return Lists(rows, entries, self._saved[:num_entries], masks, candidates)

    def download(self, turn: int, candidates: Tensor) -> Tensor:
        """Copy candidates to the host; the copy is complete once the step has ended.

        Args:
            turn: Number of the host's buffer, which no step in flight uses.
            candidates: int32 `[2, S, n]` on the device.

        Returns:
            int32 `[2, S, n]`, a view of the host's buffer.
        """
        size = candidates.numel()
        host = self._host_candidates[turn] = self._grown(self._host_candidates[turn], size)
        result = host[:size].view(candidates.shape)
        result.copy_(candidates, non_blocking=True)
        return result

    def _grown(self, host: Tensor, size: int) -> Tensor:
        if len(host) >= size:
            return host
        return self._accelerator.host_buffer(_rounded(size), dtype=torch.int32)


def _rounded(size: int) -> int:
    """Return the next power of two: memory grows few times."""
    return 1 << (size - 1).bit_length() if size else 0


class Pending:
    """The draws of a step, known once it has ended."""

    def __init__(
        self,
        event: Event,
        results: Tensor,
        candidates: Tensor | None,
        on_end: Callable[["Pending", Tensor | None], None],
    ) -> None:
        """Keep where the draws will be.

        Args:
            event: The end of the step.
            results: int32 `[3, S]` on the host: tokens, log probabilities (float32 bits), ranks.
            candidates: int32 `[2, S, n]` on the host: ids, log probabilities; None where no draw
                asks for some.
            on_end: Called with the tokens when the step has ended, and with None if it has failed.
        """
        self._event = event
        self._results = results
        self._candidates = candidates
        self._on_end = on_end
        self._sampled: Sampled | None = None

    def wait(self) -> Sampled:
        """Wait for the step, and copy its results: a later step writes over them."""
        if self._sampled is None:
            tokens = None
            try:
                self._event.synchronize()
                tokens, logprobs, ranks = self._results.clone()
            finally:
                self._on_end(self, tokens)
            found = None
            if self._candidates is not None:
                ids, id_logprobs = self._candidates
                found = _core.Candidates.of_draws(ids, id_logprobs.view(torch.float32))
            self._sampled = Sampled(tokens, logprobs.view(torch.float32), ranks, candidates=found)
        return self._sampled


class DeviceSampler:
    """Launches the draws of steps, and keeps what was drawn last, on both sides.

    Attributes:
        logits: float32 `[S, vocab_size]`, of the step that the device computes.
        last_token: int32 `[R + 1]`, on the device: the last that each row has drawn.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        staging: Staging,
        logits: Tensor,
        last_token: Tensor,
        mark: Callable[[], Event],
    ) -> None:
        """Allocate what every step takes.

        Args:
            accelerator: The device.
            staging: Buffers of the inputs.
            logits: float32 `[S, vocab_size]`: where a forward pass writes them.
            last_token: int32 `[R + 1]`: for all rows, and for what draws for no request.
            mark: Returns the end of what was launched so far.
        """
        self.logits = logits
        self.last_token = last_token
        self._mark = mark
        self._inputs = staging.device
        num_hosts, num_samples = len(staging.hosts), len(staging.device.drawn_rows)
        device = accelerator.device
        self._known_token = torch.full((len(last_token) - 1,), -1, dtype=torch.int32)
        """`last_token` once the steps in flight have ended; negative where none was drawn."""
        self._results = torch.zeros(3, num_samples, dtype=torch.int32, device=device)
        self._host_results = [
            accelerator.host_buffer(3, num_samples, dtype=torch.int32) for _ in range(num_hosts)
        ]
        self._lists = ListBuffers(accelerator, num_hosts)
        self._candidates: Tensor | None = None
        self._newest: Pending | None = None
        """The whole step that was launched last, until it has ended."""

    def launch(self, num_samples: int) -> None:
        """Launch the draws of rows that ask for nothing more than the tables have."""
        if num_samples > 0:
            draw_ops.sample(self.logits[:num_samples], **self._arguments(num_samples))
            self._keep_drawn(num_samples)

    def launch_with_options(
        self, turn: int, sampling: SamplingInputs, options: _core.SequenceDraws, *, is_whole: bool
    ) -> None:
        """Launch the draws where some ask for more.

        What they ask for may depend on the tokens of the step in flight: this waits for them.

        Args:
            turn: Number of the host's buffer.
            sampling: Inputs of the step's draws.
            options: Options of the same draws.
            is_whole: Whether this is a step; a part of one runs again, and what is in flight then
                came after it.
        """
        num_samples = len(sampling.slots)
        if options.needs_tokens:
            if is_whole and self._newest is not None:
                self._newest.wait()
            known = self._known_token.index_select(0, sampling.rows)
            last_tokens = torch.where(sampling.last_tokens < 0, known, sampling.last_tokens)
        else:
            # They are not looked at, and those of a step in flight are not known.
            last_tokens = torch.zeros_like(sampling.slots)
        lists = options.lists(last_tokens, self.logits.shape[1])
        sent = self._lists.upload(turn, lists, num_samples)
        ids, logprobs = sent.candidates
        draw_ops.sample_options(
            self.logits[:num_samples],
            **self._arguments(num_samples),
            candidate_ids=ids,
            candidate_logprobs=logprobs.view(torch.float32),
            rows=sent.rows,
            entries=sent.entries,
            saved=sent.saved,
            masks=sent.masks,
        )
        self._keep_drawn(num_samples)
        self._candidates = sent.candidates if lists.num_candidates > 0 else None

    def fetch(
        self,
        turn: int,
        sampling: SamplingInputs,
        options: _core.SequenceDraws | None,
        *,
        is_whole: bool,
    ) -> Pending:
        """Copy what was launched last to the host.

        Args:
            turn: Number of the host's buffer.
            sampling: Inputs of the step's draws.
            options: What they ask for beside the tables; None if nothing.
            is_whole: See `launch_with_options`.
        """
        results, candidates = self._host_results[turn], None
        results.copy_(self._results, non_blocking=True)
        if options is not None and self._candidates is not None:
            candidates = self._lists.download(turn, self._candidates)
        pending = Pending(
            self._mark(),
            results[:, : len(sampling.rows)],
            candidates,
            partial(self._take, sampling, options),
        )
        if is_whole:
            self._newest = pending
        return pending

    def _take(
        self,
        sampling: SamplingInputs,
        options: _core.SequenceDraws | None,
        pending: Pending,
        tokens: Tensor | None,
    ) -> None:
        """Let the host know the tokens of a step that has ended."""
        if self._newest is pending:
            self._newest = None
        if tokens is None:
            return
        if len(tokens) > 0 and sampling.rows[0] >= 0:  # the probe's row is none
            self._known_token.index_copy_(0, sampling.rows.long(), tokens)
        if options is not None:
            options.record(tokens)

    def _arguments(self, num_samples: int) -> dict[str, Tensor]:
        """Return the arguments of every draw but the logits by name, each `[S]`."""
        inputs = self._inputs
        tokens, logprobs, ranks = self._results[:, :num_samples]
        parameters = {
            "temperature": inputs.temperature,
            "top_k": inputs.top_k,
            "top_p": inputs.top_p,
            "min_p": inputs.min_p,
            "seed": inputs.seed,
            "index": inputs.index,
            "position": inputs.position,
        }
        return {
            "tokens": tokens,
            "logprobs": logprobs.view(torch.float32),
            "ranks": ranks,
            **{name: parameter[:num_samples] for name, parameter in parameters.items()},
        }

    def _keep_drawn(self, num_samples: int) -> None:
        """Store the drawn tokens as the last of their rows."""
        rows = self._inputs.drawn_rows[:num_samples]
        draw_ops.scatter_tokens(self.last_token, self._results[0, :num_samples], rows)
