"""Progress of long work, on standard error: a bar on a terminal, else a line at intervals."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, Self, TypeVar

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

_LINE_EVERY_S: Final = 10.0
_REFRESH_PER_S: Final = 2
"""Few: drawing takes time from the work."""


_NARROW: Final = 60
"""Columns below which the bar omits the unit."""
_WIDE: Final = 75
"""Columns below which it omits the rate."""

Item = TypeVar("Item")


class Progress:
    """Counts finished work, and shows it with its rate, the elapsed and the remaining time.

    Use it as a context manager while the work runs. A bar is erased at the end.
    """

    def __init__(
        self,
        unit: str,
        total: int | None = None,
        *,
        as_json: bool = False,
        doing: str = "measuring",
        num_before: int = 0,
        console: "Console | None" = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start with nothing done.

        Args:
            unit: The unit of work, in the plural.
            total: The number of units; None until `expect`.
            as_json: Whether results go to standard output while this runs.
            doing: What the lines begin with.
            num_before: Units that were finished earlier: they are no part of the rate.
            console: Where to show it; None is standard error.
            clock: Returns seconds.
        """
        self._unit = unit
        self._total = total
        self._as_json = as_json
        self._doing = doing
        self._num_before = num_before
        self._console = console
        self._clock = clock
        self._done = num_before
        self._started = self._shown = clock()
        self._bar: tuple[Bar, TaskID] | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        from rich.console import Console

        # A bar and results on one terminal would overwrite each other.
        is_mixed = self._as_json and sys.stdout.isatty()
        if self._console is None:
            self._console = Console(stderr=True, force_terminal=False if is_mixed else None)
        if self._console.is_terminal:
            self._stack.enter_context(self._draw(self._console))
        self._started = self._shown = self._clock()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stack.close()
        self._bar = None

    def expect(self, total: int) -> None:
        """Set the number of units."""
        self._total = total
        self._show()

    def tick(self, count: int = 1) -> None:
        """Count finished units."""
        self._done += count
        self._show()

    def counting(self, results: Iterable[Item]) -> Iterator[Item]:
        """Yield results and count them."""
        for result in results:
            self.tick()
            yield result

    def _draw(self, console: "Console") -> "Bar":
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )
        from rich.progress import Progress as Bar

        bar = Bar(
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.description}" if console.width >= _NARROW else ""),
            TextColumn("{task.fields[rate]}" if console.width >= _WIDE else ""),
            TimeElapsedColumn(),
            TextColumn("elapsed"),
            TimeRemainingColumn(),
            TextColumn("left"),
            console=console,
            transient=True,
            expand=True,
            refresh_per_second=_REFRESH_PER_S,
            # Results go to standard output while the bar is on standard error.
            redirect_stdout=False,
            redirect_stderr=False,
        )
        task = bar.add_task(self._unit, total=self._total, completed=self._done, rate="")
        self._bar = (bar, task)
        return bar

    def _show(self) -> None:
        if self._bar is not None:
            bar, task = self._bar
            rate = self._rate(self._clock() - self._started)
            bar.update(task, completed=self._done, total=self._total, rate=rate)
            return
        now = self._clock()
        if now - self._shown < _LINE_EVERY_S or self._console is None:
            return
        self._shown = now
        self._console.print(self._line(now - self._started), highlight=False, soft_wrap=True)

    def _line(self, elapsed_s: float) -> str:
        elapsed = f"{_minutes(elapsed_s)} elapsed"
        num_new = self._done - self._num_before
        if not self._total or not num_new:
            return f"{self._doing}: {self._done} {self._unit}, {elapsed}"
        remaining_s = elapsed_s * (self._total - self._done) / num_new
        return (
            f"{self._doing}: {self._done} of {self._total} {self._unit}, {self._rate(elapsed_s)}, "
            f"{elapsed}, about {_minutes(remaining_s)} remaining"
        )

    def _rate(self, elapsed_s: float) -> str:
        num_new = self._done - self._num_before
        return f"{num_new / elapsed_s:.3g}/s" if num_new and elapsed_s > 0 else ""


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
