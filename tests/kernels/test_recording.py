"""Calls of kernels that are kept and run later."""

import threading

import numpy
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


@pytest.fixture
def recorded():
    """A recording of one norm, with its tensors."""
    x, weight, out = torch.ones(2, 4), torch.ones(4), torch.zeros(2, 4)
    with Recording() as recording:
        rms_norm(x, weight, 0.0, out=out)
    return recording, {"x": x, "weight": weight, "out": out}


CHANGES = {
    "moved to shared memory": lambda tensor: tensor.share_memory_(),
    "made larger": lambda tensor: tensor.resize_(1 << 20),
    "given another's memory": lambda tensor: tensor.set_(torch.ones_like(tensor)),
    "given other data": lambda tensor: setattr(tensor, "data", torch.ones_like(tensor)),
    "given other numbers": lambda tensor: setattr(tensor, "data", tensor.to(torch.float64)),
    "given another shape": lambda tensor: tensor.unsqueeze_(0),
    "emptied": lambda tensor: tensor.untyped_storage().resize_(0),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("name", ["x", "weight", "out"])
def test_a_tensor_that_is_no_longer_what_was_recorded_is_refused(recorded, name, change):
    recording, tensors = recorded
    recording.run()
    tensors["out"].zero_()
    change(tensors[name])
    with pytest.raises(RuntimeError, match=rf"^{name}: expected the tensor as it was"):
        recording.run()


def test_a_tensor_is_compared_by_shape_and_strides(recorded):
    recording, tensors = recorded
    tensors["x"].t_()
    message = (
        r"^x: expected the tensor as it was recorded, float32 \[2, 4\] with strides \[4, 1\] at "
        r"0x[0-9a-f]+, got float32 \[4, 2\] with strides \[1, 4\] at 0x[0-9a-f]+$"
    )
    with pytest.raises(RuntimeError, match=message):
        recording.run()
    tensors["x"].t_()
    recording.run()
    assert torch.equal(tensors["out"], torch.ones(2, 4))


def test_the_memory_of_a_view_moves_with_that_of_its_base():
    base = torch.ones(4, 4)
    with Recording() as recording:
        rms_norm(base[1:3], torch.ones(4), 0.0, out=torch.zeros(2, 4))
    base.share_memory_()
    with pytest.raises(RuntimeError, match=r"^x: expected the tensor as it was recorded"):
        recording.run()


def test_a_tensor_that_changes_between_two_calls_of_a_recording_is_refused():
    x, out = torch.ones(2, 4), torch.zeros(2, 4)
    with Recording() as recording:
        rms_norm(x, torch.ones(4), 0.0, out=out)
        out.set_(torch.zeros(2, 4))
        rms_norm(x, torch.ones(4), 0.0, out=out)
    with pytest.raises(RuntimeError, match=r"^out: expected the tensor as it was recorded"):
        recording.run()


def test_an_array_that_is_no_longer_what_was_recorded_is_refused():
    x, out = numpy.ones((2, 4), numpy.float32), torch.zeros(2, 4)
    with Recording() as recording:
        rms_norm(x, torch.ones(4), 0.0, out=out)
    recording.run()
    x.resize((4, 1 << 20), refcheck=False)
    with pytest.raises(RuntimeError, match=r"^x: expected the tensor as it was recorded"):
        recording.run()


def test_a_recording_has_one_run_at_a_time():
    layer, x, out = Linear(torch.rand(256, 256)), torch.rand(64, 256), torch.zeros(64, 256)
    with Recording() as recording:
        for _ in range(10):
            layer(x, out=out)
    refusals: list[str] = []

    def run_often():
        for _ in range(5000):
            try:
                recording.run()
            except RuntimeError as error:
                refusals.append(str(error))
            if refusals:
                break

    threads = [threading.Thread(target=run_often) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert refusals[0].startswith("recording: expected one run at a time")
    recording.run()
    assert torch.equal(out, layer(x))


def test_a_recording_ends_where_it_began():
    out, other, errors = torch.zeros(1, 4), Recording(), []

    def end(ended):
        with pytest.raises(RuntimeError, match="expected the thread that `with` began on") as error:
            ended.__exit__(None, None, None)
        errors.append(error)

    with Recording() as recording:
        rms_norm(torch.ones(1, 4), torch.ones(4), 0.0, out=out)
        end(other)
        for ended in (recording, other):
            thread = threading.Thread(target=end, args=(ended,))
            thread.start()
            thread.join(timeout=60)
        rms_norm(torch.ones(1, 4), torch.full((4,), 2.0), 0.0, out=out)
    assert len(errors) == 3
    assert torch.equal(out, torch.zeros(1, 4))
    recording.run()
    assert torch.equal(out, torch.full((1, 4), 2.0))
    end(recording)


def test_two_threads_do_not_share_a_recording():
    refusals = []

    def enter(recording):
        with pytest.raises(RuntimeError, match="another thread is recording with this one"):
            recording.__enter__()
        refusals.append(rms_norm(torch.ones(1, 4), torch.ones(4), 0.0))

    with Recording() as recording:
        thread = threading.Thread(target=enter, args=(recording,))
        thread.start()
        thread.join(timeout=60)
    assert torch.equal(refusals[0], torch.ones(1, 4))


def test_a_thread_computes_again_when_its_recording_is_gone():
    recording = Recording()
    recording.__enter__()
    kept = rms_norm(torch.ones(1, 4), torch.ones(4), 0.0, out=torch.zeros(1, 4))
    assert torch.equal(kept, torch.zeros(1, 4))
    del recording
    assert torch.equal(rms_norm(torch.ones(1, 4), torch.ones(4), 0.0), torch.ones(1, 4))
