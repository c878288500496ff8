"""QK-norm, RoPE and the write to the cache in one kernel, against the twins."""

import pytest
import torch
from chairlift import reference
from torch import Tensor

from tests.cuda.conftest import Launch
from tests.cuda.emulation import guarded
from tests.cuda.instantiations import BLOCK_SIZE, instance

NUM_BLOCKS, NUM_HEADS, NUM_KV_HEADS, EPS = 5, 6, 2, 1e-6
SLOTS = torch.tensor([33, -1, 16, 79, 31], dtype=torch.int32)
POSITIONS = torch.tensor([17, 0, 0, 63, 15], dtype=torch.int32)


def numbers(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class Case:
    def __init__(
        self,
        head_dim: int,
        dtype: torch.dtype,
        kv: torch.dtype,
        norms: bool,
        rope: bool,
        offset: float = 0.0,
    ) -> None:
        self.head_dim, self.dtype, self.kv = head_dim, dtype, kv
        tokens, heads = len(SLOTS), NUM_HEADS + 2 * NUM_KV_HEADS
        self.offset = offset
        self.padding = 8  # elements between the rows of qkv, which nobody owns
        self.qkv = numbers(tokens, heads * head_dim + self.padding, seed=0).to(dtype)
        self.norms = [numbers(head_dim, seed=i).to(dtype) for i in (1, 2)] if norms else None
        self.cos_sin = numbers(64, head_dim, seed=3).clamp(-1, 1) if rope else None
        self.scales = torch.tensor([[0.5, 0.002], [1.5, 0.002]]) if kv.itemsize == 1 else None

    def run(self, run: Launch) -> tuple[Tensor, Tensor]:
        """The queries afterwards and the cache, in which nothing else may have changed."""
        shape = (2, NUM_BLOCKS, NUM_KV_HEADS, BLOCK_SIZE, self.head_dim)
        cache = guarded(torch.full(shape, torch.nan).to(self.kv))
        qkv = guarded(self.qkv)
        name = instance("kv_write", self.dtype, self.kv, self.head_dim)
        grid = (len(SLOTS), -(-(NUM_HEADS + 2 * NUM_KV_HEADS) // 4))
        optional = [None if x is None else guarded(x) for x in (self.cos_sin, self.scales)]
        norms = [None, None] if self.norms is None else self.norms
        numbers = [qkv.stride(0), NUM_HEADS, NUM_KV_HEADS, NUM_BLOCKS, EPS, self.offset]
        arguments = [qkv, cache, SLOTS, POSITIONS, optional[0], *norms, optional[1], *numbers]
        run(name, grid, 128, 0, arguments)
        width = NUM_HEADS * self.head_dim
        assert torch.equal(qkv[:, width:], self.qkv[:, width:])
        return qkv[:, :width].view(len(SLOTS), NUM_HEADS, self.head_dim), cache

    def expected(self) -> tuple[Tensor, Tensor]:
        """The same by the twins, in float64, of the tokens that are no padding."""
        parts = self.qkv[:, : -self.padding].view(len(SLOTS), -1, self.head_dim).double()
        query, key, value = parts.split([NUM_HEADS, NUM_KV_HEADS, NUM_KV_HEADS], dim=1)
        norms = (
            [None, None] if self.norms is None else [n.double() + self.offset for n in self.norms]
        )
        table = torch.ones(64, self.head_dim)
        table[:, self.head_dim // 2 :] = 0
        table = table if self.cos_sin is None else self.cos_sin
        query, key = (
            reference.rope(x, POSITIONS, table, norm, EPS)
            for x, norm in zip((query, key), norms, strict=True)
        )
        return query, torch.stack((key, value))


@pytest.mark.parametrize("head_dim", [64, 96, 128, 256])
@pytest.mark.parametrize(
    ("dtype", "norms", "rope", "offset"),
    [
        (torch.bfloat16, True, True, 0.0),
        (torch.bfloat16, True, True, 1.0),
        (torch.float16, False, True, 0.0),
        (torch.bfloat16, False, False, 0.0),
    ],
)
def test_matches_the_twins(
    run: Launch, head_dim: int, dtype: torch.dtype, norms: bool, rope: bool, offset: float
) -> None:
    case = Case(head_dim, dtype, dtype, norms, rope, offset)
    query, cache = case.run(run)
    expected_query, expected = case.expected()
    tolerance = {"rtol": 2**-8 if dtype == torch.bfloat16 else 2**-11, "atol": 1e-5}
    torch.testing.assert_close(query.double(), expected_query, **tolerance)
    written = SLOTS >= 0
    block, offset = SLOTS[written] // BLOCK_SIZE, SLOTS[written] % BLOCK_SIZE
    found = cache[:, block, :, offset].transpose(0, 1)
    torch.testing.assert_close(found.double(), expected[:, written], **tolerance)
    cache[:, block, :, offset] = torch.nan
    assert cache.isnan().all()


def test_float8_is_to_the_nearest_of_the_scaled_number(run: Launch) -> None:
    case = Case(128, torch.bfloat16, torch.float8_e4m3fn, norms=True, rope=True)
    _, cache = case.run(run)
    wide = Case(128, torch.bfloat16, torch.bfloat16, norms=True, rope=True)
    _, exact = wide.run(run)
    scales = case.scales.view(2, 1, NUM_KV_HEADS, 1, 1)
    expected = (exact.float() * (1 / scales)).clamp(-448, 448).to(torch.float8_e4m3fn)
    block, offset = SLOTS[SLOTS >= 0] // BLOCK_SIZE, SLOTS[SLOTS >= 0] % BLOCK_SIZE
    found, wanted = (x.view(torch.uint8)[:, block, :, offset] for x in (cache, expected))
    assert torch.equal(found, wanted)
    assert (found & 0x7F == 0x7E).any(), "some numbers must be beyond 448"
