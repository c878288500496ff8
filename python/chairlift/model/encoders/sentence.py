"""How hidden states become a vector: the files of sentence-transformers beside a model.

`modules.json` names the modules in their order: the transformer, a pooling, perhaps dense layers,
perhaps a normalization. A module of another kind is refused by name.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from chairlift.errors import ModelError
from chairlift.model.fields import MOST_JSON_BYTES, Fields, one_line, optional_json, read_file

POOLINGS: Final = ("cls", "mean", "max", "last")

_MODES: Final = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "last",
    "pooling_mode_mean_sqrt_len_tokens": "",
    "pooling_mode_weightedmean_tokens": "",
}
_ACTIVATIONS: Final = {
    "torch.nn.modules.linear.Identity": "",
    "torch.nn.modules.activation.Tanh": "tanh",
}


@dataclass(frozen=True, slots=True)
class DenseSpec:
    """A linear layer after the pooling."""

    folder: Path
    in_features: int
    out_features: int
    bias: bool
    activation: str
    """`tanh`, or none."""


@dataclass(frozen=True, slots=True)
class SentenceConfig:
    """What makes a vector of hidden states."""

    pooling: str
    """One of `POOLINGS`."""
    normalize: bool
    """Whether vectors have length 1 unless a request says otherwise."""
    dense: tuple[DenseSpec, ...] = ()
    max_length: int | None = None
    """Tokens of a text that the authors compute; None is all that the model takes."""
    prompts: Mapping[str, str] = field(default_factory=dict)
    """Texts that go before an input, by name."""
    default_prompt: str | None = None
    """The name of the one that goes before an input unless a request names another."""


def load_sentence_config(folder: Path, default_pooling: str = "mean") -> SentenceConfig | None:
    """Read the files of sentence-transformers; None where a folder has none.

    Args:
        folder: Of the model.
        default_pooling: Where `modules.json` names no pooling.

    Raises:
        ModelError: A file is malformed, or names something unsupported.
    """
    path = folder / "modules.json"
    if not path.is_file():
        return None
    pooling, dense, normalize = default_pooling, [], False
    for kind, part in _modules(path):
        match kind:
            case "Transformer":
                continue
            case "Pooling":
                pooling = _pooling(folder / part / "config.json")
            case "Dense":
                dense.append(_dense(folder / part))
            case "Normalize":
                normalize = True
            case _:
                known = "Transformer, Pooling, Dense or Normalize"
                message = f"{path}: type: expected {known}, got {one_line(kind)}"
                raise ModelError(message)
    general = Fields(
        folder / "config_sentence_transformers.json",
        optional_json(folder / "config_sentence_transformers.json"),
    )
    sizes = Fields(
        folder / "sentence_bert_config.json", optional_json(folder / "sentence_bert_config.json")
    )
    prompts = _prompts(general)
    name = general.values.get("default_prompt_name")
    if name is not None and name not in prompts:
        general.fail("default_prompt_name", "the name of a prompt")
    return SentenceConfig(
        pooling=pooling,
        normalize=normalize,
        dense=tuple(dense),
        max_length=sizes.optional_integer("max_seq_length"),
        prompts=prompts,
        default_prompt=name,
    )


def _modules(path: Path) -> list[tuple[str, str]]:
    """Return the kind and folder of each module."""
    import json

    try:
        modules = json.loads(read_file(path, MOST_JSON_BYTES))
    except ValueError as error:
        message = f"{path}: not JSON: {one_line(str(error))}"
        raise ModelError(message) from error
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        message = f"{path}: expected a list of objects"
        raise ModelError(message)
    found = []
    for module in modules:
        fields = Fields(path, module)
        kind, part = module.get("type"), module.get("path")
        if not isinstance(kind, str):
            fields.fail("type", "a text")
        if not isinstance(part, str) or Path(part).is_absolute() or ".." in Path(part).parts:
            fields.fail("path", "a folder inside the model's")
        found.append((kind.rpartition(".")[2], part))
    return found


def _pooling(path: Path) -> str:
    fields = Fields(path, optional_json(path))
    named = fields.values.get("pooling_mode")
    if named is not None:
        names = {"lasttoken": "last", **{mode: mode for mode in POOLINGS}}
        return names[fields.choice("pooling_mode", names, default="mean")]
    chosen = [name for name in _MODES if fields.flag(name)]
    if len(chosen) != 1 or not _MODES[chosen[0]]:
        expected = "exactly one of cls_token, mean_tokens, max_tokens and lasttoken"
        message = f"{path}: pooling_mode: expected {expected}, got {', '.join(chosen) or 'none'}"
        raise ModelError(message)
    return _MODES[chosen[0]]


def _dense(folder: Path) -> DenseSpec:
    fields = Fields(folder / "config.json", optional_json(folder / "config.json"))
    activation = fields.choice(
        "activation_function", _ACTIVATIONS, default="torch.nn.modules.activation.Tanh"
    )
    return DenseSpec(
        folder=folder,
        in_features=fields.integer("in_features"),
        out_features=fields.integer("out_features"),
        bias=fields.values.get("bias") is not False,
        activation=_ACTIVATIONS[activation],
    )


def _prompts(fields: Fields) -> dict[str, str]:
    prompts: Any = fields.values.get("prompts") or {}
    is_valid = isinstance(prompts, dict) and all(isinstance(text, str) for text in prompts.values())
    if not is_valid:
        fields.fail("prompts", "an object from names to texts")
    return dict(prompts)
