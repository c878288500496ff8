"""Docstrings are sentences, name the shapes of tensors, and say what is raised."""

import ast
import functools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.syntax import forget, nodes_of, parsed

pytestmark = pytest.mark.always

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "python" / "chairlift"
SOURCES = sorted(p for p in PACKAGE.rglob("*.py") if not {"stubs", "v1"} & set(p.parts))

SHAPE = re.compile(r"`\[[^`]*\]`|\b(shape|scalar)s?\b")
"""`[num_tokens, head_dim]`, or words for any shape."""
POINTER = re.compile(r"\b[Ss]ee `([\w.]+)`")
SILENT = {"AssertionError", "NotImplementedError", "StopIteration"}
"""Errors that are no part of what a function promises."""


@pytest.fixture(scope="module", autouse=True)
def trees() -> Iterator[None]:
    """Free what all tests of the file share."""
    yield
    for found in (functions, bases, docstrings):
        found.cache_clear()
    forget()


class Function(NamedTuple):
    """A public function or method."""

    path: Path
    owner: ast.ClassDef | None
    node: ast.FunctionDef | ast.AsyncFunctionDef

    @property
    def docstring(self) -> str:
        return ast.get_docstring(self.node) or ""

    @property
    def name(self) -> str:
        return f"{self.owner.name}.{self.node.name}" if self.owner else self.node.name

    @property
    def place(self) -> str:
        return f"{self.path}:{self.node.lineno} {self.name}"


def functions_of(module: ast.Module, path: Path) -> Iterator[Function]:
    """Public functions of a module, and public methods of its public classes."""
    classes = [node for node in ast.walk(module) if isinstance(node, ast.ClassDef)]
    for scope in (module, *(node for node in classes if not node.name.startswith("_"))):
        for node in scope.body:
            is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            if is_function and not node.name.startswith("_"):
                owner = scope if isinstance(scope, ast.ClassDef) else None
                yield Function(path, owner, node)


@functools.cache
def functions() -> list[Function]:
    return [f for path in SOURCES for f in functions_of(parsed(path), path)]


@functools.cache
def bases() -> dict[str, list[str]]:
    """The bases of each class, by their names."""
    classes = (node for path in SOURCES for node in nodes_of(path))
    return {
        node.name: [ast.unparse(base) for base in node.bases]
        for node in classes
        if isinstance(node, ast.ClassDef)
    }


@functools.cache
def docstrings() -> dict[str, str]:
    """Docstrings of functions, and of methods by `Class.method`."""
    return {function.name: function.docstring for function in functions()}


def fragments_of(nodes: Iterable[ast.AST]) -> Iterator[int]:
    """Lines of docstrings, or of their entries, that begin as the end of another sentence."""
    for node in nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            for number, line in enumerate(str(node.value.value).splitlines()):
                is_first = number == 0 and re.match(r"(Of|As)\b", line)
                if is_first or re.match(r" {4,}\*{0,2}\w+: (Of|As)\b", line):
                    yield node.lineno + number


def test_no_docstring_begins_with_a_preposition() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in SOURCES
        for line in fragments_of(nodes_of(path))
    ]
    assert not found, found


def test_a_docstring_that_is_a_fragment_is_found() -> None:
    text = '''
def f(x):
    """Return x.

    Args:
        x: Of the model.
    """
    return x


LIMIT = 3
"""As `f`."""
FINE = 4
"""Officers of a ship."""
'''
    assert sorted(fragments_of(ast.walk(ast.parse(text)))) == [6, 12]


def has_tensors(function: Function) -> bool:
    """Whether an argument or the result is a tensor."""
    arguments = function.node.args
    given = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    rest = [argument for argument in (arguments.vararg, arguments.kwarg) if argument is not None]
    annotations = [argument.annotation for argument in (*given, *rest)]
    return any(
        isinstance(node, ast.Name) and node.id == "Tensor"
        for annotation in (*annotations, function.node.returns)
        if annotation is not None
        for node in ast.walk(annotation)
    )


def ancestors(name: str) -> Iterator[str]:
    """The bases of a class of the package, and theirs."""
    for base in bases().get(name, []):
        yield base
        yield from ancestors(base)


def contracts_of(function: Function) -> Iterator[str]:
    """Docstrings of the methods that a function overrides, and of what its docstring points to."""
    owner, name = function.owner, function.node.name
    for base in () if owner is None else ancestors(owner.name):
        yield docstrings().get(f"{base}.{name}", "")
    for target in POINTER.findall(function.docstring):
        yield docstrings().get(target, "")
        yield docstrings().get(f"{target}.{name}", "")


def names_shapes(function: Function) -> bool:
    return any(SHAPE.search(text) for text in (function.docstring, *contracts_of(function)))


def test_public_functions_of_tensors_name_shapes() -> None:
    """An implementation may leave them to the interface, or point to it: `see Kernels`."""
    with_tensors = [function for function in functions() if has_tensors(function)]
    assert len(with_tensors) > 100
    found = [function.place for function in with_tensors if not names_shapes(function)]
    assert not found, found


def raised_by(function: Function) -> Iterator[str]:
    """What a function raises itself, and not by functions inside of it."""
    nodes: list[ast.AST] = [*function.node.body]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            continue
        if isinstance(node, ast.Raise) and node.exc is not None:
            yield ast.unparse(node.exc).partition("(")[0]
        nodes += ast.iter_child_nodes(node)


def is_help_or_rpc(function: Function) -> bool:
    """Whether a docstring is the help of a command, or the method is one of a gRPC service."""
    is_rpc = function.owner is not None and function.owner.name.endswith("Servicer")
    return is_rpc or "typer." in ast.unparse(function.node.args)


def hides_errors(function: Function) -> bool:
    raised = {*raised_by(function)} - SILENT
    return bool(raised) and "Raises:" not in function.docstring and not is_help_or_rpc(function)


def test_public_functions_say_what_they_raise() -> None:
    found = [function.place for function in functions() if hides_errors(function)]
    assert not found, found


def test_a_function_without_shapes_or_errors_is_found() -> None:
    text = '''
def bare(x: Tensor) -> None:
    """Take x."""
    raise ValueError

def full(x: Tensor | None) -> None:
    """Take `x` `[T, H]`.

    Raises:
        ValueError: Always.
    """
    raise ValueError

def outer() -> None:
    """Make a function."""
    def inner() -> None:
        raise ValueError

class CpuBackend(AttentionBackend):
    def write(self, key: Tensor) -> None: ...
    def other(self, key: Tensor) -> None: ...

def linear(weight: Tensor) -> None:
    """Pack; see `Kernels`."""

def unknown(weight: Tensor) -> None:
    """Pack; see `Kernels`."""
'''
    found = [*functions_of(ast.parse(text), ROOT)]
    bad = {f.name for f in found if has_tensors(f) and not names_shapes(f)}
    assert bad == {"bare", "CpuBackend.other", "unknown"}
    assert {f.name for f in found if hides_errors(f)} == {"bare"}
