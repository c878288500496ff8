"""A GGUF file whose parts lie in several packages."""

import hashlib
import importlib

import pytest
from chairlift.api.errors import ModelError
from chairlift.checkpoints.files import folder
from chairlift.checkpoints.files.folder import resolve_model

PARTS = (b"first ", b"second ", b"third")
WHOLE = b"".join(PARTS)
CHECKSUM = hashlib.sha256(WHOLE).hexdigest()


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Return a function that installs packages which hold a file and its parts."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(site)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(folder, "PACKAGES", {"whole": "tiny-whole"})

    def package(name, files, requires=()):
        module, info = site / name.replace("-", "_"), f"{name.replace('-', '_')}-1.0.dist-info"
        (site / info).mkdir()
        module.mkdir()
        for file, content in files.items():
            (module / file).write_bytes(content)
        lines = [f"Requires-Dist: {other}==1.0" for other in requires]
        metadata = "\n".join(["Metadata-Version: 2.1", f"Name: {name}", "Version: 1.0", *lines])
        (site / info / "METADATA").write_text(metadata + "\n")
        record = [f"{module.name}/{file},," for file in files]
        (site / info / "RECORD").write_text("\n".join([*record, f"{info}/METADATA,,"]) + "\n")

    def make(parts=PARTS, checksum=CHECKSUM, without=()):
        names = [f"tiny-whole-part{number}" for number in range(len(parts))]
        for number, (name, part) in enumerate(zip(names, parts, strict=True)):
            if number not in without:
                package(name, {f"tiny.gguf.part{number:02}": part})
        package("tiny-whole", {"SHA256SUMS": f"{checksum}  tiny.gguf\n".encode()}, names)
        importlib.invalidate_caches()

    return make


def test_the_parts_are_put_together_once(install, tmp_path):
    install()
    path = resolve_model("whole")
    assert path.read_bytes() == WHOLE
    assert path.is_relative_to(tmp_path / "cache")
    assert resolve_model("whole") == path
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_a_file_that_was_cut_off_is_made_again(install):
    install()
    path = resolve_model("whole")
    path.write_bytes(WHOLE[:-1])
    assert resolve_model("whole").read_bytes() == WHOLE


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"without": (1,)}, "a part is not installed here: pip install tiny-whole-part1"),
        ({"parts": (b"first ", b"other ", b"third")}, "its parts are damaged: expected SHA-256"),
        ({"checksum": "?"}, "no SHA256SUMS beside the parts has a SHA-256 of tiny.gguf"),
        ({"parts": ()}, "the package tiny-whole holds no GGUF file"),
    ],
)
def test_what_is_wrong_with_the_packages_is_said_in_a_line(install, tmp_path, changes, message):
    install(**changes)
    with pytest.raises(ModelError, match=f"^whole: {message}"):
        resolve_model("whole")
    assert not list(tmp_path.glob("cache/**/*.gguf"))
    assert not list(tmp_path.glob("cache/**/*.tmp"))
