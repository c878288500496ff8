"""The engine's load as gauges, read when Prometheus scrapes: steps need not report it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from chairlift._core import Load


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The served model and its settings."""

    name: str
    version: str
    """The version of Chairlift."""
    batching: str
    block_size: int


def kv_usage(load: Load) -> float:
    """Return the share of the KV blocks that requests hold, 0 to 1."""
    return (load.num_blocks - load.num_free_blocks) / max(1, load.num_blocks)


class LoadCollector(Collector):
    """The gauges; there are none before the model is loaded."""

    def __init__(self, load: Callable[[], Load | None], model: ServedModel) -> None:
        self._load = load
        self._model = model

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of one snapshot."""
        load = self._load()
        if load is None:
            return
        model = self._model
        labels = ["version", "model", "batching"]
        info = GaugeMetricFamily("chairlift_info", "1, with what is served.", labels=labels)
        info.add_metric([model.version, model.name, model.batching], 1)
        yield info
        for name, text, value in self._gauges(load):
            yield GaugeMetricFamily(f"chairlift_{name}", text, value=value)
        for name, text, count in _counters(load):
            yield CounterMetricFamily(f"chairlift_{name}", text, value=count)

    def _gauges(self, load: Load) -> tuple[tuple[str, str, float], ...]:
        held = (load.num_blocks - load.num_free_blocks) * self._model.block_size
        unwritten = held - load.num_kv_tokens
        return (
            ("requests_waiting", "Requests that have not started.", load.num_waiting),
            ("waiting_tokens", "Prompt tokens of the waiting requests.", load.num_waiting_tokens),
            ("requests_running", "Requests in the batch.", load.num_running),
            (
                "requests_suspended",
                "Waiting and running ones that are paused, without credit, or not read.",
                load.num_waiting_suspended + load.num_running_suspended,
            ),
            ("rows_held", "Rows in use or reserved until a batch ends.", load.num_rows_held),
            ("kv_blocks", "KV blocks that requests can have.", load.num_blocks),
            ("kv_blocks_free", "KV blocks free or evictable.", load.num_free_blocks),
            ("kv_blocks_cached", "KV blocks in the prefix cache.", load.num_cached_blocks),
            ("kv_usage_ratio", "Share of the KV blocks that requests hold.", kv_usage(load)),
            ("host_blocks", "KV blocks of host memory.", load.num_host_blocks),
            (
                "host_blocks_free",
                "KV blocks of host memory that are free.",
                load.num_free_host_blocks,
            ),
            (
                "state_snapshots",
                "Snapshots of recurrent states that requests can begin with.",
                load.num_state_snapshots,
            ),
            ("kv_slots_unwritten", "Token slots of held KV blocks not written yet.", unwritten),
            ("kv_waste_ratio", "Unwritten share of the held slots.", unwritten / max(1, held)),
        )

    def describe(self) -> list[Metric]:
        """Return no description: there are no metrics before the model is loaded."""
        return []


def _counters(load: Load) -> tuple[tuple[str, str, int], ...]:
    """Return the counters since the engine started; a restart in place resets them to 0."""
    return (
        ("preemptions", "Preemptions of running requests.", load.num_preemptions),
        ("recomputed_tokens", "Tokens recomputed after a preemption.", load.num_recomputed_tokens),
        ("swapped_tokens", "Tokens swapped in from host memory.", load.num_swapped_tokens),
        ("prefix_cache_queries", "Prompt blocks looked up.", load.num_prefix_queries),
        ("prefix_cache_hits", "Prompt blocks found.", load.num_prefix_hits),
    )
