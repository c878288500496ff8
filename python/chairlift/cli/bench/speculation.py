"""`chairlift bench speculation`: what drafts gain, by workload and batch."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from chairlift.checkpoints.files.folder import MODEL_HELP, check_model
from chairlift.cli.config_options import ADAPTER_SETTINGS, engine_options
from chairlift.cli.progress import Progress
from chairlift.cli.report import Json, SparseResult, report

if TYPE_CHECKING:
    from chairlift.bench.speculation import Comparison
    from chairlift.engine.engine import Engine
    from chairlift.engine.prepare.prepared import Prepared

BATCHES: Final = (1, 8)
SHARES: Final = (0.0, 0.5, 1.0)
NUM_DRAFTS: Final = (1, 2, 4, 8)


@engine_options(
    without=ADAPTER_SETTINGS
    | {"prefix_cache", "default_max_tokens", "queue_timeout_s", "time_limit_s", "drafts"}
)
def speculation(
    model: Annotated[str, typer.Argument(help=MODEL_HELP)] = "demo",
    *,
    proposer: Annotated[
        bool,
        typer.Option(
            "--proposer", help="Drafts of which 0, 50 or 100 % are right, instead of workloads."
        ),
    ] = False,
    max_tokens: Annotated[int, typer.Option(help="Of an answer.", min=2)] = 128,
    pairs: Annotated[int, typer.Option(help="Runs with and without drafts.", min=1)] = 3,
    as_json: Json = False,
    settings: dict[str, Any],
) -> None:
    """Compare the speed with drafts and without on code edits, quotes of the prompt and free text.

    acceptance: share of the drafts that were right. tokens per step: what a request gains in one.
    gain: median over the pairs of runs, which alternate. Answers that repeat themselves are rows of
    their own.
    """
    check_model(model)
    progress = Progress("runs", as_json=as_json)
    measure = _measure_proposer if proposer else _measure_workloads
    results = measure(model, settings, max_tokens, pairs, progress)
    report(results, title=f"{model}, drafts", as_json=as_json, by_row=True, progress=progress)


def _engines(model: str, settings: dict[str, Any]) -> "tuple[Engine, Engine]":
    from chairlift.engine.engine import Engine

    common = {"kv_cache_memory": 2**28, **settings, "prefix_cache": False}
    plain = {name: value for name, value in common.items() if not name.startswith("draft")}
    return Engine(model, **plain, drafts="off"), Engine(model, **common, drafts="lookup")


def _measure_workloads(
    model: str, settings: dict[str, Any], max_tokens: int, pairs: int, progress: Progress
) -> Iterator[SparseResult]:
    from chairlift.bench.speculation import compare, repeats_itself, request_of, run
    from chairlift.bench.speculation_texts import WORKLOADS

    plain, drafting = _engines(model, settings)
    groups: dict[str, list[Prepared]] = {}
    for workload in WORKLOADS:
        for place in range(len(workload.prompts)):
            request = request_of(plain, workload, place, max_tokens)
            (answer,) = run(plain, [request]).answers
            run(drafting, [request])
            name = "repeat themselves" if repeats_itself(answer) else workload.name
            groups.setdefault(name, []).append(request)
    batches = [batch for batch in BATCHES if batch <= plain.config.max_num_seqs]
    progress.expect(2 * pairs * len(groups) * len(batches))
    for name, requests in groups.items():
        for batch in batches:
            found = compare(plain, drafting, requests, batch=batch, pairs=pairs, tick=progress.tick)
            row: dict[str, str | int | float | None] = {"workload": name, "batch": batch}
            yield row | _figures(found)


def _measure_proposer(
    model: str, settings: dict[str, Any], max_tokens: int, pairs: int, progress: Progress
) -> Iterator[SparseResult]:
    from chairlift.bench.speculation import compare, proposer, request_of, run
    from chairlift.bench.speculation_texts import FREE_TEXT

    plain, drafting = _engines(model, settings)
    places = range(len(FREE_TEXT.prompts))
    requests = [request_of(plain, FREE_TEXT, place, max_tokens) for place in places]
    answers = run(plain, requests).answers
    batches = [batch for batch in BATCHES if batch <= plain.config.max_num_seqs]
    progress.expect(2 * pairs * len(batches) * len(SHARES) * len(NUM_DRAFTS))
    for batch in batches:
        # One request at a time would take as long as all others together.
        part = requests[: max(2, batch)]
        for share in SHARES:
            for num_drafts in NUM_DRAFTS:
                propose = proposer(answers, num_drafts, share)
                found = compare(
                    plain,
                    drafting,
                    part,
                    batch=batch,
                    pairs=pairs,
                    tick=progress.tick,
                    propose=propose,
                )
                row: dict[str, str | int | float | None] = {
                    "right": f"{share:.0%}",
                    "batch": batch,
                    "proposed": num_drafts,
                }
                yield row | _figures(found)


def _figures(found: "Comparison") -> dict[str, str | int | float | None]:
    drafts = found.with_drafts
    return {
        "requests": found.num_requests,
        "drafts": drafts.num_drafts,
        "acceptance": drafts.acceptance,
        "tokens per step": drafts.tokens_per_draw,
        "without_tokens_per_s": found.without_tokens_per_s,
        "tokens_per_s": found.tokens_per_s,
        "gain": found.gain,
    }
