"""Calls of kernels that are kept and run later."""

import threading

import pytest
import torch
from chairlift._core import Recording
from chairlift.kernels import Linear, rms_norm, silu_mul
from chairlift.kernels.cpu import select_rows


def test_nothing_is_computed_before_the_run():
    x, out = torch.ones(2, 4), torch.zeros(2, 4)
    with Recording() as recording:
        rms_norm(x, torch.ones(4), 0.0, out=out)
    assert torch.equal(out, torch.zeros(2, 4))
    recording.run()
    assert torch.equal(out, torch.ones(2, 4))


def test_a_run_computes_what_the_tensors_contain_by_then():
    x, normed, gated = torch.zeros(3, 8), torch.zeros(3, 8), torch.zeros(3, 4)
    layer, weight = Linear(torch.eye(8)), torch.rand(8)
    with Recording() as recording:
        silu_mul(layer(rms_norm(x, weight, 1e-5, out=normed)), out=gated)
    for seed in range(3):
        x.copy_(torch.randn(3, 8, generator=torch.Generator().manual_seed(seed)))
        recording.run()
        assert torch.equal(gated, silu_mul(layer(rms_norm(x, weight, 1e-5))))


def test_tensors_live_as_long_as_the_calls():
    out = torch.zeros(1, 1 << 16)
    with Recording() as recording:
        rms_norm(torch.ones(1, 1 << 16), torch.full((1 << 16,), 2.0), 0.0, out=out)
    torch.zeros(1, 1 << 16)  # Takes the memory of what was freed too early.
    recording.run()
    assert torch.equal(out, torch.full_like(out, 2))


def test_a_wrong_call_is_told_by_the_run():
    out = torch.zeros(2, 4)
    with Recording() as recording:
        select_rows(torch.ones(3, 4), torch.tensor([0, 3], dtype=torch.int32), out)
    with pytest.raises(ValueError, match=r"rows: expected indices in 0\.\.3, got 3"):
        recording.run()


def test_an_exception_ends_the_recording_without_calls():
    recording = Recording()
    with pytest.raises(KeyError), recording:
        raise KeyError
    with pytest.raises(RuntimeError, match="has its calls"):
        recording.run()
    assert torch.equal(rms_norm(torch.ones(1, 4), torch.ones(4), 0.0), torch.ones(1, 4))


def test_a_thread_keeps_one_recording_at_a_time_and_a_recording_its_calls():
    with Recording() as recording:
        with pytest.raises(RuntimeError, match="recording already"), Recording():
            pass
        with pytest.raises(RuntimeError, match="`with` has not ended"):
            recording.run()
    recording.run()
    with pytest.raises(RuntimeError, match="expected a new one"), recording:
        pass


def test_another_thread_computes_meanwhile():
    results = []

    def compute() -> None:
        results.append(rms_norm(torch.ones(1, 4), torch.ones(4), 0.0))

    with Recording():
        thread = threading.Thread(target=compute)
        thread.start()
        thread.join(timeout=60)
    assert torch.equal(results[0], torch.ones(1, 4))
