"""Finds a model by its name, without torch, so that a wrong name is refused at once."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from chairlift.errors import ModelError
from chairlift.model.fields import one_line

DEMO: Final = "demo"
"""The name of the model that ships with the package."""

Result = TypeVar("Result")

_CONFIG: Final = "config.json"
_HUB_TIMEOUT_S: Final = 10.0
_MOST_SHOWN: Final = 300
_HUB_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def resolve_model(name: str) -> Path:
    """Return the folder of a model.

    Args:
        name: `demo` (ships with the package), a local folder, or a Hugging Face id `owner/name`,
            which is downloaded unless it is cached; `HF_HUB_OFFLINE` is honoured.

    Raises:
        ModelError: There is no such folder, or the download fails.
    """
    return _local_folder(name) or _download(name)


def check_model(name: str) -> None:
    """Look for a model without loading it; for one that is not here, ask the hub once.

    Raises:
        ModelError: There is no such model, or its folder has no config.json.
    """
    folder = _local_folder(name)
    if folder is None:
        _from_hub(name, lambda: _check_hub(name))
    elif not (folder / _CONFIG).is_file():
        message = f"{folder}: not a model folder: it has no {_CONFIG}"
        raise ModelError(message)


def _check_hub(hub_id: str) -> None:
    from huggingface_hub import get_hf_file_metadata, hf_hub_url, try_to_load_from_cache

    if not isinstance(try_to_load_from_cache(hub_id, _CONFIG), str):
        get_hf_file_metadata(hf_hub_url(hub_id, _CONFIG), timeout=_HUB_TIMEOUT_S)


def _local_folder(name: str) -> Path | None:
    """None is a Hugging Face id."""
    if name == DEMO:
        folder = Path(__file__).parents[1] / "demo" / "model"
        if not folder.is_dir():
            message = f"{folder}: the demo model is not part of this installation"
            raise ModelError(message)
        return folder
    try:
        folder = Path(name).expanduser()
        is_folder, exists = bool(name) and folder.is_dir(), folder.exists()
    except (OSError, RuntimeError, ValueError):
        # The name is too long or no name of a file, or that of a user without a home.
        is_folder, exists = False, True
    if is_folder:
        return folder
    if exists or not _HUB_ID.fullmatch(name):
        shown = one_line(name, _MOST_SHOWN)
        message = f"{shown}: not a model folder, nor a Hugging Face id (owner/name), nor {DEMO}"
        raise ModelError(message)
    return None


def _download(hub_id: str) -> Path:
    from huggingface_hub import snapshot_download

    def download() -> str:
        return snapshot_download(
            hub_id,
            allow_patterns=["*.json", "*.jinja", "*.safetensors"],
            # Copies of the same weights in other formats.
            ignore_patterns=["*/*", "consolidated*"],
        )

    return Path(_from_hub(hub_id, download))


def _from_hub(hub_id: str, fetch: Callable[[], Result]) -> Result:
    try:
        return fetch()
    except Exception as error:  # the hub's errors and those of its transport share no base
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        message = f"{hub_id}: no such folder here, and the Hugging Face hub gives: {reason}"
        raise ModelError(message) from error
