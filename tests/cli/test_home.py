"""Commands under a user id without a name, without HOME: as a container often runs them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

UID = 54_321
AS_UNNAMED = ("unshare", "--user", f"--map-user={UID}", f"--map-group={UID}")
"""A user id that the list of users does not have, with the rights of the one that runs this."""


def can_be_unnamed() -> bool:
    try:
        return (
            subprocess.run([*AS_UNNAMED, "true"], capture_output=True, check=False).returncode == 0
        )
    except OSError:
        return False


pytestmark = pytest.mark.skipif(not can_be_unnamed(), reason="no user namespaces here")


def run(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder; the place for temporary files is below it."""
    temporary = folder / "temporary"
    temporary.mkdir(exist_ok=True)
    return subprocess.run(
        [*AS_UNNAMED, sys.executable, *arguments],
        env={"PATH": os.defpath, "TMPDIR": str(temporary)} | variables,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_models_are_listed_without_a_home(tmp_path):
    done = run(tmp_path, "-m", "chairlift", "models", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert '"demo"' in done.stdout
    # The hub would make a folder called `~` here.
    assert [path.name for path in tmp_path.iterdir()] == ["temporary"]


@pytest.mark.parametrize(
    ("command", "model"), [("serve", "~/model"), ("plan", "~no-such-user/model")]
)
def test_a_home_that_is_unknown_is_an_error_in_one_line(tmp_path, command, model):
    done = run(tmp_path, "-m", "chairlift", command, model)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"error: {model}: not a model folder")
    assert "Traceback" not in done.stderr


FOLDERS = """
from chairlift.api.home import cache_folder, expanded, name_hub_cache
print(cache_folder("models"), expanded("~/x"), expanded("~\\0"))
name_hub_cache()
from huggingface_hub import constants
print(constants.HF_HOME)
"""


@pytest.mark.parametrize(("home", "path"), [({}, "~/x"), ({"HOME": ""}, "/x")])
def test_the_cache_without_a_home_is_a_folder_of_this_user_alone(tmp_path, home, path):
    done = run(tmp_path, "-c", FOLDERS, **home)
    own = tmp_path / "temporary" / f"chairlift-{UID}"
    assert done.stdout.splitlines() == [f"{own}/chairlift/models {path} ~\0", f"{own}/huggingface"]
    assert own.stat().st_mode & 0o777 == 0o700


def test_variables_name_the_cache_without_a_home(tmp_path):
    done = run(tmp_path, "-c", FOLDERS, XDG_CACHE_HOME="/x")
    assert done.stdout.splitlines() == ["/x/chairlift/models ~/x ~\0", "/x/huggingface"]
    done = run(tmp_path, "-c", FOLDERS, HF_HOME="/y", HOME="/z")
    assert done.stdout.splitlines() == ["/z/.cache/chairlift/models /z/x ~\0", "/y"]


def test_a_cache_that_others_can_write_is_not_used(tmp_path):
    own = tmp_path / "temporary" / f"chairlift-{UID}"
    own.mkdir(parents=True)
    own.chmod(0o777)
    done = run(tmp_path, "-m", "chairlift", "kernels", "build", "--arch", "sm_80")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr == (
        "error: compiled kernels: [Errno 1] not a folder that only this user writes:"
        f" '{own}' (XDG_CACHE_HOME names another folder)\n"
    )
