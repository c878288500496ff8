"""`chairlift bench embeddings`: what a batch gains for vectors, and what a window costs."""

import gc
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from chairlift.api.choices import Batching
from chairlift.api.errors import ConfigError
from chairlift.api.figures import format_value
from chairlift.bench.workload import Item
from chairlift.checkpoints.files.folder import MODEL_HELP, check_model
from chairlift.cli.config_options import engine_options
from chairlift.cli.progress import Progress
from chairlift.cli.report import Json, Result, report

if TYPE_CHECKING:
    from chairlift.api.figures import Run
    from chairlift.engine.engine import Engine

SIZES: Final = (1, 2, 4, 8, 16, 32, 64, 128)
"""Texts of a full batch in the first part."""
SHORTEST: Final = 8
LONGEST: Final = 256
"""Tokens of a text, drawn evenly."""
WARM_UP: Final = 16
"""Texts before a measurement."""

_BAR: Final = 34


@dataclass(frozen=True, slots=True)
class Side:
    """A policy of the second part."""

    policy: Batching
    size: int
    window_s: float | None = None
    """The longest wait for a full batch."""

    @property
    def name(self) -> str:
        """Return what the picture calls it."""
        if self.size == 1:
            return "one at a time"
        window = f", {self.window_s or 0:g} s" if self.policy is Batching.DYNAMIC else ""
        return f"{self.policy}, {self.size}{window}"

    @property
    def settings(self) -> dict[str, Any]:
        """Return the settings of an engine."""
        found: dict[str, Any] = {"batching": self.policy, "max_num_seqs": self.size}
        if self.window_s is not None:
            is_static = self.policy is Batching.STATIC
            found["batch_timeout_s" if is_static else "batch_window_s"] = self.window_s
        return found


SIDES: Final = (
    Side(Batching.CONTINUOUS, 1),
    Side(Batching.CONTINUOUS, 128),
    Side(Batching.DYNAMIC, 128, 0.001),
    Side(Batching.DYNAMIC, 128, 0.005),
    Side(Batching.DYNAMIC, 128, 0.02),
    Side(Batching.DYNAMIC, 8, 0.02),
    Side(Batching.STATIC, 32, 5.0),
)


@engine_options(
    only=frozenset({"dtype", "quantize", "num_threads", "max_num_batched_tokens"}),
)
def embeddings(
    model: Annotated[str, typer.Argument(help=MODEL_HELP)] = "minilm",
    *,
    texts: Annotated[int, typer.Option(help="Of each measurement.", min=1)] = 512,
    load: Annotated[
        float,
        typer.Option(help="Share of the highest rate at which texts arrive.", min=0.01, max=1.0),
    ] = 0.7,
    seed: Annotated[int, typer.Option(help="Of lengths, tokens and arrivals.")] = 0,
    as_json: Json = False,
    settings: dict[str, Any],
) -> None:
    """Measure vectors by batching policy, window and size of a batch.

    First all texts at once, by the size of a batch. Then texts that arrive one by one, at a share
    of the highest rate: how long each takes from its arrival, by policy. Texts are random tokens,
    8 to 256 of them; tokenizing is not measured.
    """
    check_model(model)
    progress = Progress("texts", (len(SIZES) + len(SIDES)) * texts, as_json=as_json)
    bench = _Bench(model, settings, texts, seed, progress)
    with progress:
        bulk = [_printed(result, as_json=as_json) for result in bench.bulk()]
        rate = load * max(float(result["texts_per_s"]) for result in bulk)
        loaded = [_printed(result, as_json=as_json) for result in bench.arriving(rate)]
    if as_json:
        return
    _table(bulk, f"{model}: {texts} texts at once")
    title = f"{model}: {rate:.1f} texts arrive per second, {load:.0%} of the highest rate"
    _table(loaded, title)
    typer.echo("\n".join(["", *picture(loaded)]))


