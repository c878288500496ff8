"""`make check-constraints`: grammars of 3,000 random schemas, and answers to 1,000 by two models.

python -m tests.constraints [MODEL]... [--count N] [--first SEED]
"""

import argparse
import sys
import time

from chairlift.engine.engine import Engine

from tests.constraints.acceptance import Judge
from tests.constraints.answers import answer_schemas
from tests.constraints.differential import judge_schemas

JUDGED = 3
"""Schemas whose grammars are judged, for each that a model answers."""
MAX_LENGTH_SHARE = 0.05


def main() -> int:
    """Print a line per model; return 1 if an answer is not valid or too many are cut."""
    parser = argparse.ArgumentParser()
    parser.add_argument("models", nargs="*", default=["demo", "smollm2"])
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    has_failed = judge(range(options.first, options.first + JUDGED * options.count))
    for model in options.models:
        began = time.monotonic()
        engine = Engine(model, max_num_seqs=32, queue_timeout_s=600)
        seeds = range(options.first, options.first + options.count)
        tally = answer_schemas(engine, seeds)
        engine.close()
        share = tally.reasons["length"] / options.count
        sys.stdout.write(
            f"{model}: {options.count} schemas, {dict(tally.reasons)}, {len(tally.wrong)} wrong,"
            f" {share:.1%} cut by length, {tally.num_tokens} tokens,"
            f" {time.monotonic() - began:.0f} s\n"
        )
        for seed, text in tally.wrong[:10]:
            sys.stdout.write(f"  schema {seed}: {text!r}\n")
        others = sum(tally.reasons.values()) - tally.reasons["stop"] - tally.reasons["length"]
        has_failed |= bool(tally.wrong) or share > MAX_LENGTH_SHARE or others > 0
    return int(has_failed)


def judge(seeds: range) -> bool:
    """Print what grammars of random schemas accept; return whether one is wrong."""
    began = time.monotonic()
    verdict = judge_schemas(Judge(), seeds)
    wrong = {
        "accepted and not valid": verdict.invalid,
        "valid and not accepted": verdict.missed,
        "dead ends": verdict.dead_ends,
    }
    counts = ", ".join(f"{len(found)} {name}" for name, found in wrong.items())
    sys.stdout.write(
        f"grammars: {len(seeds)} schemas, {verdict.num_compiled} compiled,"
        f" {verdict.num_judged} values, {verdict.num_walks} answers, {counts},"
        f" {time.monotonic() - began:.0f} s\n"
    )
    for words, number in verdict.refused.most_common():
        sys.stdout.write(f"  refused {number}: {words}\n")
    for name, found in wrong.items():
        for seed, _, text in found[:10]:
            sys.stdout.write(f"  schema {seed}, {name}: {text!r}\n")
    return any(wrong.values())


if __name__ == "__main__":
    sys.exit(main())
