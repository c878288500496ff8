"""What a machine must have for the kernels of a GPU, and what is said where it has not."""

import logging

import pytest
from chairlift.api.choices import Device
from chairlift.api.config import EngineConfig
from chairlift.api.errors import ConfigError
from chairlift.engine.loading.devices import resolve_device
from chairlift.kernels.cuda.build import unknown_architecture
from chairlift.kernels.cuda.requirements import Gpu, machine_unsupported_reason
from chairlift.model.config import ModelConfig

from tests.cuda.emulated_device import EmulatedDevice

GOOD = Gpu((9, 0), driver=(13, 0), compiler=(13, 2))
LACKING = {
    "compute capability": (
        GOOD._replace(capability=(7, 5)),
        "expected a GPU of compute capability 8.0 or newer, got 7.5",
    ),
    "driver": (
        GOOD._replace(driver=(12, 8)),
        "expected a driver of CUDA 13 or newer, which is 580 or newer, got one of CUDA 12.8",
    ),
    "compiler": (
        GOOD._replace(compiler_problem="device: cuda needs `pip install chairlift[cuda]`"),
        "needs `pip install",
    ),
    "no GPU": (None, "on a machine without a GPU"),
}


@pytest.fixture
def model(llama):
    return ModelConfig.load(llama[0])


@pytest.mark.parametrize("case", LACKING)
def test_a_machine_that_lacks_something_runs_the_model_on_the_cpu_and_says_why(model, case, caplog):
    gpu, expected = LACKING[case]
    with caplog.at_level(logging.WARNING):
        place = resolve_device(EngineConfig(), model, find_gpu=lambda: gpu)
    assert place.torch_device.type == "cpu"
    assert (expected in caplog.text) == (gpu is not None)


@pytest.mark.parametrize("case", LACKING)
def test_a_gpu_that_was_asked_for_and_cannot_run_kernels_is_one_line(model, case):
    gpu, expected = LACKING[case]
    with pytest.raises(ConfigError) as error:
        resolve_device(EngineConfig(device=Device.CUDA), model, find_gpu=lambda: gpu)
    message = str(error.value)
    assert message.startswith("device: ")
    assert expected in message
    assert "\n" not in message


@pytest.mark.parametrize("capability", [(8, 0), (8, 9), (9, 0), (10, 0), (12, 0)])
def test_gpus_from_ampere_on_have_no_unsupported_reason(capability):
    assert machine_unsupported_reason(GOOD._replace(capability=capability)) is None


def test_a_newer_driver_has_no_unsupported_reason():
    assert machine_unsupported_reason(GOOD._replace(driver=(14, 1))) is None


def test_a_device_that_the_caller_brings_is_taken_as_it_is(model):
    def no_gpu():
        raise AssertionError

    place = resolve_device(EngineConfig(), model, EmulatedDevice(), find_gpu=no_gpu)
    assert place.accelerator is not None


def test_an_architecture_that_the_compiler_does_not_know_is_named(nvrtc):
    assert unknown_architecture(9, 0) is None
    assert "got 99.0" in unknown_architecture(99, 0)
