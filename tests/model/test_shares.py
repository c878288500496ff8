"""The columns of a rank, computed alone, have the bits of the whole layer's."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from chairlift import _core
from chairlift.api.config import Dtype
from chairlift.api.errors import ConfigError
from chairlift.kernels import cpu
from chairlift.model.config import ModelConfig
from chairlift.model.specs.share import Share

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
            assert columns == list(range(width))
            assert shares[0].widths(width) == [share.width(width) for share in shares]


@pytest.mark.parametrize(
    ("family", "problem"),
    [
        ("lfm2, tied", "model: recurrent states are not supported with tensor_parallel"),
        ("olmo2", "model: norms of all heads are not supported with tensor_parallel"),
        ("llama", "tensor_parallel: expected a divisor of the model's 2 KV heads, got 4"),
    ],
)
def test_what_ranks_cannot_share_is_named(pretrained, family, problem):
    config = ModelConfig.load(pretrained(family)[1], Dtype.AUTO)
    with pytest.raises(ConfigError, match=problem):
        config.of_rank(0, 4)


def test_a_rank_has_its_heads_and_its_part_of_the_feed_forward(pretrained):
    config = ModelConfig.load(pretrained("llama")[1], Dtype.AUTO)
    part = config.of_rank(1, 2)
    assert part.stored_spec == config.spec
    assert part.spec.shape[1:4] == (56, 2, 1)
