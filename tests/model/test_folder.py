"""Which names are models, found without torch."""

import huggingface_hub
import pytest
from chairlift.errors import ModelError
from chairlift.model.folder import check_model, resolve_model


def test_a_local_folder_is_a_model(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    check_model(str(tmp_path))
    assert resolve_model(str(tmp_path)) == tmp_path


def test_a_folder_without_a_configuration_is_no_model(tmp_path):
    with pytest.raises(ModelError, match=r"it has no config\.json"):
        check_model(str(tmp_path))


ODD_NAMES = ["x" * 10_000, "~no-such-user/model", "a\0b", "\udcff", "a\nb"]


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


def test_a_cached_hub_model_needs_no_network(offline_hub):
    revision = "0" * 40
    repository = offline_hub / "models--owner--name"
    snapshot = repository / "snapshots" / revision
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(revision)
    check_model("owner/name")
    assert resolve_model("owner/name") == snapshot


@pytest.mark.parametrize("find", [check_model, resolve_model])
def test_a_hub_model_out_of_reach_is_one_line(offline_hub, find):
    with pytest.raises(ModelError, match="owner/name: ") as error:
        find("owner/name")
    assert "\n" not in str(error.value)
