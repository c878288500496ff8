"""Which rows of a step fail, found by running halves of it.

    8 rows fail ─▶ 4 fail ─▶ 2 pass
                          └▶ 2 fail ─▶ 1 passes
                │                    └▶ 1 fails, while the model works without it
                └▶ 4 pass

Rows may run separately and again: within a step no row reads what another one writes, a row writes
to blocks that are its own, and its draw depends on nothing but its seed, index and position. One
failing row among R costs at most 2 log2(R) + 1 passes, and no step more than 2 R.
"""

import logging
from collections.abc import Callable
from typing import NamedTuple

import torch

from chairlift import _core
from chairlift.api.errors import EngineDownError
from chairlift.core.events import PromptScores
from chairlift.engine.runner.sampler import Sampled
from chairlift.engine.runner.step_inputs import StepInputs

logger = logging.getLogger(__name__)


class Bisected(NamedTuple):
    """The result of running a step in parts."""

    failing: list[int]
    """Rows that fail alone while the model works, as indices into the step's rows."""
    sampled: Sampled
    """Draws of the rows that passed, in order; of the whole step if none fails."""


def bisect(
    inputs: StepInputs, run: Callable[[StepInputs], Sampled], probe: Callable[[], None]
) -> Bisected:
    """Run a step that failed again, in parts.

    Args:
        inputs: Inputs of the step.
        run: Computes a part of it; a panic in a kernel is no Exception, so every
            exception but an interrupt counts as a failure of the part.
        probe: Computes a token that belongs to no request; raises if the model does not work.

    Raises:
        EngineDownError: The model does not work, whatever the request.
    """
    failing: list[int] = []
    passed: list[Sampled] = []
    num_rows = len(inputs.metadata.rows)
    parts = _halves(0, num_rows)
    while parts:
        start, end = parts.pop()
        try:
            passed.append(run(inputs.part(start, end)))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:
            if end - start > 1:
                parts += _halves(start, end)
                continue
            if not failing:
                _check_model(probe)
            failing.append(start)
            logger.exception("row %d of %d fails alone", start, num_rows)
    return Bisected(failing, _joined(passed))


def _halves(start: int, end: int) -> list[tuple[int, int]]:
    """Return the parts to run next, the first one last; a single row is its only part."""
    if end - start == 1:
        return [(start, end)]
    middle = (start + end) // 2
    return [(middle, end), (start, middle)]


def _check_model(probe: Callable[[], None]) -> None:
    try:
        probe()
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        message = "the model fails whatever it is given"
        raise EngineDownError(message) from error


def _joined(parts: list[Sampled]) -> Sampled:
    if not parts:
        return Sampled.empty(0)
    return Sampled(
        tokens=torch.cat([part.tokens for part in parts]),
        logprobs=torch.cat([part.logprobs for part in parts]),
        ranks=torch.cat([part.ranks for part in parts]),
        candidates=_core.Candidates.joined([(p.candidates, len(p.tokens)) for p in parts]),
        prompt=_joined_prompts([part.prompt for part in parts if part.prompt is not None]),
    )


def _joined_prompts(parts: list[PromptScores]) -> PromptScores | None:
    """Join the prompts' scores of parts of a step, which all have the step's width."""
    if not parts:
        return None
    columns = zip(*(part.tensors() for part in parts), strict=True)
    return PromptScores(*(torch.cat(column) for column in columns))
