"""What an `AsyncEngine` does with requests, from start to end."""

from enum import StrEnum

from chairlift.errors import Reason


class EngineState(StrEnum):
    """What an `AsyncEngine` does with requests."""

    STARTING = "starting"
    """Refuses them: the model is being read."""
    SERVING = "serving"
    DRAINING = "draining"
    """Ends those it has and refuses new ones; also after `stop`."""
    DEAD = "dead"
    """A fault ended them all; none is taken until `restart`."""

    @property
    def refusal(self) -> Reason | None:
        """Why a request cannot be submitted now; None where it can."""
        return _REFUSALS.get(self)


_REFUSALS = {
    EngineState.STARTING: Reason.STARTING,
    EngineState.DRAINING: Reason.DRAINING,
    EngineState.DEAD: Reason.ENGINE_DOWN,
}
