"""The two formats of the log: one line per record, whatever is in it."""

import json
import logging
import sys

import pytest
from chairlift.api.logs import JsonFormatter, TextFormatter, fields

ODD = 'a\nINFO chairlift: request ended handle=forged\r\x1b[31m\u2028"quoted" x=y\\'


def record(message="request ended", *, error=None, **values):
    made = logging.LogRecord("chairlift.server", logging.INFO, "", 0, message, (), error)
    made.created = 1_700_000_000.25
    for name, value in fields(**values).items():
        setattr(made, name, value)
    return made


def test_text_shows_fields_after_the_message():
    line = TextFormatter().format(record(handle="x_-1", tokens=3, seconds=0.25, cut=None, ok=True))
    assert line == (
        "2023-11-14T22:13:20.250Z INFO chairlift.server: request ended "
        "handle=x_-1 tokens=3 seconds=0.25 ok=true"
    )


def test_json_is_one_object_with_the_fields_beside_the_message():
    line = JsonFormatter().format(record(handle="x", tokens=3))
    assert json.loads(line) == {
        "time": "2023-11-14T22:13:20.250Z",
        "level": "info",
        "logger": "chairlift.server",
        "message": "request ended",
        "handle": "x",
        "tokens": 3,
    }


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
@pytest.mark.parametrize("made", [record(request_id=ODD), record(ODD)])
def test_what_a_client_names_is_one_line_of_printable_ascii(formatter, made):
    line = formatter.format(made)
    assert line.isprintable()
    assert line.isascii()


def test_a_quoted_value_cannot_pass_for_another_field():
    line = TextFormatter().format(record(request_id="a handle=forged"))
    assert line.endswith('request_id="a handle=forged"')
    assert TextFormatter().format(record(request_id="")).endswith('request_id=""')


def test_lines_of_a_traceback_cannot_pass_for_records():
    try:
        raise ValueError(ODD)
    except ValueError:
        made = record(error=sys.exc_info())
    first, *rest = TextFormatter().format(made).splitlines()
    assert first.endswith("request ended")
    assert rest
    assert all(line.startswith("    ") for line in rest)
    assert "ValueError" in json.loads(JsonFormatter().format(made))["traceback"]
