"""Log lines with fields, as text or as JSON: one line per record, whatever a client sends.

    2026-01-31T09:30:00.250Z INFO chairlift.server.requests: request ended handle=Xk3 tenant=ann ..
    {"time": "2026-01-31T09:30:00.250Z", "level": "info", "message": "request ended", ..}

Prompts, answers and tokens are in no record. Names from clients (labels of requests, methods) are
fields, quoted and escaped; only the lines of a traceback begin with a space.
"""

import json
import logging
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

from pydantic import BaseModel, ConfigDict

Value = str | int | float | bool | None

_BARE: Final = re.compile(r"[A-Za-z0-9_./:@+-]+")


class LogFormat(StrEnum):
    """Format of the log."""

    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    """Lowest level that is written."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogConfig(BaseModel):
    """Settings of the log; each is also an option of `chairlift serve`, with this text."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    log_format: LogFormat = LogFormat.TEXT
    """Records on standard error: lines of text, or JSON objects."""
    log_level: LogLevel = LogLevel.INFO
    """Lowest level that is written."""


def fields(**values: Value) -> dict[str, Mapping[str, Value]]:
    """Return the `extra` of a log call: fields for machines. None is left out."""
    return {"fields": {name: value for name, value in values.items() if value is not None}}


def configure(config: LogConfig) -> None:
    """Write records to standard error, unless logging is configured already."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(FORMATTERS[config.log_format]())
    logging.basicConfig(handlers=[handler], level=config.log_level.upper())


class TextFormatter(logging.Formatter):
    """`TIME LEVEL LOGGER: MESSAGE key=value ...`; a traceback follows, indented."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        message = record.getMessage()
        if not message.isprintable():
            message = json.dumps(message)
        pairs = "".join(f" {name}={_shown(value)}" for name, value in _fields(record).items())
        line = f"{_time(record)} {record.levelname} {record.name}: {message}{pairs}"
        return "".join([line, *(f"\n    {text}" for text in _traceback(record).splitlines())])


class JsonFormatter(logging.Formatter):
    """One JSON object: time, level, logger, message, the fields, and the traceback of an error."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the object."""
        traceback = _traceback(record)
        return json.dumps(
            {
                "time": _time(record),
                "level": record.levelname.lower(),
                "logger": record.name,
                "message": record.getMessage(),
                **_fields(record),
                **({"traceback": traceback} if traceback else {}),
            }
        )


FORMATTERS: Final = {LogFormat.TEXT: TextFormatter, LogFormat.JSON: JsonFormatter}


def _fields(record: logging.LogRecord) -> Mapping[str, Value]:
    values: Mapping[str, Value] = getattr(record, "fields", {})
    return {n: round(v, 6) if isinstance(v, float) else v for n, v in values.items()}


def _shown(value: Value) -> str:
    """Return a value as it is if that is unambiguous, else quoted and escaped."""
    text = value if isinstance(value, str) else json.dumps(value)
    return text if _BARE.fullmatch(text) else json.dumps(text)


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"


def _traceback(record: logging.LogRecord) -> str:
    return logging.Formatter().formatException(record.exc_info) if record.exc_info else ""
