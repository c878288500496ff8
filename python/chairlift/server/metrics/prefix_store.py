"""What the prefix store holds and does, read when Prometheus scrapes."""

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from chairlift._core import PrefixStoreStats


class PrefixStoreCollector(Collector):
    """Gauges and counters of one store."""

    def __init__(self, stats: Callable[[], PrefixStoreStats | None]) -> None:
        """Take what returns the counts, from any thread; None once the store is closed."""
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of one snapshot."""
        stats = self._stats()
        if stats is None:
            return
        gauges = (
            ("blocks", "KV blocks, and pieces of states, that can be loaded.", stats.num_blocks),
            ("bytes", "Bytes of the prefix store, of all models.", stats.num_bytes),
            ("foreign_segments", "Segments of other models or keys.", stats.num_foreign),
        )
        for name, text, value in gauges:
            yield GaugeMetricFamily(f"chairlift_prefix_store_{name}", text, value=value)
        counters = (
            ("loaded_blocks", "KV blocks read from disk.", stats.loaded),
            ("written_blocks", "KV blocks written to disk.", stats.written),
            ("dropped_blocks", "KV blocks not written: the queue was full.", stats.dropped),
            ("failed_blocks", "KV blocks not written: the system refused.", stats.failed),
            ("corrupt_blocks", "KV blocks that were damaged on disk.", stats.corrupt),
            ("declined_loads", "Loads predicted to be slower than computing.", stats.declined),
        )
        for name, text, value in counters:
            yield CounterMetricFamily(f"chairlift_prefix_store_{name}", text, value=value)

    def describe(self) -> list[Metric]:
        """Return no description: there are no metrics once the store is closed."""
        return []
