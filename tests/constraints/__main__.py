"""`make check-constraints`: answers to 1,000 random schemas by `demo` and `smollm2`.

python -m tests.constraints [MODEL]... [--count N]
"""

import argparse
import sys
import time

from chairlift.engine.engine import Engine

from tests.constraints.answers import answer_schemas

MAX_LENGTH_SHARE = 0.05


def main() -> int:
    """Print a line per model; return 1 if an answer is not valid or too many are cut."""
    parser = argparse.ArgumentParser()
    parser.add_argument("models", nargs="*", default=["demo", "smollm2"])
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    has_failed = False
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


if __name__ == "__main__":
    sys.exit(main())
