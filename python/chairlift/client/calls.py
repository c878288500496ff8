"""Methods of both clients, described once.

`Client` blocks and `AsyncClient` awaits; nothing else differs. So a method that needs one answer is
a function that builds a `Call`, and `@unary` makes it a method of both clients: of `Client` it
returns the answer, of `AsyncClient` an awaitable of it.
"""

import functools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

P = ParamSpec("P")
R = TypeVar("R")


class Blocking:
    """Mark a class whose methods block and return the result."""

    __slots__ = ()


class Awaiting:
    """Mark a class whose methods return an awaitable of the result."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Call(Generic[R]):
    """A method of a stub, its request, and what the caller gets of its response."""

    method: Any
    request: Any
    result: Callable[[Any], R]


class unary(Generic[P, R]):
    """Make a function that builds a `Call` a method of both clients."""

    def __init__(self, build: Callable[Concatenate[Any, P], Call[R]]) -> None:
        self._build = build
        functools.update_wrapper(self, build)  # type: ignore[arg-type]

    @overload
    def __get__(self, client: Blocking, owner: type | None = None) -> Callable[P, R]: ...
    @overload
    def __get__(self, client: Awaiting, owner: type | None = None) -> Callable[P, Awaitable[R]]: ...
    @overload
    def __get__(self, client: None, owner: type) -> Self: ...

    def __get__(self, client: Any, owner: type | None = None) -> Any:
        if client is None:
            return self

        @functools.wraps(self._build)
        def method(*args: P.args, **options: P.kwargs) -> Any:
            return client._call(self._build(client, *args, **options))

        return method
