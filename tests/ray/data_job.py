"""A job on a Ray of its own, in a process that a test can kill.

python -m tests.ray.data_job IN OUT
"""

import json
import sys

import ray
from chairlift.ray.data import answer_file

ATTEMPTS = 4


def start_ray():
    """Start Ray, which gives itself 30 s for that: a busy machine takes longer at times."""
    for left in range(ATTEMPTS)[::-1]:
        try:
            ray.init(
                address="local",
                num_cpus=2,
                include_dashboard=False,
                log_to_driver=False,
                logging_level="ERROR",
            )
        except Exception:
            ray.shutdown()
            if not left:
                raise
        else:
            return


def main():
    """Answer a file with two engines of the demo model, and print the outcome."""
    source, output = sys.argv[1:]
    start_ray()
    outcome = answer_file(
        source, output, engines=2, settings={"max_num_seqs": 32}, actor_options={"num_cpus": 0.5}
    )
    sys.stdout.write(json.dumps(outcome) + "\n")


if __name__ == "__main__":
    main()
