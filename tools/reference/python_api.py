"""The page of the Python API: signatures and docstrings of what `__all__` names."""

import importlib
import inspect
import re
from collections.abc import Iterator
from typing import Final

from tools.reference.markdown import page

MODULES: Final = ("chairlift.client", "chairlift")


def python_page() -> str:
    """Return the page: the client, then the engine in one's own process."""
    return page("Python", *(part for name in MODULES for part in _module(name)))


def _module(name: str) -> Iterator[str]:
    module = importlib.import_module(name)
    yield f"## `{name}`"
    yield _text(module)
    for member in module.__all__:
        value = getattr(module, member)
        yield f"### `{name}.{member}`"
        yield _signature(member, value)
        yield _text(value)
        if inspect.isclass(value):
            yield from _methods(value)


def _methods(owner: type) -> Iterator[str]:
    for name, method in inspect.getmembers(owner, inspect.isfunction):
        if not name.startswith("_") and method.__module__.startswith("chairlift"):
            yield f"#### `{owner.__name__}.{name}`"
            yield _signature(name, method)
            yield _text(method)


def _signature(name: str, value: object) -> str:
    if not callable(value):
        return ""
    try:
        signature = inspect.signature(value)
    except ValueError:
        return ""
    text = re.sub(r"\*<class '([^']+)'>", r"Unpack[\1]", f"{name}{signature}")
    # Types without their modules, which are not part of the API.
    text = re.sub(r"\b[a-z_0-9]+(?:\.[a-z_0-9]+)*\.(?=[A-Z])", "", text)
    # A default that is a function or an object, whose address is another in each run.
    text = re.sub(r"<[^<>]* at 0x[0-9a-f]+>", "...", text)
    return f"```python\n{text}\n```"


def _text(value: object) -> str:
    text = inspect.getdoc(value) or ""
    if value is None or text.startswith(f"{getattr(value, '__name__', '')}("):
        return ""
    lines = [_line(line) for line in text.splitlines()]
    return "\n".join(lines)


def _line(line: str) -> str:
    """Return a line of a docstring: a heading of Google's style is bold, an entry a list's."""
    if line in ("Args:", "Raises:", "Returns:", "Yields:", "Attributes:"):
        return f"\n**{line[:-1]}**\n"
    if line.startswith("    ") and not line.startswith("     ") and ": " in line:
        name, _, rest = line.strip().partition(": ")
        if name.replace("_", "").isalnum():
            return f"- `{name}`: {rest}"
    return line
