import importlib.util
import textwrap
from types import SimpleNamespace

import pytest
import yaml
from chairlift.api.config import checked
from chairlift.api.errors import ConfigError
from chairlift.ray.policy import Tokens
from chairlift.ray.settings import RaySettings

from tests.cli.pages import ROOT, blocks


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"server": {"max_num_sequences": 4}}, "max_num_sequences"),
        ({"server": {"listen": "0.0.0.0:1"}}, "server.listen"),
        ({"server": {"tls_client_ca": "ca.pem"}}, "server.tls_client_ca"),
        ({"num_replicas": 9, "max_replicas": 8}, "num_replicas: expected 1 to 8, got 9"),
        ({"replicas": 2}, "replicas"),
    ],
)
def test_a_setting_that_is_wrong_is_refused_by_its_name(settings, message):
    with pytest.raises(ConfigError, match=message):
        checked(RaySettings, **settings)


def test_settings_of_the_server_go_to_engines_and_what_callers_see_to_the_ingress():
    settings = checked(
        RaySettings, server={"max_num_seqs": 4, "max_receive_bytes": 4096, "drain_grace_s": 2.0}
    )
    engine, ingress = settings.configs()
    assert engine.max_num_seqs == 4
    assert ingress.max_receive_bytes == 4096
    assert settings.shutdown_s == 17.0


def test_engines_that_ask_for_a_token_need_one_for_the_ingress(tmp_path, monkeypatch):
    settings = checked(RaySettings, server={"auth_tokens": str(tmp_path / "tokens")})
    monkeypatch.delenv("CHAIRLIFT_TOKEN", raising=False)
    with pytest.raises(ConfigError, match="CHAIRLIFT_TOKEN"):
        _ = settings.security
    monkeypatch.setenv("CHAIRLIFT_TOKEN", "secret")
    assert settings.security.token == "secret"


@pytest.mark.parametrize(("tokens", "expected"), [(0, 1), (999, 1), (1001, 2), (10**9, 8)])
def test_the_number_of_engines_follows_waiting_and_running_tokens(tokens, expected):
    context = SimpleNamespace(
        aggregated_metrics={"waiting_tokens": {"a": tokens, "b": 0}, "running_tokens": {"a": 0}},
        capacity_adjusted_min_replicas=1,
        capacity_adjusted_max_replicas=8,
    )
    assert Tokens(target_tokens=1000)(context)[0] == expected


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")
@pytest.mark.filterwarnings("ignore")
def test_ray_takes_the_application_and_its_policy():
    from chairlift.ray import build
    from ray.serve.config import AutoscalingPolicy

    assert build({"model": "demo", "num_replicas": "2", "max_replicas": "4"}) is not None
    policy = AutoscalingPolicy(
        policy_function="chairlift.ray.policy:Tokens", policy_kwargs={"target_tokens": 10}
    )
    assert policy.policy_kwargs == {"target_tokens": 10}


def test_the_settings_that_docs_ray_md_shows_are_settings():
    found = [block.code for block in blocks(ROOT / "docs" / "ray.md") if block.kind == "yaml"]
    whole, remote = (yaml.safe_load(textwrap.dedent(code)) for code in found)
    (application,) = whole["applications"]
    settings = checked(RaySettings, **{**application["args"], **remote})
    assert (settings.max_replicas, settings.engine_host) == (8, "node")
