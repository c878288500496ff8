"""What a server with a role moves, read when Prometheus scrapes."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from chairlift.server.transfer.attached import Transfers


class TransferCollector(Collector):
    """Gauges and counters of one server."""

    def __init__(self, transfers: Transfers) -> None:
        """Take what moves blocks."""
        self._transfers = transfers

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of one snapshot: those of the server's role."""
        exporting, imports = self._transfers.exporting, self._transfers.imports
        if exporting is not None:
            yield GaugeMetricFamily(
                "chairlift_transfer_held_bytes",
                "KV blocks that no call has sent yet.",
                value=exporting.num_held_bytes,
            )
            yield _counter("sent_blocks", "KV blocks sent to other servers.", exporting.num_sent)
        if exporting is not None or imports is not None:
            text = "KV blocks that came or went through shared memory."
            yield _counter("shared_blocks", text, self._transfers.num_shared_blocks)
        if imports is not None:
            stats = imports.stats()
            yield _counter(
                "received_blocks", "KV blocks placed from others.", stats.num_transferred_blocks
            )
            yield _counter("whole_prompts", "Prompts whose KV blocks all came.", stats.num_whole)
            yield _counter(
                "partial_prompts", "Prompts of which KV blocks were missing.", stats.num_partial
            )
            yield _counter(
                "local_prompts", "Long prompts without a server to ask.", stats.num_local
            )

    def describe(self) -> list[Metric]:
        """Return no description: there are no metrics before the model is loaded."""
        return []


def _counter(name: str, text: str, value: int) -> Metric:
    return CounterMetricFamily(f"chairlift_transfer_{name}", text, value=value)
