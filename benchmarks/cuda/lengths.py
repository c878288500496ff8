"""Lengths of prompts and answers of the whole workload."""

import random


def workload(num_requests: int, seed: int = 0) -> list[tuple[int, int]]:
    """Lengths of prompts and answers, each uniform from 100 to 1,024."""
    draw = random.Random(seed)
    return [(draw.randint(100, 1024), draw.randint(100, 1024)) for _ in range(num_requests)]
