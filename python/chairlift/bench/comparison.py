"""Runs the policies of a comparison on the same work, and keeps what each run was."""

import gc
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from chairlift.api.figures import summarize
from chairlift.bench.policies import SCHEMA, Case, Grid, Policy
from chairlift.bench.slo import Bound, num_good
from chairlift.bench.sources import Offered, Source, check_context
from chairlift.bench.steps import NUM_RECORDS, kv_points, step_curve
from chairlift.bench.workload import Item, padded
from chairlift.timeline.lists import to_lists

if TYPE_CHECKING:
    from chairlift.bench.measured import Measured
    from chairlift.engine.engine import Engine

Run = dict[str, Any]
"""A finished run; its fields are listed in docs/benchmark-policies.md."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What is compared on which work."""

    model: str
    source: Source
    grid: Grid
    offered: Offered = field(default_factory=Offered)
    bounds: Sequence[Bound] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of every engine."""

    @property
    def num_requests(self) -> int:
        """Requests of all runs."""
        return len(self.grid) * self.source.num_requests

    def key(self, case: Case) -> str:
        """Return the name of a run, which differs where anything that decides it does."""
        from importlib.metadata import version

        common = {
            "chairlift": version("chairlift"),
            "model": self.model,
            "engine": dict(self.settings),
            "work": self.source.settings,
            "burstiness": self.offered.burstiness,
            "concurrency": self.offered.concurrency,
            "slo": [(bound.figure, bound.max_s) for bound in self.bounds],
        }
        return case.key(common)

    def finished(self, known: Mapping[str, Run]) -> list[Run]:
        """Return the runs of the comparison that are known, in order."""
        keys = [self.key(case) for cases in self.grid.engines() for case in cases]
        return [known[key] for key in keys if key in known]

    def runs(
        self,
        known: Mapping[str, Run],
        on_end: Callable[[], None] = lambda: None,
        on_run: Callable[[Run], None] = lambda _run: None,
    ) -> Iterator[Run]:
        """Yield all runs, the known ones as they are.

        Args:
            known: Finished runs by key.
            on_end: Called when a request has ended.
            on_run: Called with each new run.

        Raises:
            ConfigError: A setting is wrong, or a request is too long for the model.
            ChairliftError: A request failed.
        """
        for cases in self.grid.engines():
            if any(self.key(case) not in known for case in cases):
                yield from self._engine_runs(cases, known, on_end, on_run)
            else:
                yield from (known[self.key(case)] for case in cases)

    def _engine_runs(
        self,
        cases: list[Case],
        known: Mapping[str, Run],
        on_end: Callable[[], None],
        on_run: Callable[[Run], None],
    ) -> Iterator[Run]:
        from chairlift.bench.drive import warm_up

        with self._engine(cases[0].policy, cases[0].rows) as engine:
            warm_up(engine)
            for case in cases:
                run = known.get(self.key(case))
                if run is None:
                    run = self._measure(engine, case, on_end)
                    on_run(run)
                yield run
        # Two KV caches at once may not fit.
        del engine
        gc.collect()

    def _engine(self, policy: Policy, rows: int) -> "Engine":
        from chairlift.engine.engine import Engine

        # No tokenizer yet: a text has at most as many tokens as bytes, and other lengths do not
        # depend on the vocabulary.
        items = self.source.draw(2, lambda text: list(text.encode()))
        lengths = [len(item.prompt_token_ids) for item in items]
        budget = int(self.settings.get("max_num_batched_tokens") or 0)
        same = policy.settings(rows, max(lengths), budget)
        room = {"max_queued_requests": max(1024, self.source.num_requests)}
        return Engine(self.model, **{**room, **self.settings, **same})

    def _measure(self, engine: "Engine", case: Case, on_end: Callable[[], None]) -> Run:
        from chairlift.bench.drive import measure
        from chairlift.bench.environment import environment_of
        from chairlift.bench.machine_load import OtherWork

        work = self._work(engine, case)
        # What an earlier run left in the prefix cache would be no work of this one.
        engine.restart()
        others = OtherWork()
        measured = measure(
            engine,
            work,
            on_end,
            concurrency=self.offered.concurrency,
            num_records=NUM_RECORDS if case.repeat == 1 else 0,
        )
        rows = case.policy.rows(case.rows)
        first = measured.first_steps(case.policy.name, rows)
        figures = summarize(
            case.policy.name,
            measured.run(),
            max_num_seqs=rows,
            max_num_batched_tokens=engine.config.max_num_batched_tokens,
        )
        environment = environment_of(engine)
        return {
            "schema": SCHEMA,
            "kind": "run",
            "key": self.key(case),
            "policy": case.policy.name,
            "rows": rows,
            "rate_per_s": _offered(case.rate_per_s),
            "repeat": case.repeat,
            **{name: value for name, value in figures.items() if name != "policy"},
            **self._goodput(measured),
            "mean_rows": float(figures["slot_utilization"]) * rows,
            "num_steps": len(measured.steps),
            "other_cores": others.cores(),
            "cores": environment["cores"],
            "concurrency": self.offered.concurrency,
            "burstiness": self.offered.burstiness,
            "work": self.source.settings,
            "lengths": _lengths(work),
            "environment": environment,
            "step_curve": step_curve(measured.steps),
            "kv": kv_points(measured.steps),
            "timeline": None if first is None else to_lists(first),
        }

    def _work(self, engine: "Engine", case: Case) -> list[Item]:
        encode = engine.tokenizer.encode
        arrivals = self.offered.at(case.rate_per_s)
        work = self.source.items(engine.tokenizer.vocab_size, encode, arrivals)
        work = padded(work) if case.policy.is_padded else work
        check_context(work, engine.max_context_len, self.source)
        return work

    def _goodput(self, measured: "Measured") -> dict[str, float]:
        if not self.bounds:
            return {}
        good = num_good(measured.requests, self.bounds)
        return {"good_requests": good, "goodput_per_s": good / measured.seconds}


def _offered(rate_per_s: float | None) -> float | str | None:
    """Return a rate as JSON has it: `max` is all at once, null the work's own times."""
    return "max" if rate_per_s == math.inf else rate_per_s


def _lengths(work: Sequence[Item]) -> dict[str, float]:
    """Return what is said of the lengths, in tokens; padding is no part of an answer."""
    import numpy as np

    prompts = [len(item.prompt_token_ids) for item in work]
    answers = [item.max_tokens - item.num_padding for item in work]
    found = {}
    for name, lengths in (("prompt", prompts), ("output", answers)):
        found[f"{name}_mean"] = float(np.mean(lengths))
        found[f"{name}_cv"] = float(np.std(lengths) / np.mean(lengths))
        found[f"{name}_p50"], found[f"{name}_p99"] = np.percentile(lengths, (50, 99)).tolist()
    return found
