"""Opens the page in Chromium, looks at every state, and uses it; needs playwright alone.

    python browser_program.py FOLDER AXE CHECK... -- SCENE=URL...

FOLDER gets the screenshots, AXE is the script of axe-core. A check is `looks`, or one of `USES`.
"""

import json
import os
import re
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page, expect, sync_playwright

SIZES = {"desktop": (1280, 800), "tablet": (820, 1180), "phone": (390, 844)}
PATIENCE_MS = 60_000
WATCH_POLICY = """
window.violations = [];
addEventListener('securitypolicyviolation', (e) => violations.push(e.violatedDirective));
"""
CUT_TEXT = """() => [...document.querySelectorAll('body *')].filter((e) => {
  const s = getComputedStyle(e);
  return e.checkVisibility() && e.clientWidth && !e.closest('.sr, .scroll, textarea, input')
    && s.overflowX !== 'visible' && e.scrollWidth > e.clientWidth + 1;
}).map((e) => e.id || e.tagName)"""
OVERLAPS = """() => {
  const parts = '#main > *, #side > *, #tiles > li, #answers > li, header > *, nav > button';
  const boxes = [...document.querySelectorAll(parts)].filter((e) => e.checkVisibility());
  const meet = (a, b) => {
    const r = a.getBoundingClientRect(), q = b.getBoundingClientRect();
    return r.left < q.right - 1 && q.left < r.right - 1 && r.top < q.bottom - 1
      && q.top < r.bottom - 1 && !a.contains(b) && !b.contains(a);
  };
  return boxes.flatMap((a, i) => boxes.slice(i + 1).filter((b) => meet(a, b))
    .map((b) => `${a.id || a.textContent} over ${b.id || b.textContent}`));
}"""
SMALL = """(least) => [...document.querySelectorAll('button, input, textarea, summary')]
  .filter((e) => e.checkVisibility()).filter((e) => {
    const r = (e.closest('label.check') ?? e).getBoundingClientRect();
    return r.height < least - 0.5 || r.width < Math.min(least, 24);
  }).map((e) => e.id || e.textContent)"""


@contextmanager
def opened(browser: Browser, url: str, size: str = "desktop", **settings: object) -> Iterator[Page]:
    """Open the page; nothing may come from another host or break the policy."""
    width, height = SIZES[size]
    context = browser.new_context(
        viewport={"width": width, "height": height}, has_touch=size == "phone", **settings
    )
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    page.add_init_script(WATCH_POLICY)
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error.stack)))
    page.on("console", lambda m: errors.append(m.text) if is_fault(m.type, m.text) else None)
    page.on("request", lambda r: errors.append(r.url) if not is_own(r.url, url) else None)
    page.goto(url)
    yield page
    if settings.get("java_script_enabled", True):
        assert page.evaluate("violations") == []
    assert errors == [], errors
    context.close()


def is_fault(kind: str, text: str) -> bool:
    # Chromium writes a line for each refused request, which is what some scenes are about.
    return kind in ("error", "warning") and "Failed to load resource" not in text


def is_own(requested: str, url: str) -> bool:
    return requested.startswith((url, "blob:"))


