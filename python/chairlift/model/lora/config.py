"""The settings of an adapter, from the `adapter_config.json` that PEFT writes.

A field that would change the result and is not supported is an error that names it: an adapter
either computes what PEFT computes or does not load.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from chairlift.api.errors import ModelError
from chairlift.checkpoints.files.fields import Fields, Opener, read_json

FILE: Final = "adapter_config.json"

_WITHOUT_EFFECT: Final = frozenset(
    {
        "auto_mapping",
        "base_model_name_or_path",
        "eva_config",
        "inference_mode",
        "lora_dropout",
        "megatron_core",
        "peft_version",
        "qalora_group_size",
        "revision",
    }
)
"""Fields that say how an adapter was made, or that only others give a meaning."""
_READ: Final = frozenset(
    {
        "bias",
        "exclude_modules",
        "init_lora_weights",
        "layers_pattern",
        "layers_to_transform",
        "lora_alpha",
        "peft_type",
        "r",
        "target_modules",
        "task_type",
        "use_rslora",
    }
)
_OF_THE_BASE: Final = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Ways to begin a training that change the weights of the model, too."""
_MAX_TARGETS: Final = 1024


MAX_JSON_BYTES: Final = 2**20
"""Bytes of the configuration, and of the header of the tensors, at most. An adapter is loaded while
others are served, and parsing holds the interpreter's lock; 1 MiB names thousands of tensors."""


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """The fields that count."""

    path: Path
    rank: int
    scale: float
    """What the product of both matrices is multiplied by."""
    targets: tuple[str, ...] | None
    """Ends of the names of the layers that it changes; None where a pattern says so."""
    is_partial: bool
    """It may leave out layers of these names."""

    @classmethod
    def load(cls, folder: Path, max_rank: int, opener: Opener = os.open) -> "AdapterConfig":
        """Read the file of an adapter's folder.

        Args:
            folder: A folder that PEFT has saved.
            max_rank: The server's limit.
            opener: Opens the file.

        Raises:
            ModelError: It is missing or malformed, or a field asks for something unsupported.
        """
        path = folder / FILE
        fields = Fields(path, read_json(path, MAX_JSON_BYTES, opener))
        _refuse_unsupported(fields)
        rank = fields.integer("r")
        if rank > max_rank:
            fields.fail("r", f"at most {max_rank} (max_adapter_rank)")
        alpha = fields.number("lora_alpha", default=8.0)
        divisor = rank**0.5 if fields.flag("use_rslora") else rank
        is_partial = bool(
            fields.values.get("layers_to_transform") is not None
            or fields.values.get("exclude_modules")
        )
        return cls(path, rank, alpha / divisor, _targets(fields), is_partial)


def _refuse_unsupported(fields: Fields) -> None:
    """Raise ModelError for the first field that asks for something else than plain LoRA."""
    values = fields.values
    if values.get("peft_type") != "LORA":
        fields.fail("peft_type", "LORA")
    if values.get("task_type") not in (None, "CAUSAL_LM"):
        fields.fail("task_type", "CAUSAL_LM")
    if values.get("bias") not in (None, "none"):
        fields.fail("bias", "none, since biases of adapters are not supported")
    start = values.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(_OF_THE_BASE):
        fields.fail("init_lora_weights", "an adapter that leaves the model's weights as they are")
    for name in sorted(values):
        if name not in _READ | _WITHOUT_EFFECT and values[name]:
            fields.fail(name, "nothing, since it is not supported")


def _targets(fields: Fields) -> tuple[str, ...] | None:
    names: Any = fields.values.get("target_modules")
    if isinstance(names, str) and names:
        # A pattern of another's is not run; the tensors say which layers it means.
        return None
    is_list = isinstance(names, list) and 0 < len(names) <= _MAX_TARGETS
    if not is_list or not all(isinstance(name, str) and name for name in names):
        fields.fail("target_modules", f"a list of 1 to {_MAX_TARGETS} names")
    return tuple(names)


def check_folder(folder: Path) -> None:
    """Check that there is a folder.

    Raises:
        ModelError: There is no folder, or it cannot be opened.
    """
    try:
        is_folder = folder.is_dir()
    except OSError as error:
        message = f"{folder}: {(error.strerror or 'cannot be opened').lower()}"
        raise ModelError(message) from error
    if not is_folder:
        message = f"{folder}: expected a folder with {FILE} and adapter_model.safetensors"
        raise ModelError(message)
