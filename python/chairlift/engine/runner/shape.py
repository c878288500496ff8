"""Sizes that every runner is made for."""

from typing import NamedTuple


class RunnerShape(NamedTuple):
    """Sizes of the runner's tables and of the largest step."""

    max_num_seqs: int
    max_num_batched_tokens: int
    num_kv_groups: int
    max_blocks_per_row: int
    block_size: int
    num_slots: int
    steps_in_flight: int = 1
    """Steps that need their inputs at once."""
    max_num_drafts: int = 0
    """Drafts of a step, over all its rows: a token is drawn after each, beside one for each row."""
    has_idle_cores: bool = False
    """The kernels leave cores to what is computed beside them."""
