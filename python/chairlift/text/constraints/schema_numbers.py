"""Numbers of JSON schemas: those that the parser of constraints keeps exactly, and no others.

The parser reads a number as a float of 64 bits, and writes bounds of integers with 63. A number
that it would round is refused by name.
"""

import math
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from chairlift.api.errors import echo

MAX_EXACT: Final = 2**53
"""Up to here every integer is a float."""
_MAX_INT64: Final = 2**63 - 1
_MIN_INT64: Final = -(2**63)
_MIN_EXACT_INT64: Final = -(2**63 - 1024)
"""The least float whose opposite is an int64."""
_MAX_ALONE: Final = 10**18
"""Bound of an integer that has no other bound."""
MAX_MULTIPLE: Final = 10_000
"""The largest `multipleOf`, its decimal point left out: the parser has a state per remainder."""

_MIN_POSITIVE: Final = 1e-30
"""Takes the place of a bound `0 < x`, where the parser needs an inclusive one."""

MAX_COUNT: Final = 1_000_000
"""The largest minimum length of a string, an array or an object."""
_ENDLESS: Final = 2**31
"""No answer is so long."""

Number = int | Decimal
LOWER: Final = ("minimum", "exclusiveMinimum")
UPPER: Final = ("maximum", "exclusiveMaximum")


class SchemaError(ValueError):
    """A schema that is not supported, or none; the message begins with the place in it."""


def parse_int(text: str) -> Number:
    """Read an integer of JSON, however long."""
    return int(text) if len(text) < 400 else Decimal(text)


def parse_float(text: str) -> Decimal:
    """Read a number of JSON that has a fraction or an exponent, with all its digits.

    Raises:
        SchemaError: Its exponent is too large for any number.
    """
    try:
        return Decimal(text)
    except InvalidOperation:
        message = f"not JSON: the number {echo(text)} is out of range"
        raise SchemaError(message) from None


