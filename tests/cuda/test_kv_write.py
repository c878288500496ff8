"""QK-norm, RoPE and the write to the cache in one kernel, against the twins."""

from typing import Any

import pytest
import torch
from chairlift.kernels.cuda.ops import rotary_step
from chairlift.kernels.cuda.sources import HEAD_DIMS
from torch import Tensor

from tests.cuda.conftest import Launch
from tests.cuda.emulation import guarded
from tests.cuda.instantiations import BLOCK_SIZE, instance
from tests.kernels import reference

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
        norms: bool = True,
        rotary_dim: int = 0,
        offset: float = 0.0,
        is_interleaved: bool = False,
    ) -> None:
        self.head_dim, self.dtype, self.kv = head_dim, dtype, kv
        self.offset, self.rotary_dim, self.is_interleaved = offset, rotary_dim, is_interleaved
        tokens, heads = len(SLOTS), NUM_HEADS + 2 * NUM_KV_HEADS
        self.padding = 8  # elements between the rows of qkv, which nobody owns
        self.qkv = numbers(tokens, heads * head_dim + self.padding, seed=0).to(dtype)
        self.norms = [numbers(head_dim, seed=i).to(dtype) for i in (1, 2)] if norms else None
        # Of queries and of keys.
        self.cos_sin = [numbers(64, rotary_dim, seed=i).clamp(-1, 1) for i in (3, 4)]
        self.scales = torch.tensor([[0.5, 0.002], [1.5, 0.002]]) if kv.itemsize == 1 else None

    def parts(self, qkv: Tensor) -> list[Tensor]:
        """Queries, keys and values, `[T, heads, head_dim]`."""
        heads = qkv[:, : -self.padding].view(len(SLOTS), -1, self.head_dim)
        return list(heads.split([NUM_HEADS, NUM_KV_HEADS, NUM_KV_HEADS], dim=1))

    def run(self, run: Launch, *, keys_are_values: bool = False) -> tuple[Tensor, Tensor]:
        """The queries afterwards and the cache, in which nothing else may have changed."""
        shape = (2, NUM_BLOCKS, NUM_KV_HEADS, BLOCK_SIZE, self.head_dim)
        cache = guarded(torch.full(shape, torch.nan).to(self.kv))
        qkv = guarded(self.qkv)
        query, key, value = self.parts(qkv)
        name = instance("kv_write", self.dtype, self.kv, self.head_dim)
        grid = (len(SLOTS), -(-(NUM_HEADS + 2 * NUM_KV_HEADS) // 4))
        tables = [guarded(table) for table in self.cos_sin] if self.rotary_dim else [None, None]
        norms = [None, None] if self.norms is None else self.norms
        scales = None if self.scales is None else guarded(self.scales)
        arguments = [query, key if keys_are_values else value, cache, SLOTS, POSITIONS]
        arguments += [*tables, *norms, scales, qkv.stride(0), qkv.stride(0)]
        arguments += [NUM_HEADS, NUM_KV_HEADS, NUM_BLOCKS, NUM_KV_HEADS, EPS, self.offset]
        run(name, grid, 128, 0, [*arguments, self.rotary_dim, int(self.is_interleaved)])
        width = NUM_HEADS * self.head_dim
        assert torch.equal(qkv[:, width:], self.qkv[:, width:])
        return query, cache

    def expected(self) -> tuple[Tensor, Tensor]:
        """The same by the twins, in float64, of the tokens that are no padding."""
        query, key, value = (part.double() for part in self.parts(self.qkv))
        norms = (
            [None, None] if self.norms is None else [n.double() + self.offset for n in self.norms]
        )
        query, key = (
            reference.rope(x, POSITIONS, table, norm, EPS, is_interleaved=self.is_interleaved)
            for x, table, norm in zip((query, key), self.cos_sin, norms, strict=True)
        )
        return query, torch.stack((key, value))


KINDS: dict[str, dict[str, Any]] = {
    "norms, all of a head": {"rotary": 1.0},
    "norms of weights less 1": {"rotary": 1.0, "offset": 1.0},
    "no norms": {"dtype": torch.float16, "norms": False, "rotary": 1.0},
    "neither": {"norms": False},
    "norms alone": {},
    "a part of a head": {"rotary": 0.5},
    "neighbours": {"rotary": 1.0, "is_interleaved": True},
    "neighbours, a part of a head": {"rotary": 0.25, "is_interleaved": True},
}


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("kind", KINDS)
def test_matches_the_twins(run: Launch, head_dim: int, kind: str) -> None:
    options = {"dtype": torch.bfloat16, "rotary": 0.0, **KINDS[kind]}
    dtype, rotary_dim = options.pop("dtype"), int(options.pop("rotary") * head_dim)
    assert rotary_dim % rotary_step(head_dim) == 0
    case = Case(head_dim, dtype, dtype, rotary_dim=rotary_dim, **options)
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


@pytest.mark.parametrize("head_dim", [64, 128, 256, 512])
@pytest.mark.parametrize("is_interleaved", [False, True])
def test_the_smallest_part_of_a_head(run: Launch, head_dim: int, is_interleaved: bool) -> None:
    rotary_dim = rotary_step(head_dim)
    options = {"norms": False, "rotary_dim": rotary_dim, "is_interleaved": is_interleaved}
    case = Case(head_dim, torch.bfloat16, torch.bfloat16, **options)
    query, _ = case.run(run)
    torch.testing.assert_close(query.double(), case.expected()[0], rtol=2**-8, atol=1e-5)
    assert torch.equal(query[..., rotary_dim:], case.parts(case.qkv)[0][..., rotary_dim:])


def test_keys_may_be_values(run: Launch) -> None:
    case = Case(64, torch.bfloat16, torch.bfloat16, rotary_dim=64)
    _, cache = case.run(run, keys_are_values=True)
    block, offset = SLOTS[SLOTS >= 0] // BLOCK_SIZE, SLOTS[SLOTS >= 0] % BLOCK_SIZE
    keys = case.parts(case.qkv)[1][SLOTS >= 0]
    assert torch.equal(cache[1][block, :, offset], keys), "neither normed nor rotated"


def test_float8_is_to_the_nearest_of_the_scaled_number(run: Launch) -> None:
    case = Case(128, torch.bfloat16, torch.float8_e4m3fn, rotary_dim=128)
    _, cache = case.run(run)
    wide = Case(128, torch.bfloat16, torch.bfloat16, rotary_dim=128)
    _, exact = wide.run(run)
    scales = case.scales.view(2, 1, NUM_KV_HEADS, 1, 1)
    expected = (exact.float() * (1 / scales)).clamp(-448, 448).to(torch.float8_e4m3fn)
    block, offset = SLOTS[SLOTS >= 0] // BLOCK_SIZE, SLOTS[SLOTS >= 0] % BLOCK_SIZE
    found, wanted = (x.view(torch.uint8)[:, block, :, offset] for x in (cache, expected))
    assert torch.equal(found, wanted)
    assert (found & 0x7F == 0x7E).any(), "some numbers must be beyond 448"
