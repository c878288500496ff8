"""The figures of a report as files for pages and slides: SVG, and PNG for light and dark ones."""

from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from chairlift.api.errors import ConfigError
from chairlift.bench.report.figures import Figure
from chairlift.timeline.png import render_png
from chairlift.timeline.shapes import DARK, LIGHT
from chairlift.timeline.svg import svg_of


def check_plots(folder: Path) -> None:
    """Make the folder, before anything is measured.

    Raises:
        ConfigError: It cannot be made, or matplotlib is not installed.
    """
    if find_spec("matplotlib") is None:
        message = "plots: .png files need matplotlib: pip install 'chairlift[plot]'"
        raise ConfigError(message)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _not_written(folder, error) from None


def write_plots(folder: Path, figures: Iterable[Figure]) -> None:
    """Write each figure as NAME.svg, light or dark by its reader, NAME.png and NAME-dark.png.

    Raises:
        ConfigError: A file cannot be written.
    """
    for figure in figures:
        files = {
            ".svg": svg_of(figure.drawing).encode(),
            ".png": render_png(figure.drawing, LIGHT),
            "-dark.png": render_png(figure.drawing, DARK),
        }
        for ending, content in files.items():
            path = folder / f"{figure.name}{ending}"
            try:
                path.write_bytes(content)
            except OSError as error:
                raise _not_written(path, error) from None


def _not_written(path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"plots: cannot write {path}: {error.strerror}")
