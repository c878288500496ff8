"""Every regular expression of the package takes time that is linear in what it is given.

A pattern that is not linear holds the interpreter's lock for seconds on a text of some kilobytes.
The texts are made of what each pattern itself is made of, repeated, between a beginning and an end
that may keep it from matching. Their lengths double, so that a failure comes early.
"""

import ast
import importlib
import itertools
import re
import time
from pathlib import Path

import chairlift
import pytest

SOURCES = Path(chairlift.__file__).parent
MAX_DELAY_S = 1.0
"""For all texts of a length: a linear pattern takes less than a tenth of it for the longest texts,
a quadratic one minutes."""
LENGTHS = [*range(8, 32, 2), *(2**power for power in range(5, 16))]

FROM_CLIENTS = (
    *("server", "engine", "cli/batch", "core/events.py", "api/chats.py", "api/checks.py"),
    *("api/config.py", "api/constraints.py", "api/errors.py", "api/logs.py", "api/pooled.py"),
)
"""Where texts of clients are."""


def compiled():
    """Name, pattern and the methods that are called on it, of all at the top of modules."""
    for path in sources():
        source = path.read_text()
        if "re.compile" not in source:
            continue
        module = importlib.import_module(".".join(path.relative_to(SOURCES.parent).parts)[:-3])
        for name, value in vars(module).items():
            if isinstance(value, re.Pattern):
                uses = {use for other in sources() for use in uses_of(name, other.read_text())}
                yield f"{module.__name__}.{name}", value, sorted(uses)


def sources():
    """The files that read texts of clients."""
    for place in FROM_CLIENTS:
        path = SOURCES / place
        yield from path.rglob("*.py") if path.is_dir() else [path]


def uses_of(name, source):
    """The methods that a source calls on a pattern."""
    return re.findall(rf"\b{name}\.(\w+)\(", source)


def hostile(pattern, length):
    """Texts of about this length."""
    source = pattern.pattern
    written = source.decode() if isinstance(source, bytes) else source
    found = list(dict.fromkeys(['"', "\\", "a", "1", " ", *written]))[:20]
    for first, second in itertools.product(found, found):
        repeated = (first + second) * (length // 2)
        yield repeated + "\x00"
        yield "\x00" + first + repeated


def check_linear(pattern, uses):
    """Run the methods of a pattern on longer and longer texts."""
    for length, use in itertools.product(LENGTHS, uses):
        began = time.process_time()
        for text in hostile(pattern, length):
            given = text.encode() if isinstance(pattern.pattern, bytes) else text
            if use == "sub":
                pattern.sub(given[:0], given)
            elif use == "finditer":
                list(pattern.finditer(given))
            else:
                getattr(pattern, use)(given)
            assert time.process_time() - began < MAX_DELAY_S, (pattern, use, length, text[:40])


def test_all_patterns_are_linear():
    names = []
    for name, pattern, uses in compiled():
        check_linear(pattern, uses)
        names.append(name)
    assert "chairlift.api.chats._TOOL_NAME" in names
    assert "chairlift.server.http.app._HOST" in names


def test_the_hunt_finds_what_is_not_linear():
    """A scan that begins anew at each quote."""
    pattern = re.compile(r'"(?:[^"\\]|\\.)*+"', re.DOTALL)
    with pytest.raises(AssertionError):
        check_linear(pattern, ["sub"])


def test_patterns_over_texts_of_clients_stand_at_the_top_of_modules():
    """So that the hunt finds them, and none is made of what a client sends."""
    wrong = []
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text())):
            is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            if not is_call or ast.unparse(node.func.value) != "re":
                continue
            if node.func.attr not in ("compile", "escape"):
                wrong.append(f"{path.relative_to(SOURCES)}:{node.lineno}")
    assert wrong == []