def until(page: Page, expression: str) -> None:
    """Wait for an expression; playwright's own wait evaluates text, which the policy forbids."""
    for _ in range(PATIENCE_MS // 100):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(100)
    message = f"this did not become true: {expression}"
    raise AssertionError(message)


def until_shown(page: Page) -> None:
    """Wait for figures, or for the sentence that says why there are none."""
    until(
        page,
        "['token', 'loading', 'refused', 'lost'].includes(document.body.dataset.state)"
        " || /[0-9]/.test(document.querySelector('#tiles b').textContent)",
    )
    page.wait_for_timeout(400)


def change(url: str, **values: object) -> dict:
    """Change fields of a scene."""
    request = urllib.request.Request(f"{url}/scene", json.dumps(values).encode())
    with urllib.request.urlopen(request) as response:
        return json.load(response)


def looks(browser: Browser, urls: dict[str, str], folder: Path, axe: str) -> None:
    """Take a picture of each scene in each size and scheme, and look for faults."""
    faults = []
    for scene, url in urls.items():
        for size in SIZES:
            for scheme in ("light", "dark", "forced"):
                if scheme == "forced" and (scene, size) != ("busy", "desktop"):
                    continue
                forced = "active" if scheme == "forced" else "none"
                scheme_ = "light" if scheme == "light" else "dark"
                with opened(browser, url, size, color_scheme=scheme_, forced_colors=forced) as page:
                    until_shown(page)
                    if scene == "all-tenants":
                        page.keyboard.press("t")
                    name = f"{scene}-{size}-{scheme}"
                    page.screenshot(path=folder / f"{name}.png", full_page=True)
                    found = [f"{name}: {fault}" for fault in faults_of(page, size, axe)]
                    print(*found, sep="\n", end="\n" if found else "", flush=True)
                    faults += found
        print(f"looks: {scene}", flush=True)
    assert not faults, f"{len(faults)} faults"


def faults_of(page: Page, size: str, axe: str) -> list[str]:
    """Return what is wrong with the layout, and what axe finds."""
    faults = [f"text of {name} is cut" for name in page.evaluate(CUT_TEXT)]
    faults += page.evaluate(OVERLAPS)
    faults += [f"{name} is small" for name in page.evaluate(SMALL, 44 if size == "phone" else 24)]
    if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
        faults.append("wider than the screen")
    page.evaluate(axe)
    for found in page.evaluate("axe.run()")["violations"]:
        node = found["nodes"][0]
        faults.append(f"{found['id']}: {node['html'][:120]} {node.get('failureSummary', '')}")
    return faults


def sends_prompts(browser: Browser, urls: dict[str, str]) -> None:
    """One button sends seven prompts; each answer has its number, its row and its end."""
    with opened(browser, urls["few-rows"]) as page:
        until_shown(page)
        page.click("#demo2")
        expect(page.locator("#answers li")).to_have_count(7)
        expect(page.locator("#answers button:visible")).to_have_count(0, timeout=PATIENCE_MS)
        expect(page.locator("#answers li").nth(2)).to_contain_text("26 tokens")
        expect(page.locator("#answers .badge").nth(2)).to_have_text("3")
        page.fill("#prompts", "one\n\n two \n")
        page.fill("#maxTokens", "100000")
        page.click("#send")
        answers = page.locator("#answers li")
        expect(answers).to_have_count(2)
        page.get_by_role("button", name="Cancel: one").click()
        expect(answers.first).to_contain_text("cancelled")
        expect(answers.last).not_to_contain_text("cancelled")
        page.click("#cancelAll")
        expect(answers.last).to_contain_text("cancelled")
        page.fill("#prompts", "\n".join("x" * 65))
        page.click("#send")
        expect(page.locator("#playNote")).to_contain_text("At most 64")


def starts_with_a_button(browser: Browser, urls: dict[str, str]) -> None:
    """A server without requests offers one button, which has the focus, and a command."""
    with opened(browser, urls["never"]) as page:
        expect(page.locator("#empty")).to_contain_text("No request yet")
        expect(page.locator("#demo1")).to_be_focused()
        expect(page.locator("#curl")).to_contain_text(f"curl {urls['never']}/v1/chat/completions")
        page.keyboard.press("Enter")
        expect(page.locator("#answers li")).to_have_count(7)


def stops_and_shows_tables(browser: Browser, urls: dict[str, str]) -> None:
    """P stops all motion, T shows tables, and both can be switched off."""
    with opened(browser, urls["busy"]) as page:
        until_shown(page)
        page.keyboard.press("p")
        drawn = "document.querySelector('#rows').toDataURL()"
        before = page.evaluate(drawn)
        page.wait_for_timeout(1500)
        assert page.evaluate(drawn) == before
        expect(page.locator("#pause")).to_have_attribute("aria-pressed", "true")
        page.keyboard.press("p")
        until(page, f"{drawn} !== {json.dumps(before)}")
        page.keyboard.press("t")
        expect(page.locator("#rowsTable tbody tr")).to_have_count(64)
        expect(page.locator("#rows")).to_be_hidden()
        page.keyboard.press("?")
        page.uncheck("#keys")
        page.get_by_role("button", name="Close").click()
        page.keyboard.press("t")
        expect(page.locator("#rowsTable")).to_be_visible()


def moves_over_cells(browser: Browser, urls: dict[str, str]) -> None:
    """Arrow keys move over the cells, and say what is there."""
    with opened(browser, urls["dropped"]) as page:
        until_shown(page)
        # On a busy machine the first rows are drawn long after the first figures.
        until(page, "/last step; (?!no step)/.test(document.querySelector('#rows').ariaLabel)")
        page.keyboard.press("p")
        page.focus("#rows")
        page.keyboard.press("ArrowLeft")
        expect(page.locator("#cell")).to_contain_text("Row 0, step 1,")
        page.keyboard.press("ArrowDown")
        expect(page.locator("#cell")).to_contain_text("Row 1, step 1,")
        expect(page.locator("#status")).to_contain_text("Row 1")
        until(page, "document.querySelector('#rows').ariaLabel.includes('of rows 0 to 15')")


def connects_again(browser: Browser, urls: dict[str, str]) -> None:
    """A lost server is said, its figures stay; after a restart they are cleared."""
    url = urls["restarted"]
    with opened(browser, url) as page:
        until_shown(page)
        change(url, is_lost=True)
        expect(page.locator("#notice")).to_contain_text("Disconnected")
        expect(page.locator("#status")).to_contain_text("disconnected")
        expect(page.locator("#send")).to_be_disabled()
        expect(page.locator("#tiles b").first).to_contain_text(re.compile("[0-9]"))
        change(url, is_lost=False)
        expect(page.locator("#notice")).to_be_hidden()
        change(url, is_lost=True)
        expect(page.locator("#notice")).to_contain_text("Disconnected")
        change(url, is_lost=False, start_ms=1_700_000_000_000, load=0)
        expect(page.locator("#empty")).to_be_visible()
        expect(page.locator("#status")).to_contain_text("restarted")


def asks_for_a_token(browser: Browser, urls: dict[str, str]) -> None:
    """Without a token there is one field; the token stays in memory unless it is to be kept."""
    with opened(browser, urls["token"]) as page:
        expect(page.locator("#token")).to_be_focused()
        expect(page.locator("#main")).to_be_hidden()
        page.fill("#token", "wrong")
        page.keyboard.press("Enter")
        expect(page.locator("#notice")).to_contain_text("refused this token")
        page.fill("#token", "secret")
        page.keyboard.press("Enter")
        expect(page.locator("#tiles")).to_be_visible()
        assert page.evaluate("sessionStorage.length + localStorage.length") == 0
        page.reload()
        page.check("#keep")
        page.fill("#token", "secret")
        page.click("#login button")
        expect(page.locator("#tiles")).to_be_visible()
        page.reload()
        expect(page.locator("#tiles")).to_be_visible()


def rests_while_hidden(browser: Browser, urls: dict[str, str]) -> None:
    """A hidden page closes its feed, and opens one when it is shown."""
    url = urls["idle"]
    with opened(browser, url, reduced_motion="reduce") as page:
        until_shown(page)
        hide = (
            "value => { Object.defineProperty(document, 'hidden', { value, configurable: true });"
            " document.dispatchEvent(new Event('visibilitychange')); }"
        )
        before = change(url)
        assert before["query"]["fps"] == "1"
        page.evaluate(hide, True)
        page.wait_for_timeout(1500)
        assert change(url)["num_feeds"] == before["num_feeds"]
        with page.expect_request(re.compile("/page/feed")):
            page.evaluate(hide, False)


def shows_markup_as_text(browser: Browser, urls: dict[str, str]) -> None:
    """Names of requests and of the model are text."""
    with opened(browser, urls["markup"]) as page:
        until_shown(page)
        expect(page.locator("#model")).to_contain_text("<b>'model'</b>")
        expect(page.locator("#queue")).to_contain_text("<img src=x")
        assert page.locator("main img, main script").count() == 0


def looks_through_a_lens(browser: Browser, urls: dict[str, str]) -> None:
    """Draw 64 of thousands of rows, and choose others."""
    url = urls["thousands"]
    with opened(browser, url) as page:
        until_shown(page)
        expect(page.locator("#bands")).to_be_visible()
        expect(page.locator("#lensNote")).to_have_text("to 63 of 4,096")
        page.click("#down")
        expect(page.locator("#lensNote")).to_have_text("to 127 of 4,096")
        with page.expect_request(re.compile("first_row=4032")):
            page.fill("#first", "9999")
            page.keyboard.press("Enter")
        expect(page.locator("#lensNote")).to_have_text("to 4095 of 4,096")


def changes_the_theme(browser: Browser, urls: dict[str, str]) -> None:
    """The theme is the system's, light or dark, and is kept."""
    with opened(browser, urls["busy"], color_scheme="light") as page:
        until_shown(page)
        colour = "getComputedStyle(document.body).backgroundColor"
        light = page.evaluate(colour)
        page.click("#theme")
        page.click("#theme")
        expect(page.locator("#theme")).to_have_text("Theme: dark")
        assert page.evaluate(colour) != light
        page.reload()
        assert page.evaluate(colour) != light


def works_without_scripts(browser: Browser, urls: dict[str, str]) -> None:
    """Without JavaScript the page names a command that shows the same."""
    with opened(browser, urls["busy"], java_script_enabled=False) as page:
        expect(page.locator("noscript p")).to_contain_text("chairlift top")


def runs_on_a_server(browser: Browser, urls: dict[str, str]) -> None:
    """A real server answers the seven prompts; print the figures of the idle page."""
    with opened(browser, urls["server"]) as page:
        expect(page.locator("#empty")).to_be_visible()
        page.click("#demo1")
        answers = page.locator("#answers li")
        expect(answers).to_have_count(7)
        expect(page.locator("#answers button:visible")).to_have_count(0)
        for index in range(7):
            expect(answers.nth(index)).to_contain_text(re.compile(r"row [0-3]"))
            expect(answers.nth(index)).to_contain_text(re.compile("stop|length"))
        numbers = page.locator("#answers .badge").all_text_contents()
        assert sorted(numbers) == [*"1234567"], numbers
        expect(page.locator("#state")).to_contain_text("idle")
        page.wait_for_timeout(1500)
        tiles = page.locator("#tiles li").all_inner_texts()
        ids = ("kvLine", "kvNote", "rowsNote", "stepNote")
        figures = {name: page.inner_text(f"#{name}") for name in ids}
        print(json.dumps({"figures": figures | {"tiles": tiles}}), flush=True)
        folder = Path(sys.argv[1])
        page.screenshot(path=folder / "server.png")


def turns_the_sliders(browser: Browser, urls: dict[str, str]) -> None:
    """The figure of docs/gains.md opens from disk and answers keys, in each size and scheme."""
    folder, axe = Path(sys.argv[1]), Path(sys.argv[2]).read_text(encoding="utf-8")
    for size in SIZES:
        for scheme in ("light", "dark"):
            with opened(browser, urls["gain"], size, color_scheme=scheme) as page:
                answer = page.locator("#answer")
                expect(answer).to_contain_text(re.compile(r"gains [0-9.]+x"))
                before = answer.inner_text()
                for slider in ("cv", "rows", "ratio"):
                    page.focus(f"#{slider}")
                    page.keyboard.press("ArrowRight")
                    expect(answer).not_to_have_text(before)
                    before = answer.inner_text()
                page.get_by_role("button", name="SmolLM2").click()
                expect(page.locator("#ratioOut")).to_have_text("3.7 times")
                page.screenshot(path=folder / f"gain-{size}-{scheme}.png", full_page=True)
                faults = faults_of(page, size, axe)
                assert not faults, faults


USES: dict[str, Callable[[Browser, dict[str, str]], None]] = {
    check.__name__: check
    for check in (
        starts_with_a_button,
        sends_prompts,
        stops_and_shows_tables,
        moves_over_cells,
        connects_again,
        asks_for_a_token,
        rests_while_hidden,
        shows_markup_as_text,
        looks_through_a_lens,
        changes_the_theme,
        works_without_scripts,
        runs_on_a_server,
        turns_the_sliders,
    )
}


def main() -> None:
    at = sys.argv.index("--")
    folder, axe, *checks = sys.argv[1:at]
    urls = dict(pair.split("=", 1) for pair in sys.argv[at + 1 :])
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        # Chromium runs without its sandbox as root, and CI is root in its container.
        browser = playwright.chromium.launch(
            executable_path=os.environ["CHROMIUM"], args=["--no-sandbox"]
        )
        for check in checks:
            if check == "looks":
                looks(browser, urls, Path(folder), Path(axe).read_text(encoding="utf-8"))
            else:
                USES[check](browser, urls)
            print(f"passed: {check}", flush=True)
        browser.close()


if __name__ == "__main__":
    main()
