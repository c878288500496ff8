"""What rank 0 tells the other ranks of a step where each computes on a device.

A device has its block tables, so that a message about them says what changes. All that a forward
pass reads beside them is in one message, before any padding: each rank pads it in the same way.
"""

import torch
from torch import Tensor

from chairlift.engine.ranks.messages import Kind
from chairlift.engine.runner.recordings import StepSizes
from chairlift.engine.runner.staging import InputBuffers

_HEADER = 4


def step_message(host: InputBuffers, sizes: StepSizes) -> Tensor:
    """Return the message `[N]` about a forward pass and its logits."""
    numbers = sizes.num_rows, sizes.num_tokens, sizes.num_samples
    header = torch.tensor([Kind.FORWARD, *numbers], dtype=torch.int32)
    return torch.cat([header, *(part.flatten() for part in _parts(host, sizes))])


def read_step(message: Tensor, host: InputBuffers) -> StepSizes:
    """Write the inputs of a message `[N]` to the host's side; return what the step has."""
    sizes = StepSizes.of(*message[1:_HEADER].tolist())
    places = _parts(host, sizes)
    parts = torch.split(message[_HEADER:], [place.numel() for place in places])
    for place, part in zip(places, parts, strict=True):
        place.copy_(part.view(place.shape))
    return sizes


def _parts(host: InputBuffers, sizes: StepSizes) -> list[Tensor]:
    """Return the inputs of a step, in their order in a message."""
    rows, tokens, samples, _ = sizes
    return [
        host.rows[:rows],
        host.query_start_loc[: rows + 1],
        host.seq_lens[:rows],
        host.input_ids[:tokens],
        host.positions[:tokens],
        host.slot_mapping[:, :tokens],
        host.sample_rows[:samples],
    ]
