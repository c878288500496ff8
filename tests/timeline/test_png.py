"""The figure as pixels."""

import builtins
import io
from types import ModuleType

import matplotlib.image
import numpy as np
import pytest
from chairlift.api.errors import ConfigError
from chairlift.timeline.colours import COLOURS, shade
from chairlift.timeline.figure import draw_figure
from chairlift.timeline.png import render_png
from chairlift.timeline.shapes import DARK

from tests.timeline.steps import example


def test_the_figure_has_its_size_and_its_colours() -> None:
    figure = draw_figure([example()], "one & $two$")
    pixels = matplotlib.image.imread(io.BytesIO(render_png(figure)))
    height, width = pixels.shape[:2]
    assert (width, height) == (2 * int(figure.width), pytest.approx(2 * figure.height, abs=1))
    found = {tuple(p) for p in np.rint(pixels[..., :3] * 255).astype(int).reshape(-1, 3).tolist()}
    for colour in (*COLOURS[:3], shade(COLOURS[0], 0.72)):
        assert tuple(int(colour[i : i + 2], 16) for i in (1, 3, 5)) in found


def test_a_dark_page_has_its_own_colours() -> None:
    figure = draw_figure([example()], "one")
    corner = matplotlib.image.imread(io.BytesIO(render_png(figure, DARK)))[0, 0, :3]
    assert np.rint(corner * 255).tolist() == [0x0D, 0x11, 0x17]


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *arguments: object, **options: object) -> ModuleType:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match=r"needs matplotlib: pip install 'chairlift\[plot\]'"):
        render_png(draw_figure([example()], "one"))
