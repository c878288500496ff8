"""The page of settings: what `chairlift serve` takes from flags, environment and files."""

from collections.abc import Iterable
from enum import StrEnum

from chairlift.api.config import EngineConfig
from chairlift.cli.config_options import ENGINE_SETTINGS, SIZES
from chairlift.cli.config_sources import option_name
from chairlift.server.config import ServerConfig
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from tools.reference.markdown import page, table

_LEAD = """
Each setting of `chairlift serve` is an option, an environment variable (`--max-num-seqs` is
`CHAIRLIFT_MAX_NUM_SEQS`), and a key of the TOML file that `--config` names (`max-num-seqs = 4`). An
option goes before a variable, a variable before the file. `chairlift serve --print-config` prints
all settings and where each comes from.
"""


def settings_page() -> str:
    """Return the page: the engine's settings, then the server's."""
    return page(
        "Settings",
        _LEAD,
        "## Engine",
        _table(EngineConfig, ENGINE_SETTINGS),
        "## Server",
        _table(ServerConfig, ServerConfig.model_fields),
    )


def _table(config: type[BaseModel], names: Iterable[str]) -> str:
    fields = config.model_fields
    lines = [_line(name, fields[name]) for name in names if name in fields]
    return table(("Setting", "Default", "Meaning"), lines)


def _line(name: str, field: FieldInfo) -> tuple[str, str, str]:
    key = option_name(name).removeprefix("--")
    return f"`{key}`", _default(name, field), field.description or ""


def _default(name: str, field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True, validated_data={})
    match value:
        case None | () | "":
            return ""
        case StrEnum():
            return f"`{value.value}`"
        case bool():
            return f"`{str(value).lower()}`"
        case int() if name in SIZES and value % 2**20 == 0:
            return f"`{value // 2**20}MiB`"
        case float() if name.endswith("_s"):
            return f"`{value:g}s`"
        case _:
            return f"`{value}`"
