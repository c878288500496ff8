"""Templates that ask for more time, memory or text than there is: every one is refused."""

import json
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest
from chairlift.api.bounded_process import ProcessPool
from chairlift.api.errors import Reason, RequestError
from chairlift.text.chat.template_process import TemplateProcess

MOST_BYTES = 100_000

HOSTILE = {
    "range": "{{ range(10 ** 10) | list }}",
    "range at its limit, repeated": "{{ (range(99999) | list) * big }}",
    "loop in a loop": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}"
    "{% endfor %}",
    "output in a loop": "{% for i in range(99999) %}{{ text }}{% endfor %}",
    "output in a loop in a loop": "{% for i in range(9999) %}{% for j in range(9999) %}a"
    "{% endfor %}{% endfor %}",
    "recursive loop": "{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "macro that calls itself": "{% macro f(n) %}{{ f(n) }}{{ f(n) }}{% endmacro %}{{ f(1) }}",
    "doubling with ~": "{% set ns = namespace(s='ab') %}{% for i in range(99) %}"
    "{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
    "doubling with +": "{% set ns = namespace(s='ab') %}{% for i in range(99) %}"
    "{% set ns.s = ns.s + ns.s %}{% endfor %}",
    "product of text": "{{ 'a' * big }}",
    "product of text, folded while compiling": "{{ 'a' * 10 ** 10 }}",
    "product of lists": "{{ [1] * big }}",
    "power": "{{ 7 ** big }}",
    "digits of a power": "{{ 7 ** (10 ** 7) }}",
    "%, width": "{{ '%*d' % (big, 1) }}",
    "%, precision": "{{ '%.*f' % (10 ** 9, 1) }}",
    "filter format": "{{ '%*d' | format(big, 1) }}",
    "method format": "{{ '{:>{}}'.format('a', big) }}",
    "filter center": "{{ 'a' | center(big) }}",
    "filter indent": "{{ 'a\nb' | indent(big) }}",
    "filter wordwrap": "{{ text | wordwrap(1, wrapstring='a' * 10 ** 8) }}",
    "filter tojson": "{{ [1] | tojson(indent=big) }}",
    "filter replace": "{{ text | replace('', 'a' * 10 ** 8) }}",
    "filter join": "{{ range(99999) | join('a' * 10 ** 6) }}",
    "filter batch": "{{ [1] | batch(big, 'a') | list }}",
    "filter slice": "{{ [1] | slice(10 ** 9) | list }}",
    "filter xmlattr": "{{ {'a': text * 10 ** 9} | xmlattr }}",
    "method ljust": "{{ 'a'.ljust(big) }}",
    "method zfill": "{{ 'a'.zfill(big) }}",
    "method expandtabs": "{{ '\t'.expandtabs(2 ** 31 - 1) * 99 }}",
    "method join": "{{ (text * 10 ** 8).join(['a'] * 99) }}",
    "method replace": "{{ text.replace('', text * 10 ** 8) }}",
    "method translate": "{{ (text * 10 ** 6).translate({97: 'b' * 10 ** 6}) }}",
    "lipsum": "{{ lipsum(n=99999, max=10 ** 6) }}",
    "time": "{{ strftime_now('%c' * 10 ** 9) }}",
    "deep expression": "{{ " + "(" * 99_999 + "1" + ")" * 99_999 + " }}",
    "long template": "{% if big %}a{% endif %}" * 99_999,
}
"""Each operation that makes much out of little; Jinja interrupts none of them."""


@pytest.fixture(scope="module")
def templates():
    return TemplateProcess()


def render(templates, template, **variables):
    return templates.render(
        template=template,
        messages=[{"role": "user", "content": "hello"}],
        variables=variables,
        max_bytes=MOST_BYTES,
    )


@pytest.mark.parametrize("name", HOSTILE)
def test_a_template_that_asks_for_too_much_is_refused_and_the_next_one_rendered(templates, name):
    with pytest.raises(RequestError) as refused:
        render(templates, HOSTILE[name], big=10**10, text="aaaaaaaaaa" * 100)
    assert refused.value.reason in (Reason.BAD_PARAMETER, Reason.PROMPT_TOO_LONG)
    assert refused.value.field == "chat"
    assert len(refused.value.message) < 200
    assert render(templates, "{{ messages[0].content }}") == "hello"


def test_the_text_of_a_chat_has_at_most_the_bytes_that_are_allowed(templates):
    assert render(templates, "{{ 'é' * 50000 }}") == "é" * 50_000
    with pytest.raises(RequestError) as refused:
        render(templates, "{{ 'é' * 50000 }}a")
    assert (refused.value.reason, refused.value.field) == (Reason.PROMPT_TOO_LONG, "chat")


def test_a_message_quotes_100_characters_of_what_a_template_raises(templates):
    with pytest.raises(RequestError) as refused:
        render(templates, "{{ raise_exception('Ä' * 7000) }}")
    assert refused.value.message == f"chat template: {'Ä' * 100}..."
    with pytest.raises(RequestError) as refused:
        render(templates, "{{ raise_exception(text) }}", text="a\n\ud800 \n b")
    assert refused.value.message == "chat template: a ? b"


def test_text_comes_back_as_it_was_written(templates):
    text = "缆车 🚡\n\x00\u2028 \ud800"
    assert render(templates, "{{ text }}", text=text) == text


def test_arguments_that_json_cannot_hold_are_refused(templates):
    circle: list[object] = []
    circle.append(circle)
    for value in (object(), circle, {1j: 1}):
        with pytest.raises(RequestError) as refused:
            render(templates, "{{ value }}", value=value)
        assert refused.value.field == "chat.template_arguments"


def test_a_process_that_was_ended_from_outside_is_replaced(templates):
    render(templates, "a")
    for pid in children():
        os.kill(pid, signal.SIGTERM)
    assert render(templates, "{{ messages[0].role }}") == "user"
    assert len(children()) == 1


def test_a_process_that_was_ended_while_idle_is_reaped_before_its_next_use(templates):
    render(templates, "a")
    (pid,) = children()
    os.kill(pid, signal.SIGKILL)
    while (Path("/proc") / str(pid)).exists():
        time.sleep(0.01)
    assert render(templates, "a") == "a"


@pytest.mark.parametrize("error", [ValueError, MemoryError, KeyboardInterrupt])
def test_a_process_whose_greeting_fails_is_ended_and_another_one_started(error):
    greetings = iter([error])

    def greeting():
        for failure in greetings:
            raise failure
        return b""

    others = set(children())
    pool = ProcessPool("chairlift.text.chat.template_worker", "renders", "chat", greeting)
    message = json.dumps(
        {
            "template": "a",
            "messages": [{"role": "user", "content": "a"}],
            "variables": {},
            "max_bytes": MOST_BYTES,
        }
    ).encode()
    with pytest.raises(error):
        pool.ask(message)
    assert set(children()) == others
    assert json.loads(pool.ask(message)) == {"text": "a"}


def test_no_process_is_left_when_its_owner_is_gone():
    templates = TemplateProcess()
    others = set(children())
    render(templates, "a")
    assert len(set(children()) - others) == 1
    del templates
    assert set(children()) == others


def children():
    """Processes of this one that render."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            # The name of a process is in parentheses, and may hold anything.
            parent = (process / "stat").read_text().rpartition(")")[2].split()[1]
            if (
                int(parent) == os.getpid()
                and b"template_worker" in (process / "cmdline").read_bytes()
            ):
                found.append(int(process.name))
    return found
