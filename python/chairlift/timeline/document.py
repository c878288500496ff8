"""A page of HTML in one file, which loads nothing and runs its own script alone."""

import json
from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from html import escape

_DOCUMENT = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main>
{body}
</main>
<script type="application/json" id="data">{data}</script>
<script>{script}</script>
</body>
</html>
"""


def render_document(
    title: str,
    body: str,
    *,
    style: str,
    script: str,
    data: object,
    inner_styles: Sequence[str] = (),
) -> str:
    """Return a document whose content security policy names its styles and its script.

    Args:
        title: Text of the title.
        body: Markup.
        style: Style sheet.
        script: Runs when the body and the data are there.
        data: What JSON can hold; the script reads it from the element `data`.
        inner_styles: Style sheets of figures inside the body.
    """
    styles = " ".join(_hash(text) for text in dict.fromkeys((style, *inner_styles)))
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {styles}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    # No text inside can end the element that holds it.
    written = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    return _DOCUMENT.format(
        policy=policy, title=escape(title), style=style, body=body, data=written, script=script
    )


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
