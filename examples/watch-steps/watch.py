"""Print a line for each step of a server: which request has which row.

Run `python watch.py [ADDRESS] [--steps N]`.
"""

import argparse
import contextlib
import itertools
import string

from chairlift.client import connect
from chairlift.v1 import server_pb2


def main(address: str, num_steps: int | None) -> None:
    """Watch until so many steps were printed; None is until Ctrl-C."""
    names: dict[str, str] = {}
    letters = itertools.cycle(string.ascii_uppercase)
    with connect(address) as client:
        num_rows = client.server_info().max_num_seqs
        steps = client.watch_steps()
        print(f"{'step':>8}  {' '.join(str(row % 10) for row in range(num_rows))}  waiting")
        for step in itertools.islice(steps, num_steps):
            for row in step.rows:
                if row.handle not in names:
                    names[row.handle] = next(letters)
            print(line(step, names, num_rows), flush=True)


def line(step: server_pb2.Step, names: dict[str, str], num_rows: int) -> str:
    """Return a step as text: a capital for a token, a small letter for a chunk of a prompt."""
    cells = ["."] * num_rows
    for row in step.rows:
        is_prompt = row.work == server_pb2.ROW_WORK_PREFILL
        cells[row.row] = names[row.handle].lower() if is_prompt else names[row.handle]
    return f"{step.step:>8}  {' '.join(cells)}  {step.num_waiting or ''}".rstrip()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address", nargs="?", default="127.0.0.1:50051")
    parser.add_argument("--steps", type=int)
    options = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        main(options.address, options.steps)
