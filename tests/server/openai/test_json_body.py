"""Bodies are decoded in time that is linear in their length, and judged as a parser judges them."""

import gc
import json
import random
import time
from contextlib import suppress

import pytest
from chairlift.server.http import json_body
from chairlift.server.http.errors import HttpError
from chairlift.server.http.json_body import decode

HOSTILE = {
    "quotes behind brackets": lambda n: b"[" * 65 + b'"' + b'\\"' * (n // 2),
    "strings that do not end": lambda n: b"[" * 65 + b'"a' * (n // 2),
    "backslashes": lambda n: b"[" * 65 + b'"' + b"\\" * n,
    "odd backslashes": lambda n: b"[" * 65 + b'\\\\\\"' * (n // 4),
    "quotes": lambda n: b"[" * 65 + b'"' * n,
    "brackets": lambda n: b"[" * n,
    "closing brackets": lambda n: b"[" * 65 + b"]" * n,
    "brackets in strings": lambda n: b"[" * 65 + b'"[",' * (n // 4),
    "deep groups": lambda n: b"[" + (b"[" * 62 + b"]" * 62 + b",") * (n // 125) + b"1]",
    "empty objects": lambda n: b"[" + b"{}," * (n // 3) + b"1]",
    "escapes": lambda n: b"[" * 65 + b'"' + b"\\u0022" * (n // 6),
    "digits": lambda n: b"[" + b"9" * n + b"]",
    "long numbers": lambda n: b"[" + (b"9" * 4300 + b",") * (n // 4301) + b"1]",
    "a long fraction": lambda n: b"[9007199254740993." + b"0" * n + b"1]",
    "exponents": lambda n: b"[1e" + b"0" * n + b"1]",
    "names": lambda n: b"{" + b'"":1,' * (n // 5) + b'"a":1}',
    "spaces": lambda n: b"[" + b" " * n,
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_no_body_takes_longer_than_its_length(kind, unburdened_collector):
    """2 MiB take some 50 ms; what was quadratic took minutes for 100 KB."""
    for power in range(12, 22):
        body = HOSTILE[kind](2**power)
        began = time.thread_time()
        with suppress(HttpError):
            decode(body)
        assert time.thread_time() - began < 1, 2**power


@pytest.fixture
def unburdened_collector():
    """Keep the collector from all that other tests of this process have left."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def depth_of(value):
    if isinstance(value, dict):
        value = list(value.values())
    return 1 + max(map(depth_of, value), default=0) if isinstance(value, list) else 0


def test_the_depth_is_that_of_the_value():
    """Random values whose texts are full of brackets, quotes and backslashes."""
    draw = random.Random(5)

    def text():
        return "".join(draw.choices('[]{}"\\é\n', k=draw.randrange(12)))

    def value(depth):
        if depth == 0:
            return draw.choice([text(), 1, None])
        items = [value(depth - 1), *(value(draw.randrange(min(depth, 3))) for _ in range(2))]
        draw.shuffle(items)
        return items if draw.random() < 0.5 else {text() + str(i): v for i, v in enumerate(items)}

    for depth in [*range(60, 70)] * 3:
        drawn = value(depth)
        assert depth_of(drawn) == depth
        body = json.dumps(drawn, ensure_ascii=draw.random() < 0.5).encode()
        if depth <= json_body.MAX_DEPTH:
            assert decode(body) == drawn
        else:
            with pytest.raises(HttpError, match="levels"):
                decode(body)


def test_lists_and_objects_are_counted_outside_of_texts():
    most = json_body.MAX_PARTS
    assert len(decode(b"[" + b"[]," * (most - 2) + b"{}]")) == most - 1
    with pytest.raises(HttpError, match=f"at most {most} lists and objects"):
        decode(b"[" + b"[]," * (most - 1) + b"{}]")
    assert decode(b'["' + b"[" * 2 * most + b'"]') == ["[" * 2 * most]
