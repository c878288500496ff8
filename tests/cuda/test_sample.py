"""The draw on the device against the one on the CPU: the same tokens."""

import math

import pytest
import torch
from chairlift import _core
from torch import Tensor

from tests.cuda.conftest import Launch, launch_emulated
from tests.cuda.emulation import guarded, reversed_turns
from tests.cuda.instantiations import instance

SHARED_BYTES = 40960


class SamplingInputs:
    """Logits `[S, vocab_size]` and how to draw from each."""

    def __init__(
        self,
        logits: Tensor,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
    ) -> None:
        rows = len(logits)
        self.logits = logits
        self.parameters = {
            "temperature": torch.full((rows,), temperature),
            "top_k": torch.full((rows,), top_k, dtype=torch.int32),
            "top_p": torch.full((rows,), top_p),
            "min_p": torch.full((rows,), min_p),
            "seed": torch.arange(rows) * 0x1234_5678_9ABC - 7,
            "index": torch.arange(rows, dtype=torch.int32) % 3,
            "position": torch.arange(rows, dtype=torch.int32) + 5,
        }

    def out(self) -> list[Tensor]:
        int32 = {"dtype": torch.int32}
        rows = len(self.logits)
        return [
            torch.full((rows,), -9, **int32),
            torch.full((rows,), math.nan),
            torch.full((rows,), -9, **int32),
        ]

    def on_device(self, run: Launch) -> list[Tensor]:
        logits, out = guarded(self.logits), [guarded(x) for x in self.out()]
        arguments = [logits, *out, *self.parameters.values()]
        arguments += [logits.shape[1], logits.stride(0)]
        name = instance("sample", logits.dtype)
        run(name, (len(logits),), 1024, SHARED_BYTES, arguments)
        return out

    def on_cpu(self) -> list[Tensor]:
        out = self.out()
        _core.sample(self.logits.float(), *self.parameters.values(), *out)
        return out

    def check(self, run: Launch) -> None:
        tokens, logprobs, ranks = self.on_device(run)
        expected = self.on_cpu()
        assert torch.equal(tokens, expected[0])
        torch.testing.assert_close(logprobs, expected[1], rtol=1e-5, atol=1e-5)
        assert torch.equal(ranks, expected[2])


def normal(rows: int, vocab_size: int, scale: float = 2.0, seed: int = 0) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    return scale * torch.randn(rows, vocab_size, generator=random)


FILTERS = [
    {"temperature": 0.0},
    {},
    {"temperature": 0.3},
    {"temperature": 1e-40},
    {"top_k": 1},
    {"top_k": 50, "temperature": 1.7},
    {"top_p": 0.9},
    {"top_p": 0.3, "temperature": 0.7},
    {"top_k": 20, "top_p": 0.8},
    {"min_p": 0.1},
    {"top_k": 40, "top_p": 0.95, "min_p": 0.05, "temperature": 0.8},
]


@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_draws_the_tokens_of_the_cpu(run: Launch, filters: dict[str, float]) -> None:
    SamplingInputs(normal(12, 5003), **filters).check(run)


@pytest.mark.parametrize(
    "filters", [{"top_k": 9}, {"top_p": 0.6}, {}, {"temperature": 0.0}], ids=str
)
def test_equal_logits_go_by_id(run: Launch, filters: dict[str, float]) -> None:
    logits = torch.randint(0, 4, (16, 300), generator=torch.Generator().manual_seed(1)).float()
    logits[0] = 1.0
    logits[1, ::2] = -0.0  # equals 0.0
    logits[1, 1::2] = 0.0
    SamplingInputs(logits, **filters).check(run)


@pytest.mark.parametrize(
    "filters", [{"top_p": 0.97}, {"top_k": 5000}, {"top_k": 3000, "top_p": 0.9}]
)
def test_more_candidates_than_shared_memory_holds(run: Launch, filters: dict[str, float]) -> None:
    SamplingInputs(normal(4, 9000, scale=0.2), **filters).check(run)


@pytest.mark.parametrize("vocab_size", [1, 2, 31, 1023, 1024, 1025])
@pytest.mark.parametrize("filters", [{}, {"top_k": 2, "top_p": 0.9}], ids=str)
def test_any_size_of_vocabulary(run: Launch, vocab_size: int, filters: dict[str, float]) -> None:
    SamplingInputs(normal(4, vocab_size), **filters).check(run)


def test_rows_that_are_not_finite_are_refused_alone(run: Launch) -> None:
    logits = normal(6, 200)
    logits[0, 77] = math.nan
    logits[1, 3] = math.inf
    logits[2] = -math.inf
    logits[3, 50:] = -math.inf
    for filters in ({}, {"temperature": 0.0}, {"top_k": 5}):
        draws = SamplingInputs(logits, **filters)
        draws.check(run)
        tokens = draws.on_device(run)[0]
        assert (tokens < 0).tolist() == [True, True, True, False, False, False]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_logits_of_sixteen_bits(run: Launch, dtype: torch.dtype) -> None:
    SamplingInputs(normal(4, 1000).to(dtype), top_k=30, top_p=0.9).check(run)


def test_every_row_has_parameters_of_its_own(run: Launch) -> None:
    draws = SamplingInputs(normal(len(FILTERS), 700))
    for row, filters in enumerate(FILTERS):
        for name, value in filters.items():
            draws.parameters[name][row] = value
    draws.check(run)


def test_turns_of_the_threads_change_nothing() -> None:
    draws = SamplingInputs(normal(3, 2000), top_k=100, top_p=0.9)
    expected = draws.on_device(launch_emulated)
    with reversed_turns(instance("sample", torch.float32)):
        found = draws.on_device(launch_emulated)
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))