def _table(results: list[Result], title: str) -> None:
    """Print what differs between results of one part."""
    alike = ("part", "arrivals_per_s")
    rows = [{name: value for name, value in r.items() if name not in alike} for r in results]
    report(rows, title=title, as_json=False, by_row=True)


def _printed(result: Result, *, as_json: bool) -> Result:
    if as_json:
        report([result], title="", as_json=True)
    return result


class _Bench:
    """The measurements, all on the same texts."""

    def __init__(
        self, model: str, settings: dict[str, Any], num: int, seed: int, progress: Progress
    ) -> None:
        self._model = model
        self._settings = settings
        self._num = num
        self._seed = seed
        self._progress = progress

    def bulk(self) -> Iterator[Result]:
        """Yield the rates of all texts at once."""
        for size in SIZES:
            run = self._run({"batching": Batching.STATIC, "max_num_seqs": size}, None)
            yield {
                "part": "at once",
                "size": size,
                "texts_per_s": run.num_requests / run.seconds,
                "tokens_per_s": run.num_tokens / run.seconds,
            }

    def arriving(self, rate: float) -> Iterator[Result]:
        """Yield the latencies of texts that arrive at a rate."""
        import numpy as np

        for side in SIDES:
            run = self._run(side.settings, rate)
            p50, p99 = np.percentile(run.latency_s, (50, 99)).tolist()
            yield {
                "part": "arriving",
                "policy": side.name,
                "arrivals_per_s": rate,
                "texts_per_s": run.num_requests / run.seconds,
                "texts_per_step": run.num_rows / max(1, run.num_steps),
                "latency_p50_s": p50,
                "latency_p99_s": p99,
            }

    def _run(self, settings: dict[str, Any], rate: float | None) -> "Run":
        from chairlift.api.types import Pooling
        from chairlift.bench.drive import drive
        from chairlift.engine.engine import Engine

        settings = {"max_queued_requests": max(1024, self._num), **self._settings, **settings}
        with Engine(self._model, **settings) as engine:
            if not engine.pooling.poolings or engine.pooling.labels:
                message = f"model: expected one that gives vectors, got {self._model!r}"
                raise ConfigError(message)
            drive(engine, self._texts(engine, WARM_UP, None), pooling=Pooling())
            work = self._texts(engine, self._num, rate)
            run = drive(engine, work, self._progress.tick, pooling=Pooling())
        del engine
        gc.collect()
        return run

    def _texts(self, engine: "Engine", num: int, rate: float | None) -> list[Item]:
        import numpy as np

        random = np.random.default_rng(self._seed)
        longest = min(LONGEST, engine.pooling.max_length)
        lengths = random.integers(min(SHORTEST, longest), longest + 1, num)
        ids = [random.integers(0, engine.tokenizer.vocab_size, length) for length in lengths]
        gaps = random.exponential(1 / rate, num) if rate else np.zeros(num)
        arrivals = np.cumsum(gaps)
        return [
            Item(text.tolist(), 1, float(arrival))
            for text, arrival in zip(ids, arrivals, strict=True)
        ]


def picture(results: Sequence[Result]) -> list[str]:
    """Return a line per policy: its latencies from p50 to p99 on one logarithmic scale."""
    pairs = [(float(r["latency_p50_s"]), float(r["latency_p99_s"])) for r in results]
    low, high = min(p50 for p50, _ in pairs), max(p99 for _, p99 in pairs)
    # Whole decades would leave most of the width empty.
    scale = (_BAR - 1) / max(math.log(high / low), 1e-9)
    width = max(len(str(result["policy"])) for result in results)
    lines = ["latency, half of the texts to 99 % of them (logarithmic):"]
    for result, (p50, p99) in zip(results, pairs, strict=True):
        first, last = (round(scale * math.log(value / low)) for value in (p50, p99))
        bar = " " * first + "█" + "─" * (last - first)
        shown = " to ".join(format_value("latency_s", value) for value in (p50, p99))
        lines.append(f"  {result['policy']!s:<{width}}  {bar:<{_BAR}}  {shown}")
    return lines
