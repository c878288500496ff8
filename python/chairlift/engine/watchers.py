"""Who wants to know of each step."""

from collections.abc import Callable

from chairlift.engine.step_record import StepRecord

Watcher = Callable[[StepRecord], None]


class StepWatchers:
    """Callbacks that come and go."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        """Starts with none; `on_change` is called when one has come or gone."""
        self._watchers: list[Watcher] = []
        self._on_change = on_change

    def __bool__(self) -> bool:
        return bool(self._watchers)

    def add(self, watcher: Watcher) -> Callable[[], None]:
        """Takes a callback; gives a function that ends it."""
        self._watchers.append(watcher)
        self._on_change()

        def end() -> None:
            self._watchers.remove(watcher)
            self._on_change()

        return end

    def tell(self, record: StepRecord | None) -> None:
        """Calls all back, if there was a step."""
        if record is not None:
            for watcher in tuple(self._watchers):
                watcher(record)
