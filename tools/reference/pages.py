"""The pages that need no tool beside Python, by their names."""

from collections.abc import Callable, Mapping
from typing import Final

from tools.reference.command_line import command_line_page
from tools.reference.errors import errors_page
from tools.reference.metrics import metrics_page
from tools.reference.python_api import python_page
from tools.reference.settings import settings_page

PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "command-line.md": command_line_page,
    "settings.md": settings_page,
    "errors.md": errors_page,
    "metrics.md": metrics_page,
    "python.md": python_page,
}
