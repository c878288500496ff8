"""The chat templates of a model folder."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chairlift.api.errors import ModelError
from chairlift.checkpoints.files.fields import MAX_JSON_BYTES, optional_json, read_file


def read_chat_templates(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Read the templates by name; files go before what `tokenizer_config.json` holds.

    Args:
        folder: Folder of the model.
        config: The contents of `tokenizer_config.json`.

    Raises:
        ModelError: A template is no text.
    """
    files = {
        path.stem: path for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))
    }
    if (path := folder / "chat_template.jinja").exists():
        files["default"] = path
    if files:
        return {name: _read_text(path) for name, path in files.items()}
    template, path = config.get("chat_template"), folder / "tokenizer_config.json"
    if template is None:
        # Checkpoints with images have a file of their own.
        path = folder / "chat_template.json"
        template = optional_json(path).get("chat_template")
    match template:
        case None:
            return {}
        case str():
            return {"default": template}
        case list() if all(map(_is_named_template, template)):
            return {entry["name"]: entry["template"] for entry in template}
        case dict() if all(isinstance(text, str) for text in template.values()):
            return dict(template)
    message = f"{path}: chat_template: expected a string or a list of named templates"
    raise ModelError(message)


def _is_named_template(entry: object) -> bool:
    return (
        isinstance(entry, dict)
        and isinstance(entry.get("name"), str)
        and isinstance(entry.get("template"), str)
    )


def _read_text(path: Path) -> str:
    try:
        return read_file(path, MAX_JSON_BYTES).decode()
    except UnicodeDecodeError as error:
        message = f"{path}: not a chat template: {error}"
        raise ModelError(message) from error
