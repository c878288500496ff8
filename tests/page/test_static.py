"""The files of the live page, without a browser: small, of this server alone, and safe by form."""

import re

from chairlift.server.page.static_files import FOLDER

MAX_BYTES = 60_000
TEXTS = {path.name: path.read_text(encoding="utf-8") for path in sorted(FOLDER.iterdir())}
SCRIPTS = {name: text for name, text in TEXTS.items() if name.endswith(".js")}


def test_all_files_together_are_small():
    sizes = {name: len(text.encode()) for name, text in TEXTS.items()}
    assert sum(sizes.values()) < MAX_BYTES, sizes


def test_no_file_names_another_host():
    urls = {
        url for text in TEXTS.values() for url in re.findall(r"(?:https?|wss?)://[^\s\"']+", text)
    }
    assert urls <= {"http://www.w3.org/2000/svg"}


def test_no_text_becomes_markup_or_code():
    sinks = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc"
    for name, text in SCRIPTS.items():
        assert not re.findall(sinks, text), name
        assert not re.findall(r"setAttribute\(['\"](style|on)", text), name


def test_the_page_has_no_inline_script_and_no_inline_style():
    html = TEXTS["index.html"]
    assert not re.findall(r"<style|\sstyle=|\son\w+=|javascript:", html)
    assert re.findall(r"<script[^>]*>(.*?)</script>", html, re.S) == [""]


def test_every_element_that_a_script_asks_for_is_in_the_page():
    html = TEXTS["index.html"]
    ids = re.findall(r'\sid="([\w-]+)"', html)
    assert len(ids) == len({*ids})
    asked = {name for text in SCRIPTS.values() for name in re.findall(r"\$\('([\w-]+)'\)", text)}
    assert asked
    assert asked <= {*ids}


def test_every_class_of_the_page_has_a_rule():
    named = {
        c for names in re.findall(r'class="([^"]+)"', TEXTS["index.html"]) for c in names.split()
    }
    rules = {*re.findall(r"\.([a-z][\w-]*)", TEXTS["page.css"])}
    assert named <= rules
