"""Files that are read again: what counts while they are replaced, wrong, or gone."""

import os
import threading

import pytest
from chairlift.api.errors import ConfigError
from chairlift.server.security.reloading_file import (
    GRACE_S,
    FileRemovedError,
    ReloadingFile,
    read_file,
)


class Clock:
    """Seconds as the file system counts them, and as many more as a test lets pass."""

    def __init__(self, file):
        self.file, self.passed = file, 0.0

    def __call__(self):
        return self.file.parent.stat().st_ctime + self.passed


@pytest.fixture
def file(tmp_path):
    file = tmp_path / "secret"
    file.touch(0o600)
    file.write_text("first")
    return file


@pytest.fixture
def clock(file):
    return Clock(file)


def reloaded(file, clock, **options):
    def load():
        text = read_file(file, "option", is_secret=True).decode()
        if not text:
            message = "option: empty"
            raise FileRemovedError(message)
        if text.startswith("wrong"):
            message = f"option: {text}"
            raise ConfigError(message)
        return text

    return ReloadingFile((file,), load, clock=clock, **options)


def replace(file, text):
    """As careful programs do: the new file takes the name in one move."""
    new = file.with_name("new")
    new.touch(0o600)
    new.write_text(text)
    new.rename(file)


GONE = {"deleted": lambda file: file.unlink(), "emptied": lambda file: file.write_text("")}


@pytest.mark.parametrize("go", GONE.values(), ids=GONE)
def test_what_was_in_a_file_that_is_gone_is_withdrawn_after_a_while(file, clock, caplog, go):
    value = reloaded(file, clock, if_missing="nothing")
    go(file)
    assert value.current() == "first"
    assert "the old files stay in use: option: " in caplog.text
    clock.passed = GRACE_S / 2
    assert value.current() == "first"
    clock.passed = GRACE_S + 0.1
    assert value.current() == value.current() == "nothing"
    assert caplog.text.count("the old file is withdrawn: option: ") == 1
    replace(file, "second")
    assert value.current() == "second"


@pytest.mark.parametrize("go", GONE.values(), ids=GONE)
def test_a_file_that_went_long_before_it_was_looked_at_is_withdrawn_at_once(file, clock, go):
    value = reloaded(file, clock, if_missing="nothing")
    go(file)
    clock.passed = 3600
    assert value.current() == "nothing"


@pytest.mark.parametrize("go", GONE.values(), ids=GONE)
def test_a_clock_that_is_set_back_does_not_prolong_what_is_gone(file, clock, go):
    value = reloaded(file, clock, if_missing="nothing")
    go(file)
    assert value.current() == "first"
    clock.passed = -3600
    assert value.current() == "nothing"


def test_what_was_withdrawn_does_not_come_back_with_a_file_that_is_wrong(file, clock, caplog):
    value = reloaded(file, clock, if_missing="nothing")
    file.unlink()
    clock.passed = GRACE_S + 1
    assert value.current() == "nothing"
    replace(file, "wrong")
    assert value.current() == "nothing"
    assert "the old file is withdrawn: option: wrong" in caplog.text


@pytest.mark.parametrize("go", GONE.values(), ids=GONE)
def test_without_a_value_for_files_that_are_gone_the_old_one_stays(file, clock, caplog, go):
    value = reloaded(file, clock)
    go(file)
    for clock.passed in range(0, 600, 10):
        assert value.current() == "first"
    assert 9 <= caplog.text.count("the old files stay in use") <= 11


def test_a_wrong_file_changes_nothing_and_is_named_now_and_then(file, clock, caplog):
    value = reloaded(file, clock, if_missing="nothing")
    replace(file, "wrong")
    for clock.passed in range(0, 600, 10):
        assert value.current() == "first"
    assert 9 <= caplog.text.count("the old files stay in use: option: wrong") <= 11
    replace(file, "wrong again")
    assert value.current() == "first"
    assert "option: wrong again" in caplog.text


def test_a_mode_that_is_mended_is_noticed(file, clock, caplog):
    value = reloaded(file, clock)
    replace(file, "second")
    file.chmod(0o604)
    assert value.current() == "first"
    assert "is open to every user" in caplog.text
    file.chmod(0o600)
    assert value.current() == "second"


def test_a_cause_beside_the_file_that_is_mended_is_noticed(file, clock):
    error = []

    def load():
        if error:
            message = "option: too many open files"
            raise ConfigError(message)
        return file.read_text()

    value = ReloadingFile((file,), load, clock=clock)
    replace(file, "second")
    error.append(True)
    assert value.current() == "first"
    error.clear()
    clock.passed = 2
    assert value.current() == "second"


def test_a_file_with_an_older_time_and_the_same_size_is_read(file, clock):
    value = reloaded(file, clock)
    status = file.stat()
    file.write_text("other")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert value.current() == "other"


def test_a_file_that_is_replaced_all_the_time_is_never_gone(file):
    value, done = reloaded(file, lambda: 0.0, if_missing="nothing"), threading.Event()

    def work():
        for number in range(300):
            replace(file, f"number {number}")
        done.set()

    worker = threading.Thread(target=work)
    worker.start()
    seen = set()
    while not done.is_set():
        seen.add(value.current())
    worker.join()
    assert "nothing" not in seen
    assert value.current() == "number 299"
