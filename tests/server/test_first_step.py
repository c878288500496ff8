"""A model that fails in its first step: the start says what failed, not only that it did."""

import pytest
from chairlift.api.errors import ModelError
from chairlift.engine.async_engine import AsyncEngine
from chairlift.engine.engine import Engine
from chairlift.server.app.loading import probe

FAULTS = {
    "an error": (
        ValueError("head_dim: expected a multiple of 16 up to 256, got 24"),
        "ValueError: head_dim: expected a multiple of 16 up to 256, got 24",
    ),
    "several lines": (RuntimeError("no\nkernel\n" + "x" * 10_000), "RuntimeError: no kernel xxx"),
    "no text": (MemoryError(), "MemoryError"),
}


@pytest.mark.parametrize("case", FAULTS)
async def test_the_error_of_the_first_step_names_its_cause(tiny_folder, case):
    fault, expected = FAULTS[case]
    engine = Engine(tiny_folder, max_num_seqs=2)
    forward = engine.runner.model.forward

    def broken(*_):
        raise fault

    engine.runner.model.forward = broken
    serving = AsyncEngine.of(engine)
    await serving.start()
    try:
        with pytest.raises(ModelError) as error:
            await probe(serving)
        message = str(error.value)
        assert message.startswith(f"the model does not answer: {expected}")
        assert "\n" not in message
        assert len(message) < 500
        engine.runner.model.forward = forward
        await serving.restart()
        engine.runner.model.forward = forward
        await probe(serving)
        assert engine.fault is None
    finally:
        await serving.stop()
