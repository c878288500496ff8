"""The page of metrics."""

from dataclasses import dataclass, field
from typing import Final, cast

from chairlift._core import Load, PrefixStoreStats
from chairlift.api.errors import Reason
from chairlift.server.metrics import (
    FIRST_TOKEN_S,
    TOKEN_S,
    AdapterRequests,
    Metrics,
    ServedModel,
    TenantLabels,
)
from chairlift.server.metrics.deliveries import FINE_TOKEN_S, Figures
from chairlift.server.transfer.attached import Transfers
from chairlift.server.transfer.metrics import TransferCollector
from prometheus_client.core import Metric

from tools.reference.markdown import page, table

_LEAD: Final = """
`--metrics-listen 127.0.0.1:9090` serves these in plain text under `/metrics`
([operations.md](../operations.md#metrics)). A name in braces is a label.
"""
_VLLM: Final = """
## By vLLM's names

Endpoint pickers of inference gateways expect these. `vllm:cache_config_info` and
`vllm:lora_requests_info` are theirs alone; the others have values of the metrics above.
"""
_INNER: Final = frozenset(("le", "quantile"))
"""Labels that belong to the type."""


class _AnyLoad:
    """A load of ones: the page has names, not values."""

    def __getattr__(self, name: str) -> int:
        return 1


class _AnyTransfers:
    """The transfers of both roles, with figures of ones."""

    exporting = _AnyLoad()
    num_shared_blocks = 1

    class imports:
        """The imports of a decode server."""

        @staticmethod
        def stats() -> _AnyLoad:
            """Return the counts."""
            return _AnyLoad()


@dataclass
class _AnyDeliveries:
    """One token delivered."""

    tokens: dict[str, int] = field(default_factory=lambda: {"default": 1})
    first_token: Figures = field(default_factory=lambda: ([0] * (len(FIRST_TOKEN_S) + 1), 0.0))
    inter_token: Figures = field(default_factory=lambda: ([0] * (len(FINE_TOKEN_S) + 1), 0.0))


def metrics_page() -> str:
    """Return the page: a line for each metric, in the order of `/metrics`."""
    metrics = Metrics(
        load=lambda: cast("Load", _AnyLoad()),
        model=ServedModel("demo", "0", "continuous", 16),
        tenant_label=TenantLabels(is_closed=True),
        deliveries=_AnyDeliveries(),
        adapters=lambda: AdapterRequests(1, (), ()),
    )
    # A metric shows its labels once it counts something.
    metrics.accepted("default", 1)
    metrics.refused("default", Reason.INTERNAL)
    metrics.watch_prefix_store(lambda: cast("PrefixStoreStats", _AnyLoad()))
    metrics.registry.register(TransferCollector(cast("Transfers", _AnyTransfers())))
    families = list(metrics.registry.collect())
    own = [family for family in families if family.name.startswith("chairlift_")]
    others = [family for family in families if family not in own]
    head = ("Name", "Type", "Meaning")
    return page(
        "Metrics",
        _LEAD,
        table(head, map(_line, own)),
        f"The first tokens' buckets end at {_bounds(FIRST_TOKEN_S)} s, those of the times between"
        f" tokens at {_bounds(TOKEN_S)} s.",
        _VLLM,
        table(head, map(_line, others)),
    )


def _bounds(seconds: tuple[float, ...]) -> str:
    return ", ".join(f"{bound:g}" for bound in seconds)


def _line(family: Metric) -> tuple[str, ...]:
    labels: dict[str, None] = {}
    for sample in family.samples:
        labels.update(dict.fromkeys(name for name in sample.labels if name not in _INNER))
    braces = "{" + ",".join(labels) + "}" if labels else ""
    total = "_total" if family.type == "counter" else ""
    return f"`{family.name}{total}{braces}`", family.type, family.documentation