def number(value: object, path: str) -> int | float:
    """Return a number as the parser takes it: an integer where it is one.

    Raises:
        SchemaError: It is none, or no float is equal to it.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise wrong(path, "a number", value)
    exact = Decimal(repr(value) if isinstance(value, float) else value)
    try:
        if exact == 0:
            return 0
        if exact.adjusted() > 18:
            raise _inexact(path, exact)
        if exact == exact.to_integral_value():
            return int(exact)
        nearest = float(exact)
    except (InvalidOperation, OverflowError):
        raise _inexact(path, exact) from None
    if Decimal(repr(nearest)) != exact:
        raise _inexact(path, exact)
    return nearest


def literal(value: object, path: str) -> object:
    """Return a value of `const` or `enum`, its numbers checked.

    Raises:
        SchemaError: It has a number that the parser would round, or text that is none.
    """
    if isinstance(value, str):
        return _text(value, path)
    if isinstance(value, list):
        return [literal(item, f"{path}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, dict):
        return {
            _text(key, path): literal(item, f"{path}.{short(key)}") for key, item in value.items()
        }
    if value is None or isinstance(value, bool):
        return value
    exact = number(value, path)
    if isinstance(exact, int) and not _is_exact_integer(exact):
        raise _inexact(path, exact)
    return exact


def bounds(schema: dict[str, Any], path: str, *, is_integer: bool) -> dict[str, int | float]:
    """Return the bounds of a number as the parser takes them.

    Args:
        schema: Has the keywords.
        path: Path of the schema, for messages.
        is_integer: Its type admits integers and no other numbers.

    Raises:
        SchemaError: The parser would round one.
    """
    found: dict[str, int | float] = {}
    for inclusive, exclusive in (LOWER, UPPER):
        exclusive_bound = schema.get(exclusive)
        if isinstance(exclusive_bound, bool):
            # The form of draft 4.
            inclusive_bound = schema.get(inclusive)
            exclusive_bound, inclusive_bound = (
                (inclusive_bound, None) if exclusive_bound else (None, inclusive_bound)
            )
        else:
            inclusive_bound = schema.get(inclusive)
        if inclusive_bound is not None:
            found[inclusive] = number(inclusive_bound, f"{path}.{inclusive}")
        if exclusive_bound is not None:
            found[exclusive] = number(exclusive_bound, f"{path}.{exclusive}")
    if is_integer:
        return _integer_bounds(found, path)
    for name, bound in found.items():
        if abs(bound) > MAX_EXACT:
            place = f"{path}.{name}"
            raise _inexact(place, bound)
    return _exclude_integer_bound(found)


def _exclude_integer_bound(found: dict[str, int | float]) -> dict[str, int | float]:
    """Make an exclusive integer bound inclusive one float further, where the parser would admit it.

    The parser writes the bound itself into its expression if the other bound begins with the same
    integer, as in `0 < x <= 0.5`. Numbers between the bound and the next float are lost.
    """
    low, is_above = max(
        (found.get("minimum", -math.inf), False), (found.get("exclusiveMinimum", -math.inf), True)
    )
    high, is_inclusive = min(
        (found.get("maximum", math.inf), True), (found.get("exclusiveMaximum", math.inf), False)
    )
    if is_above and 0 <= low < high < low + 1 and low == math.trunc(low):
        return {"minimum": _next_float(low, high)} | _without(found, LOWER)
    if not is_inclusive and high - 1 < low < high <= 0 and high == math.trunc(high):
        return {"maximum": -_next_float(-high, -low)} | _without(found, UPPER)
    return found


def _next_float(bound: float, highest: float) -> float:
    """Return the float above a bound; above 0 one that is written with few digits."""
    return math.nextafter(bound, math.inf) if bound else min(_MIN_POSITIVE, highest)


def _without(found: dict[str, int | float], names: tuple[str, str]) -> dict[str, int | float]:
    return {name: bound for name, bound in found.items() if name not in names}


def _integer_bounds(found: dict[str, int | float], path: str) -> dict[str, int | float]:
    low, high = _lowest(found), _highest(found)
    minimum = None if low is None else low[1]
    maximum = None if high is None else high[1]
    for bound, other in ((low, maximum), (high, minimum)):
        if bound is None:
            continue
        name, value = bound
        is_alone = other is None and abs(value) >= _MAX_ALONE
        if is_alone or not (_is_exact_integer(value) or value in (_MAX_INT64, _MIN_INT64)):
            place = f"{path}.{name}"
            raise _inexact(place, value)
    if minimum == _MIN_INT64:
        minimum = _MIN_EXACT_INT64
    exact: dict[str, int | float] = {}
    if minimum is not None:
        exact["minimum"] = minimum
    if maximum is not None:
        exact["maximum"] = maximum
    if maximum == _MIN_INT64:
        place = f"{path}.maximum"
        raise _inexact(place, maximum)
    return exact


def _lowest(found: dict[str, int | float]) -> tuple[str, int] | None:
    bounds = []
    if "minimum" in found:
        bounds.append(("minimum", math.ceil(found["minimum"])))
    if "exclusiveMinimum" in found:
        bounds.append(("exclusiveMinimum", math.floor(found["exclusiveMinimum"]) + 1))
    return max(bounds, key=lambda bound: bound[1], default=None)


def _highest(found: dict[str, int | float]) -> tuple[str, int] | None:
    bounds = []
    if "maximum" in found:
        bounds.append(("maximum", math.floor(found["maximum"])))
    if "exclusiveMaximum" in found:
        bounds.append(("exclusiveMaximum", math.ceil(found["exclusiveMaximum"]) - 1))
    return min(bounds, key=lambda bound: bound[1], default=None)


def multiple(value: object, path: str) -> int | float:
    """Return the value of `multipleOf`.

    Raises:
        SchemaError: It is not above 0, has too many digits, or the parser would round it.
    """
    exact = number(value, path)
    if exact <= 0:
        raise wrong(path, "a number above 0", exact)
    decimal = Decimal(repr(exact))
    num_decimals = max(-int(decimal.normalize().as_tuple().exponent), 0)
    if decimal.scaleb(num_decimals) > MAX_MULTIPLE or num_decimals > 9:
        message = f"{path}: expected at most {MAX_MULTIPLE} without the decimal point, got {exact}"
        raise SchemaError(message)
    # As the parser finds its digits: by steps that may round.
    digits = float(exact)
    for _ in range(num_decimals):
        digits *= 10
    if digits != decimal.scaleb(num_decimals):
        message = f"{path}: expected a number whose decimals the parser finds, got {exact}"
        raise SchemaError(message)
    return exact


def count(value: object, path: str) -> int | None:
    """Return a length; None is one that no answer exceeds.

    Raises:
        SchemaError: It is no length, or the least one is too large.
    """
    is_maximum = path.rpartition(".")[2].startswith("max")
    try:
        exact = number(value, path)
    except SchemaError:
        if is_maximum and isinstance(value, int | Decimal) and value > 0:
            return None
        raise
    if not isinstance(exact, int) or exact < 0:
        raise wrong(path, "a number of 0 or more without a fraction", exact)
    if is_maximum:
        return None if exact >= _ENDLESS else exact
    if exact > MAX_COUNT:
        message = f"{path}: expected at most {MAX_COUNT}, got {exact}"
        raise SchemaError(message)
    return exact


def wrong(path: str, expected: str, got: object) -> SchemaError:
    """Return the error of a value that is not what was expected."""
    text = str(got) if isinstance(got, int | float | Decimal) else type(got).__name__
    return SchemaError(f"{path}: expected {expected}, got {echo(text)}")


def short(key: str) -> str:
    """Return a key as a path quotes it."""
    return echo(key[:64])


def _text(value: str, path: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        message = f"{path}: expected text, got a lone surrogate"
        raise SchemaError(message) from None
    return value


def _is_exact_integer(value: int) -> bool:
    return abs(value) <= MAX_EXACT or (abs(value) < _MAX_INT64 and int(float(value)) == value)


def _inexact(path: str, value: object) -> SchemaError:
    message = (
        f"{path}: expected a number that a float of 64 bits holds exactly (every integer up to"
        f" 2**53), got {echo(str(value))}"
    )
    return SchemaError(message)
