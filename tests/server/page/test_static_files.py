"""The files of the live page: their names, their headers, and where they are served."""

import hashlib
import re

import pytest
from chairlift.api.config import engine_config
from chairlift.api.errors import ConfigError
from chairlift.server.app.server import Server, ServerConfig
from chairlift.server.page.static_files import FOLDER, static_files

from tests.server.certificates import Certificates
from tests.server.openai.test_access import https
from tests.server.test_auth import ANN, guarded, token_file

__all__ = ["guarded", "token_file"]


def write(folder, **files):
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text, encoding="utf-8")
    return folder


def hashed(name, text):
    stem, _, suffix = name.rpartition(".")
    return f"/page/{stem}.{hashlib.sha256(text.encode()).hexdigest()[:8]}.{suffix}"


def test_a_name_has_the_hash_of_the_file_and_of_all_that_it_imports(tmp_path):
    rows = "export const rows = 1;\n"
    app = 'import { rows } from "./rows.js";\n'
    style = 'body { background: url("./icon.svg"); }\n'
    index = '<link href="{{page.css}}"><script type="module" src="{{app.js}}"></script>'
    write(tmp_path, rows_js=rows, app_js=app, page_css=style, icon_svg="<svg/>", index_html=index)
    files = static_files(tmp_path)
    app = app.replace("./rows.js", hashed("rows.js", rows))
    style = style.replace("./icon.svg", hashed("icon.svg", "<svg/>"))
    assert files[hashed("app.js", app)].body.decode() == app
    assert files[hashed("page.css", style)].body.decode() == style
    shown = files["/"].body.decode()
    assert f'href="{hashed("page.css", style)}"' in shown
    assert f'src="{hashed("app.js", app)}"' in shown
    assert len(files) == 5


def test_imports_over_several_lines_are_found_and_types_in_comments_are_not(tmp_path):
    feed = '/** @typedef {import("./app.js").App} App */\nexport const feed = 1;\n'
    app = (
        'import {\n  feed,\n} from "./feed.js";\nimport "./feed.js";\nexport * from "./feed.js";\n'
    )
    write(tmp_path, feed_js=feed, app_js=app, index_html="{{app.js}}")
    files = static_files(tmp_path)
    assert files[hashed("feed.js", feed)].body.decode() == feed
    app = app.replace("./feed.js", hashed("feed.js", feed))
    assert files[hashed("app.js", app)].body.decode() == app


def test_files_of_other_kinds_are_not_served(tmp_path):
    write(tmp_path, index_html="", feed_ts="type Feed = 1;", README_md="# Page")
    assert static_files(tmp_path).keys() == {"/"}


def test_a_circle_and_a_missing_file_are_refused_by_name(tmp_path):
    write(tmp_path, a_js='import "./b.js";', b_js='import "./a.js";', index_html="{{a.js}}")
    with pytest.raises(ValueError, match=r"index\.html, a\.js, b\.js, a\.js"):
        static_files(tmp_path)
    with pytest.raises(ValueError, match=r"b\.js names nothing\.js, which is missing"):
        static_files(write(tmp_path, b_js='import "./nothing.js";'))


def test_the_page_loads_nothing_from_other_hosts():
    for path in FOLDER.iterdir():
        urls = re.findall(r"https?://[^\s\"'<>)]+", path.read_text(encoding="utf-8"))
        assert set(urls) <= {"http://www.w3.org/2000/svg"}, path


async def test_every_file_is_open_and_has_the_headers_of_a_closed_page(api, guarded):
    async with api(server=guarded) as served:
        for path, file in static_files().items():
            response = await served.get(path)
            assert (response.status, response.body) == (200, file.body)
            directives = response.headers["content-security-policy"].split("; ")
            policy = dict(directive.split(" ", 1) for directive in directives)
            assert policy["default-src"] == policy["frame-ancestors"] == "'none'"
            assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
            assert policy["require-trusted-types-for"] == "'script'"
            assert response.headers["x-content-type-options"] == "nosniff"
            assert response.headers["referrer-policy"] == "no-referrer"
            assert response.headers["cross-origin-opener-policy"] == "same-origin"
            assert response.headers["cross-origin-resource-policy"] == "same-origin"
            assert ("immutable" in response.headers["cache-control"]) == (path != "/")
            assert not [name for name in response.headers if name.startswith("access-control")]
        assert (await served.get("/page/app.00000000.js")).status == 401
        authorization = {"authorization": f"Bearer {ANN}"}
        assert (await served.get("/page/app.00000000.js", **authorization)).status == 404
        assert (await served.get("/page/index.html", **authorization)).status == 404


async def test_the_page_answers_only_by_the_names_of_this_host(api):
    async with api() as served:
        response = await served.get("/", host="evil.example")
        assert (response.status, response.error["code"]) == (403, "unknown_host")


async def test_the_page_can_be_switched_off(api):
    async with api(server={"page": "off"}) as served:
        assert served.server.server.page_url is None
        assert (await served.get("/")).status == 404
    async with api() as served:
        assert served.server.server.page_url == f"{served.url}/"


@pytest.mark.parametrize(("page", "status"), [({}, 404), ({"page": "on"}, 200)])
async def test_beyond_loopback_the_page_is_off_unless_it_is_asked_for(
    api, tmp_path, guarded, page, status
):
    certificates = Certificates(tmp_path / "tls")
    server = {**certificates.tls, **guarded, "http_listen": "0.0.0.0:0", **page}
    async with api(server=server, listen="127.0.0.1:0") as served:
        assert await https(served.port, certificates, "/", token=ANN) == status


def test_a_page_without_a_port_for_it_is_refused():
    with pytest.raises(ConfigError, match="page: it is served on the HTTP port"):
        Server(engine_config(), ServerConfig(page="on"))
