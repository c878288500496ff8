"""Where references of a JSON schema point: JSON pointers and anchors."""

from collections.abc import Iterator

from chairlift.api.errors import echo
from chairlift.text.constraints.schema_numbers import SchemaError


def place_of(root: object, pointer: str, path: str) -> object:
    """Return what a JSON pointer names.

    Args:
        root: The whole schema.
        pointer: Empty for the whole schema.
        path: Path of the reference, for messages.

    Raises:
        SchemaError: There is nothing.
    """
    value = root
    for segment in pointer.split("/")[1:]:
        name = plain(segment)
        if isinstance(value, dict) and name in value:
            value = value[name]
        elif isinstance(value, list) and name.isdecimal() and int(name[:9]) < len(value):
            value = value[int(name[:9])]
        else:
            raise no_place(path, pointer)
    return value


def anchors(root: object) -> Iterator[tuple[str, str]]:
    """Yield the anchors of a schema with their pointers."""
    waiting: list[tuple[str, object]] = [("", root)]
    while waiting:
        pointer, value = waiting.pop()
        if isinstance(value, dict):
            anchor = value.get("$anchor")
            if isinstance(anchor, str):
                yield anchor, pointer
            for key, part in value.items():
                if key not in ("const", "enum", "default", "examples", "example"):
                    escaped = key.replace("~", "~0").replace("/", "~1")
                    waiting.append((f"{pointer}/{escaped}", part))
        elif isinstance(value, list):
            waiting.extend((f"{pointer}/{i}", part) for i, part in enumerate(value))


def plain(segment: str) -> str:
    """Return the name that a segment of a pointer stands for."""
    return segment.replace("~1", "/").replace("~0", "~")


def no_place(path: str, reference: str) -> SchemaError:
    """Return the error of a reference to nothing."""
    return SchemaError(f"{path}: the schema has no {echo(reference)}")
