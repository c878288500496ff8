"""`python -m tests.cuda.nvrtc [ARCHITECTURE ...]` compiles every kernel, with no GPU.

It prints what each instantiation needs of one.
"""

import os
import re
import sys
from concurrent.futures import ProcessPoolExecutor
from itertools import product

from chairlift.kernels.cuda.build import ARCHITECTURES, compile_kernel

from tests.cuda.instantiations import every_instance


def _report(job: tuple[str, str]) -> str:
    architecture, name = job
    code, _, log = compile_kernel(name, architecture)
    registers, spilled = (
        re.findall(pattern, log) for pattern in (r"Used (\d+)", r"(\d+) bytes spill")
    )
    figures = f"{registers[0]:>4} registers {spilled[0]:>5} bytes spilled {len(code):>7} bytes"
    return f"{architecture:<8} {figures}  {name}"


if __name__ == "__main__":
    jobs = list(product(sys.argv[1:] or ARCHITECTURES, every_instance()))
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for line in pool.map(_report, jobs):
            print(line, flush=True)
