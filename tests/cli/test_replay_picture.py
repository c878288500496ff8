"""The picture of the first steps of a replay."""

from chairlift.cli.replay_picture import FirstSteps
from chairlift.core.plan import PlanView
from chairlift.core.step_rows import StepRows
from chairlift.replay.recipes import draw_trace
from chairlift.replay.run import Int64Array, replay
from chairlift.replay.step_time import DEFAULT
from rich.console import Console, RenderableType

CROSS = "\N{MULTIPLICATION SIGN}"


def written(picture: RenderableType) -> str:
    console = Console(width=4000, color_system=None)
    with console.capture() as capture:
        console.print(picture)
    return capture.get()


def test_a_preemption_after_the_drawn_steps_is_not_in_the_picture() -> None:
    trace = draw_trace("nano", num_requests=6)
    settings = trace.header.model_copy(update={"max_num_seqs": 4, "num_kv_blocks": 150})
    first, num_preempted = FirstSteps([0] * 6), []

    def note(plan: PlanView, indices: Int64Array, done: StepRows, lost: list[int]) -> None:
        first.note(plan, indices, done, lost)
        num_preempted.append(len(lost))

    replay(trace, settings, DEFAULT, note)
    at = next(step for step, num in enumerate(num_preempted, start=1) if num)
    assert CROSS not in written(first.picture(at - 1, 4000))
    assert CROSS in written(first.picture(at, 4000))
