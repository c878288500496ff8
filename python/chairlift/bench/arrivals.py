"""When the requests of a measurement arrive, by the definitions of `vllm bench serve`."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from chairlift.api.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Arrivals:
    """All at once, at a rate, or as others end.

    A rate is an open loop: the gaps between requests are drawn from a gamma distribution, and a
    request arrives when it is due, whatever the state of the others. With a concurrency the loop is
    closed: a request arrives when one of so many has ended.
    """

    rate_per_s: float = math.inf
    """Requests per second; inf is all at once."""
    burstiness: float = 1.0
    """Shape of the gamma distribution: 1 is a Poisson process, less is burstier, more is evener."""
    concurrency: int | None = None
    """Requests at a time; None is any number."""

    def times_s(self, random: "np.random.Generator", num_requests: int) -> "NDArray[np.float64]":
        """Draw the times of arrival, `[num_requests]` seconds after the start.

        The gaps are scaled so that the last request arrives after `num_requests / rate_per_s`: what
        is offered in the run is the rate, and not the rate that some seed gives.
        """
        import numpy as np

        if math.isinf(self.rate_per_s):
            return np.zeros(num_requests)
        scale = 1 / (self.rate_per_s * self.burstiness)
        times = np.cumsum(random.gamma(self.burstiness, scale, num_requests))
        # Gaps of an extreme shape may all be zero.
        last = float(times[-1])
        return times * (num_requests / self.rate_per_s / last) if last > 0 else times


def rates_of(text: str | None) -> list[float] | None:
    """Return the rates of a list such as `2,4,8,max`, each once; inf is all at once.

    Raises:
        ConfigError: It is no such list.
    """
    if text is None:
        return None
    found = []
    for part in text.split(","):
        try:
            rate = math.inf if part.strip() == "max" else float(part)
        except ValueError:
            rate = math.nan
        if not rate > 0 or (math.isinf(rate) and part.strip() != "max"):
            message = f"rates: expected rates such as 2,4,8,max, got {part!r}"
            raise ConfigError(message)
        found.append(rate)
    return list(dict.fromkeys(found))
