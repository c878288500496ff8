"""`chairlift replay --replicas`: the figures of a fleet."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from chairlift.api.config import Batching, checked
from chairlift.api.errors import ConfigError
from chairlift.api.figures import TIMES, summarize
from chairlift.cli.config_sources import option_name
from chairlift.cli.report import SparseResult
from chairlift.replay.fleet_options import (
    MAX_REPLICAS,
    OF_AUTOSCALER,
    OF_FAILURES,
    OF_ROLES,
    OF_STARTS,
    WITHOUT_ROLES,
    FleetOptions,
    num_replicas,
)

if TYPE_CHECKING:
    from chairlift.replay.fleet import FleetReplayed
    from chairlift.replay.format import StepTime
    from chairlift.replay.options import ReplayOptions
    from chairlift.replay.trace import Trace

OF_ROLES_ALONE: Final = (
    "roles",
    "transferred_tokens",
    "whole_prompts",
    "partial_prompts",
    "local_prompts",
)
"""Figures that a table shows with roles alone."""

_OF_STEPS: Final = ("step_fixed_s", "step_per_token_s", "step_per_context_token_s")


def fleet_of(given: Mapping[str, Any], settings: Mapping[str, Any]) -> FleetOptions | None:
    """Return the fleet that the options describe; None without `--replicas` and `--roles`.

    Args:
        given: The options of a fleet that were given.
        settings: The settings that replace the trace's.

    Raises:
        ConfigError: An option has no meaning beside the others; the message names it.
    """
    if "roles" in given:
        given = _with_roles(given)
    elif "replicas" not in given:
        _refuse(given, given, "--replicas")
        return None
    else:
        _refuse(given, OF_ROLES, "--roles")
    if "failures_per_hour" not in given:
        _refuse(given, OF_FAILURES, "--failures-per-hour")
    if "min_replicas" not in given:
        _refuse(given, OF_AUTOSCALER, "--min-replicas")
        if "failures_per_hour" not in given:
            _refuse(given, OF_STARTS, "--failures-per-hour or --min-replicas")
    beside = {"blocks_per_replica": ("kv_cache_memory",), "infinitely_fast": _OF_STEPS}
    for name, others in beside.items():
        for other in others:
            if given.get(name) and other in settings:
                message = f"--{option_name(other)}: expected none with --{option_name(name)}"
                raise ConfigError(message)
    fleet = checked(FleetOptions, **given)
    if fleet.min_replicas is not None and fleet.min_replicas > fleet.replicas:
        limit = f"at most {fleet.replicas} (replicas)"
        message = f"min_replicas: expected {limit}, got {fleet.min_replicas}"
        raise ConfigError(message)
    return fleet


def _with_roles(given: Mapping[str, Any]) -> Mapping[str, Any]:
    for name in WITHOUT_ROLES:
        if given.get(name):
            message = f"--{option_name(name)}: expected none with --roles"
            raise ConfigError(message)
    checked(FleetOptions, **{"replicas": 1, **given})
    count = num_replicas(given["roles"])
    if count > MAX_REPLICAS:
        message = f"--roles: expected at most {MAX_REPLICAS} replicas, got {count}"
        raise ConfigError(message)
    if given.get("replicas", count) != count:
        message = f"--replicas: expected {count} or none with --roles, got {given['replicas']}"
        raise ConfigError(message)
    return {**given, "replicas": count}


def _refuse(given: Mapping[str, Any], names: Iterable[str], needed: str) -> None:
    for name in names:
        if name in given:
            message = f"--{option_name(name)}: expected {needed} with it"
            raise ConfigError(message)


@dataclass(frozen=True, slots=True)
class FleetRuns:
    """Runs of one trace over one fleet."""

    trace: "Trace"
    options: "ReplayOptions"
    """Settings that replace the trace's."""
    step_time: "StepTime"
    fleet: FleetOptions
    seed: int
    """The seed of all draws."""

    def results(
        self,
        policies: list[Batching] | list[None],
        notes: list[str],
        figures: list[SparseResult],
    ) -> Iterator[SparseResult]:
        """Run the trace for each policy; yield the figures that a single replica has, too.

        Args:
            policies: The policies of the schedulers; None is the trace's.
            notes: Gets a line for each policy with requests that have no answer.
            figures: Gets the figures of the fleet, for each policy.
        """
        from chairlift.replay.fleet import INFINITELY_FAST, fleet_settings, replay_fleet
        from chairlift.replay.settings import settings_of

        is_fast = self.fleet.infinitely_fast
        step_time = INFINITELY_FAST if is_fast else self.step_time
        num_requests = len(self.trace.requests)
        has_queue = self.options.max_queued_requests is not None
        for batching in policies:
            settings = settings_of(self.trace.header, self.options, batching)
            settings = fleet_settings(settings, self.fleet, num_requests, has_queue=has_queue)
            policy = settings.batching.value
            done = replay_fleet(self.trace, settings, step_time, self.fleet, seed=self.seed)
            row: SparseResult = summarize(
                policy,
                done.run,
                max_num_seqs=settings.max_num_seqs,
                max_num_batched_tokens=settings.max_num_batched_tokens,
            )
            row = _without_times(row) if is_fast else row
            yield row
            figures.append(self._figures(policy, done, row))
            if done.unanswered:
                reasons = ", ".join(f"{count} {why}" for why, count in done.unanswered.items())
                notes.append(f"{policy}: not answered: {reasons}")

    def _figures(self, policy: str, done: "FleetReplayed", row: SparseResult) -> SparseResult:
        tokens = done.replica_tokens[self.fleet.num_prefill :]
        mean = float(tokens.mean())
        return {
            "policy": policy,
            "routing": self.fleet.routing.value,
            "replicas": self.fleet.replicas,
            "roles": self.fleet.roles,
            "seed": self.seed,
            "requests": done.run.num_requests,
            "unanswered": sum(done.unanswered.values()),
            "hit_rate": done.hit_rate,
            "hit_rate_of_ceiling": done.hit_rate / done.ceiling if done.ceiling else None,
            "load_imbalance": float(tokens.max()) / mean if mean else None,
            "ttft_p50_s": row["ttft_p50_s"],
            "ttft_p99_s": row["ttft_p99_s"],
            "losses": done.num_losses,
            "resent": done.num_resent,
            "max_replicas": done.max_replicas,
            "replica_hours": done.replica_s / 3600,
            "transferred_tokens": done.num_transferred_tokens,
            "whole_prompts": done.num_whole,
            "partial_prompts": done.num_partial,
            "local_prompts": done.num_local,
        }


def _without_times(row: SparseResult) -> SparseResult:
    times = tuple(f"{name}_" for name in TIMES)
    return {key: None if key.startswith(times) else value for key, value in row.items()}
