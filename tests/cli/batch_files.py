"""Input and output of `chairlift batch`."""

import json
import random

from tests.engine.tiny_model import WORDS


def write(path, lines):
    """Write lines: objects, or bytes as they are."""
    encoded = (x if isinstance(x, bytes) else json.dumps(x).encode() for x in lines)
    path.write_bytes(b"".join(line + b"\n" for line in encoded))
    return path


def read(path):
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def prompts(num, max_tokens=12, seed=0):
    """Return plain lines of very different lengths."""
    draw = random.Random(seed)
    return [
        {
            "id": f"p{number}",
            "prompt": " ".join(draw.choices(WORDS, k=draw.choice((1, 3, 20)))),
            "max_tokens": draw.randint(1, max_tokens),
            "temperature": 0,
        }
        for number in range(num)
    ]


def openai(custom_id, url, **body):
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}
