"""The interactive figure of docs/gains.md: one file of HTML that loads nothing."""

from importlib.resources import files
from typing import Final, NamedTuple

from chairlift.timeline.document import render_document

_TITLE: Final = "What continuous batching gains"


class _Slider(NamedTuple):
    """One range of the page."""

    name: str
    label: str
    attributes: str
    buttons: tuple[tuple[str, str], ...] = ()
    """Values to begin from, with what has them."""


_SLIDERS: Final = (
    _Slider(
        "cv",
        "Variation of the lengths of answers: deviation over mean",
        'min="0.05" max="1.5" step="0.05" value="0.75"',
        (("0.4", "0.4"), ("0.75", "chat (Azure: 0.77)"), ("1", "exponential: 1")),
    ),
    _Slider("rows", "Rows of the batch", 'min="1" max="6" step="1" value="4"'),
    _Slider(
        "ratio",
        "A step of 16 rows takes, over one of one row",
        'min="1" max="8" step="0.1" value="1.7"',
        (
            ("1", "weights read once: 1"),
            ("1.7", "demo model, two cores: 1.7"),
            ("3.7", "SmolLM2: 3.7"),
            ("5.8", "336 M: 5.8"),
        ),
    ),
)
_BODY: Final = """<h1>{title}</h1>
<p class="quiet">gain = (u<sub>c</sub> / u<sub>s</sub>) &times; t(u<sub>s</sub> B) /
t(u<sub>c</sub> B): computed for gamma distributed lengths, a step time that grows by a line, and
95 % of the rows in use under continuous batching. Nothing here is measured.</p>
{sliders}
<div role="status"><p id="answer"></p><p id="why"></p></div>
<h2>A static batch, and its idle slots</h2>
<svg id="batch" viewBox="0 0 640 192" role="img"></svg>
<h2>The gain over the variation of the lengths</h2>
<p class="quiet"><span class="key-line"></span> gain &ensp;
<span class="key-line key-slots"></span> what slots allow; longer steps take the
difference back</p>
<svg id="curve" viewBox="0 0 640 280" role="img"></svg>
<noscript><p>The figure needs JavaScript; docs/gains.md has it as pictures.</p></noscript>"""


def text_of(name: str) -> str:
    """Return a source of the page."""
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def render_gain_page() -> str:
    """Return the page as one document."""
    body = _BODY.format(title=_TITLE, sliders="\n".join(map(_markup, _SLIDERS)))
    script = text_of("formula.js") + text_of("page.js")
    return render_document(_TITLE, body, style=text_of("page.css"), script=script, data=None)


def _markup(slider: _Slider) -> str:
    name = slider.name
    buttons = "".join(
        f'<button type="button" data-slider="{name}" data-value="{value}">{text}</button>'
        for value, text in slider.buttons
    )
    return (
        f'<div class="slider"><label for="{name}">{slider.label}</label>'
        f'<output id="{name}Out" for="{name}"></output>'
        f'<input type="range" id="{name}" {slider.attributes}>'
        + (f"<div>{buttons}</div>" if buttons else "")
        + "</div>"
    )
