"""Blocks and tokens that only move."""

import pytest
import torch

from tests.cuda.conftest import Launch
from tests.cuda.emulation import guarded
from tests.cuda.instantiations import instance

INT32 = {"dtype": torch.int32}


@pytest.mark.parametrize("grid", [18, 4, 1])
def test_blocks_are_copied_in_all_layers_and_nothing_else(run: Launch, grid: int) -> None:
    parts, blocks, block_bytes = 6, 9, 16 * 80 + 16
    random = torch.Generator().manual_seed(0)
    shape = (parts, blocks, block_bytes)
    pool = torch.randint(0, 256, shape, generator=random, dtype=torch.uint8)
    pairs = torch.tensor([[2, 5], [2, 8], [7, 1]], **INT32)
    expected = pool.clone()
    for source, destination in pairs.tolist():
        expected[:, destination] = pool[:, source]
    found = guarded(pool)
    stride = blocks * block_bytes
    arguments = [found, found, guarded(pairs), len(pairs), parts, stride, stride, block_bytes]
    run(instance("copy_blocks"), (grid,), 128, 0, arguments)
    assert torch.equal(found, expected)


def test_blocks_move_between_pools_of_different_sizes(run: Launch) -> None:
    parts, block_bytes = 4, 64
    device = torch.arange(parts * 3 * block_bytes).to(torch.uint8).view(parts, 3, block_bytes)
    host = guarded(torch.zeros(parts, 7, block_bytes, dtype=torch.uint8))
    pairs = torch.tensor([[1, 6], [2, 0]], **INT32)
    arguments = [host, guarded(device), pairs, len(pairs), parts]
    arguments += [7 * block_bytes, 3 * block_bytes, block_bytes]
    run(instance("copy_blocks"), (2 * parts,), 128, 0, arguments)
    expected = torch.zeros_like(host)
    expected[:, 6], expected[:, 0] = device[:, 1], device[:, 2]
    assert torch.equal(host, expected)


def test_unknown_ids_become_the_last_token_of_their_row(run: Launch) -> None:
    counts = [1, 3, 70, 0, 1, 1]
    starts = torch.tensor([0, *counts]).cumsum(0).to(torch.int32)
    rows = torch.tensor([4, 0, 9, 1, 2, 7], **INT32)
    last_token = torch.arange(100, 110, **INT32)
    input_ids = torch.arange(sum(counts), **INT32)
    expected = input_ids.clone()
    for r in (0, 2, 4):
        input_ids[starts[r + 1] - 1] = -1
        expected[starts[r + 1] - 1] = last_token[rows[r]]
    found = guarded(input_ids)
    arguments = [found, guarded(last_token), guarded(rows), guarded(starts), len(counts)]
    run(instance("gather_tokens"), (-(-len(counts) // 4),), 128, 0, arguments)
    assert torch.equal(found, expected)


def test_drawn_tokens_become_the_last_of_their_row(run: Launch) -> None:
    last_token = guarded(torch.full((5,), -7, **INT32))
    tokens = torch.tensor([11, -1, 13, 14], **INT32)
    rows = torch.tensor([3, 1, -1, 0], **INT32)
    arguments = [last_token, guarded(tokens), guarded(rows), 4]
    run(instance("scatter_tokens"), (1,), 128, 0, arguments)
    assert last_token.tolist() == [14, -7, -7, 11, -7]
