"""The columns of a rank, computed alone, have the bits of the whole layer's."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from chairlift import _core
from chairlift.api.config import Dtype
from chairlift.api.errors import ConfigError
from chairlift.kernels import cpu
from chairlift.model.config import ModelConfig
from chairlift.model.specs.share import Share, split_unsupported_reason

ROOT = Path(__file__).parents[2]
INPUTS, OUTPUTS = 96, 131
"""Rows of whole blocks, and columns that fill no panel."""
FORMATS = ("float32", "bfloat16", "int8", "int4", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")
BLOCKS_OF_256 = ("Q4_K", "Q5_K", "Q6_K")


def packed(form, rows, generator_seed):
    """Return a function that packs some rows of one random layer."""
    generator = torch.Generator().manual_seed(generator_seed)
    inputs = 512 if form in BLOCKS_OF_256 else INPUTS
    bias = torch.randn(rows, generator=generator)
    if form in ("float32", "bfloat16", "int8", "int4"):
        dtype = torch.bfloat16 if form == "bfloat16" else torch.float32
        weight = torch.randn(rows, inputs, generator=generator).to(dtype)
        quantize = form if form in ("int8", "int4") else None
        return inputs, lambda part: cpu.linear(weight[part], bias.to(dtype)[part], quantize)
    weights, num_bytes = _core.BLOCK_TYPES[form]
    size = inputs // weights * num_bytes
    blocks = torch.randint(0, 256, (rows, size), dtype=torch.uint8, generator=generator)
    # Scales of two bytes whose exponent is small: no number is infinite.
    blocks[:, 1::2] &= 0x3B
    dtype = torch.bfloat16
    return inputs, lambda part: cpu.linear_from_blocks(blocks[part], form, bias[part], dtype)


def check_columns(form, num_ranks):
    """Compare the columns of ranks, side by side, with the whole layer."""
    inputs, pack = packed(form, OUTPUTS, 7)
    whole = pack(slice(0, OUTPUTS))
    ranks = [Share(rank, num_ranks) for rank in range(num_ranks)]
    parts = [pack(share.columns(OUTPUTS)) for share in ranks]
    for num_tokens in (1, 2, 5, 16, 33):
        x = torch.randn(num_tokens, inputs, generator=torch.Generator().manual_seed(num_tokens))
        x = x.to(whole.dtype)
        for out_dtype in (whole.dtype, torch.float32):
            gathered = torch.cat([part(x, out_dtype) for part in parts], dim=1)
            assert torch.equal(gathered, whole(x, out_dtype)), (form, num_tokens, out_dtype)


@pytest.mark.parametrize("num_ranks", [2, 3, 4])
@pytest.mark.parametrize("form", [*FORMATS, *BLOCKS_OF_256])
def test_columns_of_ranks_are_those_of_the_layer(form, num_ranks):
    check_columns(form, num_ranks)


@pytest.mark.parametrize("instructions", ["portable", "avx2", "avx512", "avx512vnni"])
def test_columns_have_the_same_bits_on_every_instruction_set(instructions):
    info = Path("/proc/cpuinfo")
    flags = info.read_text() if info.exists() else ""
    needed = {"avx2": "avx2", "avx512": "avx512f", "avx512vnni": "avx512_vnni"}
    if needed.get(instructions, "") not in flags:
        pytest.skip(f"this machine has no {instructions}")
    code = (
        "from tests.model.test_shares import *\n"
        "for form in (*FORMATS, *BLOCKS_OF_256): check_columns(form, 3)\n"
        "print('compared')"
    )
    environment = {**os.environ, "CHAIRLIFT_CPU": instructions}
    command = [sys.executable, "-c", code]
    run = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert run.stdout == "compared\n", run.stderr


def test_columns_of_all_ranks_are_each_column_once():
    for width in (1, 2, 7, 64, 131):
        for num_ranks in range(1, 9):
            shares = [Share(rank, num_ranks) for rank in range(num_ranks)]
            columns = [n for share in shares for n in range(width)[share.columns(width)]]
            if num_ranks <= width:
                assert columns == list(range(width))
            assert shares[0].widths(width) == [share.width(width) for share in shares]


@pytest.mark.parametrize(
    ("num_heads", "num_ranks", "held"),
    [
        (4, 2, [[0, 1], [2, 3]]),
        (3, 2, [[0], [1, 2]]),
        (2, 4, [[0], [0], [1], [1]]),
        (1, 3, [[0], [0], [0]]),
    ],
)
def test_a_rank_holds_whole_heads_that_others_may_hold_too(num_heads, num_ranks, held):
    shares = [Share(rank, num_ranks) for rank in range(num_ranks)]
    heads = [n for n in range(num_heads) for _ in range(5)]
    expected = [[n for n in each for _ in range(5)] for each in held]
    assert [heads[share.columns(5 * num_heads, 5)] for share in shares] == expected


@pytest.mark.parametrize(
    ("family", "problem"),
    [
        ("llama", "a divisor or a multiple of the model's 2 KV heads, got 3"),
        ("llama", "a divisor of the model's 4 heads, got 8"),
        ("olmo2", "a divisor of the model's 2 KV heads, got 4"),
        ("falcon h1, multipliers, tied", "at most 3, got 4"),
    ],
)
def test_what_ranks_cannot_share_is_named(pretrained, family, problem):
    config = ModelConfig.load(pretrained(family)[1], Dtype.AUTO)
    with pytest.raises(ConfigError, match=f"tensor_parallel: expected {problem}"):
        config.of_rank(0, int(problem.split()[-1]))


def test_ranks_share_groups_of_heads_evenly(pretrained):
    spec = ModelConfig.load(pretrained("bamba")[1], Dtype.AUTO).spec
    heads = replace(spec.attentions[0], num_heads=3, num_kv_heads=3)
    layers = [
        layer if layer.recurrent else replace(layer, attention=heads) for layer in spec.layers
    ]
    reason = split_unsupported_reason(replace(spec, layers=tuple(layers)), 3)
    expected = "a divisor or a multiple of the model's 2 groups of heads, got 3"
    assert reason == f"tensor_parallel: expected {expected}"


def test_a_rank_has_its_heads_and_its_part_of_the_feed_forward(pretrained):
    config = ModelConfig.load(pretrained("llama")[1], Dtype.AUTO)
    part = config.of_rank(1, 2)
    assert part.stored_spec == config.spec
    assert part.spec.shape[1:4] == (56, 2, 1)
