"""A model folder in a ZIP file: unpacked once, and never outside of its place."""

import zipfile

import pytest
from chairlift.api.errors import ModelError
from chairlift.checkpoints.files import unpacked
from chairlift.checkpoints.files.unpacked import unpacked_folder


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "chairlift" / "models"


def archive(path, entries, method=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", method) as file:
        for name, data in entries:
            file.writestr(name, data)
    return path


def test_a_folder_is_unpacked_once(tmp_path, cache):
    file = archive(tmp_path / "m.zip", [("config.json", "{}"), ("1_Pooling/config.json", "[]")])
    folder = unpacked_folder(file, "m-1")
    assert folder == cache / "m-1"
    assert (folder / "1_Pooling" / "config.json").read_text() == "[]"
    file.unlink()
    assert unpacked_folder(file, "m-1") == folder
    assert [path.name for path in cache.iterdir()] == ["m-1"]


@pytest.mark.parametrize(
    "name",
    ["../evil", "/etc/evil", "a/../../evil", "a\\..\\evil", "C:evil"],
)
def test_an_entry_outside_of_the_folder_is_refused(tmp_path, cache, name):
    file = archive(tmp_path / "m.zip", [("config.json", "{}"), (name, "x")])
    with pytest.raises(ModelError, match="a name outside of the folder"):
        unpacked_folder(file, "m-1")
    assert list(cache.iterdir()) == []
    assert not (tmp_path / "evil").exists()


def test_a_link_is_refused(tmp_path):
    entry = zipfile.ZipInfo("link")
    entry.external_attr = 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "m.zip", "w") as file:
        file.writestr(entry, "/etc/passwd")
    with pytest.raises(ModelError, match="link: not a regular file"):
        unpacked_folder(tmp_path / "m.zip", "m-1")


def test_a_name_that_is_there_twice_is_refused(tmp_path):
    file = archive(tmp_path / "m.zip", [("config.json", "{}"), ("CONFIG.json", "{}")])
    with pytest.raises(ModelError, match="there twice"):
        unpacked_folder(file, "m-1")


def test_a_bomb_is_refused_before_a_byte_is_written(tmp_path, cache, monkeypatch):
    file = archive(tmp_path / "m.zip", [("model.safetensors", bytes(8 << 20))])
    with pytest.raises(ModelError, match="much larger than what it is packed from"):
        unpacked_folder(file, "m-1")
    plain = archive(tmp_path / "p.zip", [("a", bytes(600)), ("b", bytes(600))], zipfile.ZIP_STORED)
    monkeypatch.setattr(unpacked, "MAX_BYTES", 1000)
    with pytest.raises(ModelError, match="expected at most 1000 bytes, got 1200"):
        unpacked_folder(plain, "m-1")
    monkeypatch.setattr(unpacked, "MAX_ENTRIES", 1)
    with pytest.raises(ModelError, match="expected at most 1, got 2"):
        unpacked_folder(plain, "m-1")
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize("damage", ["cut", "text", "crc"])
def test_a_damaged_file_leaves_no_folder(tmp_path, cache, damage):
    file = archive(tmp_path / "m.zip", [("config.json", "{}" * 200)], zipfile.ZIP_STORED)
    data = bytearray(file.read_bytes())
    if damage == "cut":
        data = data[: len(data) // 2]
    elif damage == "text":
        data = bytearray(b"no archive")
    else:
        data[60] ^= 1
    file.write_bytes(data)
    with pytest.raises(ModelError, match="not a ZIP file that can be read"):
        unpacked_folder(file, "m-1")
    assert list(cache.iterdir()) == []
