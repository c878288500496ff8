"""Where every task of an event loop waits: what a scenario says of a call that hangs."""

import asyncio

_DEEPEST = 30


def stacks(loop):
    """A line for each task: its name and its frames, the innermost last."""
    return "\n".join(
        f"  {task.get_name()}: {' > '.join(_frames(task.get_coro()))}"
        for task in asyncio.all_tasks(loop)
    )


def _frames(awaited):
    for _ in range(_DEEPEST):
        if awaited is None:
            return
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "ag_frame", None)
        if frame is None:
            yield repr(awaited)[:120]
        else:
            code = frame.f_code
            yield f"{code.co_qualname} ({code.co_filename.rsplit('/', 1)[-1]}:{frame.f_lineno})"
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "ag_await", None)
