"""Parts of an SVG figure as text; names and numbers never become markup."""

from xml.sax.saxutils import escape, quoteattr


def element(name: str, content: str = "", **attributes: object) -> str:
    """Return an element; an attribute `stroke_width` is `stroke-width`, `class_` is `class`.

    Args:
        name: Name of the element.
        content: Markup inside it.
        attributes: Numbers are written with at most one decimal.
    """
    written = "".join(
        f" {key.rstrip('_').replace('_', '-')}={quoteattr(_written(value))}"
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{written}>{content}</{name}>" if content else f"<{name}{written}/>"


def text(x: float, y: float, words: str, **attributes: object) -> str:
    """Return words at a place."""
    return element("text", escape(words), x=x, y=y, **attributes)


def picture(width: float, height: float, label: str, parts: list[str]) -> str:
    """Return a figure that a reader of the screen hears as one sentence."""
    size = f"0 0 {width:g} {height:g}"
    # A narrow screen scrolls the figure: letters stay as large as they are.
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{size}" width="{width:g}" '
        f'height="{height:g}" role="img" aria-label={quoteattr(label)}>' + "".join(parts) + "</svg>"
    )


def _written(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.1f}".removesuffix(".0")
    return str(value)
