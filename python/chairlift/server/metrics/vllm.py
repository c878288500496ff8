"""The same metrics under the names that inference gateways look for.

The endpoint picker of the Gateway API inference extension (now of llm-d) takes a model server for
vLLM unless a label of the pod says otherwise, and scrapes `num_requests_waiting`,
`num_requests_running`, `kv_cache_usage_perc` and, where they are there, `cache_config_info` and
`lora_requests_info` (its "model server protocol"). The histograms serve dashboards and autoscalers
written for vLLM. Only metrics with the same meaning are here: vLLM counts prefix-cache hits in
tokens, and Chairlift in blocks.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from chairlift._core import Load
from chairlift.server.metrics.load import ServedModel, kv_usage

_LABELS = ["model_name"]


@dataclass(frozen=True, slots=True)
class AdapterRequests:
    """The adapters that live requests name."""

    max_adapters: int
    """Adapters that can be loaded at once; 0: none."""
    running: tuple[str, ...]
    """Adapters of requests that have a token."""
    waiting: tuple[str, ...]
    """Adapters of requests that have none yet."""


class VllmCollector(Collector):
    """Reads the load and the histograms of the server when Prometheus scrapes."""

    def __init__(
        self,
        load: Callable[[], Load | None],
        model: ServedModel,
        histograms: Mapping[str, Collector],
        adapters: Callable[[], AdapterRequests],
    ) -> None:
        """Set the sources.

        Args:
            load: The same function as in `Metrics`.
            model: Its name is the label of every metric.
            histograms: By vLLM's name, without its prefix.
            adapters: Returns the adapters that requests name, from any thread.
        """
        self._load = load
        self._model = model
        self._histograms = histograms
        self._adapters = adapters

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics; none before the model is loaded."""
        load, model = self._load(), self._model
        if load is None:
            return
        gauges = (
            ("num_requests_running", "Requests in the batch.", load.num_running),
            ("num_requests_waiting", "Requests that have not started.", load.num_waiting),
            ("kv_cache_usage_perc", "Share of the KV blocks in use, 0 to 1.", kv_usage(load)),
        )
        for name, text, value in gauges:
            gauge = GaugeMetricFamily(f"vllm:{name}", text, labels=_LABELS)
            gauge.add_metric([model.name], value)
            yield gauge
        sizes = [str(model.block_size), str(load.num_blocks)]
        config = GaugeMetricFamily(
            "vllm:cache_config_info",
            "1, with the sizes of the KV cache.",
            labels=[*_LABELS, "block_size", "num_gpu_blocks"],
        )
        config.add_metric([model.name, *sizes], 1)
        yield config
        preemptions = CounterMetricFamily(
            "vllm:num_preemptions", "Preemptions of running requests.", labels=_LABELS
        )
        preemptions.add_metric([model.name], load.num_preemptions)
        yield preemptions
        yield from self._lora()
        for name, histogram in self._histograms.items():
            yield self._alias(f"vllm:{name}", histogram)

    def _lora(self) -> Iterator[Metric]:
        adapters = self._adapters()
        if not adapters.max_adapters:
            return
        # vLLM's value is the time: of several series the picker takes the latest.
        info = GaugeMetricFamily(
            "vllm:lora_requests_info",
            "The time, with the adapters of requests that have a token, and that have none yet.",
            labels=["max_lora", "running_lora_adapters", "waiting_lora_adapters"],
        )
        names = [",".join(adapters.running), ",".join(adapters.waiting)]
        info.add_metric([str(adapters.max_adapters), *names], time.time())
        yield info

    def _alias(self, name: str, histogram: Collector) -> Metric:
        (original,) = histogram.collect()
        alias = HistogramMetricFamily(name, original.documentation)
        for sample in original.samples:
            suffix = sample.name.removeprefix(original.name)
            if suffix != "_created":
                labels = {"model_name": self._model.name, **sample.labels}
                alias.samples.append(Sample(name + suffix, labels, sample.value))
        return alias

    def describe(self) -> list[Metric]:
        """Return no description: there are no metrics before the model is loaded."""
        return []
