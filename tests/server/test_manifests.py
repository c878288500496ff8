"""The manifests for Kubernetes: valid, of one piece, and about the server that there is."""

import copy
import json
import os
import re
import urllib.request

import pytest
import yaml
from chairlift.server.protocols.stubs import vllm_engine_pb2
from chairlift.v1 import generation_pb2, server_pb2, tokenizer_pb2

from tests.clients.gateways import proxies
from tests.forked import run_python
from tests.server.connection import start
from tools.check_deploy.manifests import (
    core_parts,
    crd_schemas,
    documents,
    kind_of,
    own_schemas,
    schema_problems,
)

SCHEMAS = own_schemas()
ALL = list(documents(proxies.MANIFESTS))
OTHERS = [(name, document) for name, document in ALL if kind_of(document) in SCHEMAS]
CORE_GROUPS = {"v1", "apps/v1", "autoscaling/v2", "networking.k8s.io/v1", "policy/v1"}
CORE_GROUPS |= {"rbac.authorization.k8s.io/v1"}


def of_kind(kind):
    return [document for _, document in ALL if document["kind"] == kind]


def only(kind, name=None):
    (document,) = (one for one in of_kind(kind) if name is None or one["metadata"]["name"] == name)
    return document


def problems_of(document):
    return [str(problem) for problem in schema_problems("manifest", document, SCHEMAS)]


def pods():
    """Specifications of pods, with a name for each."""
    for _, document in ALL:
        if document["kind"] in ("Deployment", "LeaderWorkerSet", "LLMInferenceService"):
            spec = document["spec"]
            if document["kind"] == "LeaderWorkerSet":
                for name in ("leaderTemplate", "workerTemplate"):
                    if name in spec["leaderWorkerTemplate"]:
                        group = document["metadata"]["name"], name
                        yield " ".join(group), spec["leaderWorkerTemplate"][name]["spec"]
            elif document["kind"] == "LLMInferenceService":
                yield document["kind"], spec["template"]
            else:
                yield document["metadata"]["name"], spec["template"]["spec"]


def servers():
    """Containers that run a server, with their pod and its name."""
    for name, pod in pods():
        for container in pod["containers"] + pod.get("initContainers", []):
            if container["image"].startswith("chairlift:") and container["args"][0] != "rank":
                yield name, pod, container


SERVERS = list(servers())
NAMES = [name for name, _, _ in SERVERS]
UNPOOLED = ("chairlift", "application", "chairlift-hosts leaderTemplate")
POOLED = [entry for entry in SERVERS if entry[0] not in UNPOOLED]


def test_every_kind_is_of_kubernetes_or_has_a_schema_here():
    assert {kind for _, kind in map(kind_of, [d for _, d in OTHERS])} == {
        *("InferencePool", "HTTPRoute", "LeaderWorkerSet"),
        *("LLMInferenceService", "EndpointPickerConfig"),
    }
    for name, document in ALL:
        if kind_of(document) not in SCHEMAS:
            assert document["apiVersion"] in CORE_GROUPS, name


@pytest.mark.parametrize(("name", "document"), OTHERS, ids=[d["kind"] for _, d in OTHERS])
def test_a_manifest_is_valid(name, document):
    assert problems_of(document) == []


@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        ("InferencePool", "spec.targetPort", [{"number": 8000}]),
        ("InferencePool", "spec.targetPorts.0.number", 70_000),
        ("InferencePool", "spec.targetPorts", []),
        ("InferencePool", "spec.appProtocol", "grpc"),
        ("InferencePool", "spec.endpointPickerRef.failureMode", "FailClosed"),
        ("InferencePool", "spec.endpointPickerRef.port", None),
        ("InferencePool", "spec.selector", {"app": "chairlift"}),
        ("InferencePool", "apiVersion", None),
        ("HTTPRoute", "spec.rules.0.backend", []),
        ("HTTPRoute", "spec.rules.0.matches.0.path.type", "Prefix"),
        ("HTTPRoute", "spec.rules.0.timeouts.request", "forever"),
        ("HTTPRoute", "spec.hostnames.0", "https://chairlift.example.com"),
        ("LeaderWorkerSet", "spec.leaderWorkerTemplate.restartPolicy", "Never"),
        ("LeaderWorkerSet", "spec.leaderWorkerTemplate.workerTemplate", None),
        ("LeaderWorkerSet", "spec.leaderWorkerTemplate.workerTemplate.pod", {}),
        ("LeaderWorkerSet", "spec.leaderWorkerTemplate.size", 0),
        ("LeaderWorkerSet", "spec.size", 1),
        ("LLMInferenceService", "spec.model.uri", None),
        ("LLMInferenceService", "spec.router.scheduler.configuration", {}),
        ("EndpointPickerConfig", "plugins.0.kind", "queue-scorer"),
        ("EndpointPickerConfig", "schedulingProfiles.0.plugins.0.weight", "high"),
        ("EndpointPickerConfig", "schedulingProfiles", None),
    ],
)
def test_a_wrong_field_is_found(kind, path, value):
    document = copy.deepcopy(next(d for _, d in OTHERS if d["kind"] == kind))
    *way, last = (int(part) if part.isdigit() else part for part in path.split("."))
    place = document
    for part in way:
        place = place[part]
    if value is None:
        del place[last]
    else:
        place[last] = value
    # A document of an unknown version has no schema, which `make check-deploy` reports.
    assert problems_of(document) if last != "apiVersion" else kind_of(document) not in SCHEMAS


def test_the_definitions_of_a_cluster_refuse_what_they_do_not_know(tmp_path):
    lift = {
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": {
                "type": "object",
                "properties": {
                    "seats": {"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}]},
                    "default": {"type": "string", "default": "up", "format": "word"},
                    "free": {
                        "type": "object",
                        "properties": {"known": {"type": "integer"}},
                        "x-kubernetes-preserve-unknown-fields": True,
                    },
                },
                "anyOf": [{"required": ["seats"]}, {"properties": {"default": {"enum": ["up"]}}}],
            },
        },
    }
    version = {"name": "v1", "schema": {"openAPIV3Schema": lift}}
    spec = {"group": "lifts.example", "names": {"kind": "Lift"}, "versions": [version]}
    definition = {"kind": "CustomResourceDefinition", "spec": spec}
    listed = {"kind": "List", "items": [definition]}
    (tmp_path / "crds.yaml").write_text(yaml.safe_dump(listed))
    schemas = crd_schemas(tmp_path)

    def problems(**spec):
        document = {"apiVersion": "lifts.example/v1", "kind": "Lift", "metadata": {}, "spec": spec}
        return [problem.path for problem in schema_problems("lift", document, schemas)]

    assert problems(seats="25%", default="up", free={"anything": 1, "known": 2}) == []
    assert problems(seats=2, chairs=4) == ["spec"]
    assert problems(seats=[2]) == ["spec.seats"]
    assert problems(free={"known": "2"}) == ["spec.free.known"]


def test_pods_in_resources_of_others_are_checked_as_those_of_kubernetes():
    checked = [
        (document["kind"], path)
        for _, document in ALL
        for path, _ in core_parts(document, SCHEMAS)
        if path
    ]
    assert checked == [
        ("LeaderWorkerSet", "spec.leaderWorkerTemplate.workerTemplate.spec"),
        ("LLMInferenceService", "spec.template"),
        ("LeaderWorkerSet", "spec.leaderWorkerTemplate.leaderTemplate.spec"),
        ("LeaderWorkerSet", "spec.leaderWorkerTemplate.workerTemplate.spec"),
    ]


@pytest.mark.parametrize(("name", "pod", "container"), SERVERS, ids=NAMES)
def test_variables_of_a_container_are_settings_of_the_server(name, pod, container, tmp_path):
    assert container["args"][0] == "serve"
    given = {entry["name"]: entry["value"] for entry in container["env"]}
    plain = {k: v for k, v in os.environ.items() if not k.startswith("CHAIRLIFT_")}
    command = ["-m", "chairlift", *container["args"], "--print-config"]
    ran = run_python(*command, env=plain | given, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    for variable in given:
        assert variable in ran.stdout, f"{variable} is no setting"


@pytest.mark.parametrize(("name", "pod", "container"), POOLED, ids=[n for n, _, _ in POOLED])
def test_a_server_behind_the_proxy_is_reached_through_it_alone(name, pod, container):
    variables = {entry["name"]: entry["value"] for entry in container["env"]}
    config = proxies.beside_server(8000, {"grpc": 1, "http": 2, "metrics": 3})
    shipped = json.dumps(only("ConfigMap", "chairlift-proxy")["data"]["envoy.yaml"])
    for setting in ("CHAIRLIFT_LISTEN", "CHAIRLIFT_HTTP_LISTEN", "CHAIRLIFT_METRICS_LISTEN"):
        host, port = variables[setting].split(":")
        assert host == "127.0.0.1"
        assert f"address: {host}, port_value: {port}" in shipped
    assert config["static_resources"]["listeners"]
    assert "address: 0.0.0.0, port_value: 8000" in shipped
    # A page on loopback would be open to all that the gateway lets in.
    assert variables["CHAIRLIFT_PAGE"] == "off"
    (proxy,) = pod["initContainers"]
    assert proxy["restartPolicy"] == "Always", "a sidecar ends after the server"
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert volumes["proxy"] == {"name": "proxy", "configMap": {"name": "chairlift-proxy"}}
    for probe in ("startupProbe", "readinessProbe"):
        if name != "LLMInferenceService":
            assert container[probe]["httpGet"] == {"path": "/health", "port": 8000}


def test_ports_labels_and_names_of_all_parts_agree():
    pool = only("InferencePool")["spec"]
    (target,) = pool["targetPorts"]
    assert target["number"] == 8000
    deployment, group = (
        only("Deployment", "chairlift-pool"),
        only("LeaderWorkerSet", "chairlift-pool"),
    )
    templates = [
        deployment["spec"]["template"],
        group["spec"]["leaderWorkerTemplate"]["workerTemplate"],
    ]
    (engine,) = plugins()["core-metrics-extractor"]["parameters"]["engineConfigs"]
    for template in templates:
        labels, notes = template["metadata"]["labels"], template["metadata"]["annotations"]
        assert pool["selector"]["matchLabels"].items() <= labels.items()
        assert labels["llm-d.ai/engine-type"] == engine["name"]
        assert notes["prometheus.io/port"] == str(target["number"])
    policy = only("NetworkPolicy", "chairlift-pool")["spec"]
    assert policy["podSelector"]["matchLabels"] == pool["selector"]["matchLabels"]
    assert [port["port"] for rule in policy["ingress"] for port in rule["ports"]] == [8000]
    service = only("Service", pool["endpointPickerRef"]["name"])["spec"]
    picker = only("Deployment", "chairlift-picker")["spec"]["template"]
    assert service["ports"][0]["port"] == pool["endpointPickerRef"]["port"]["number"]
    assert service["selector"].items() <= picker["metadata"]["labels"].items()
    arguments = picker["spec"]["containers"][0]["args"]
    assert f"--pool-name={only('InferencePool')['metadata']['name']}" in arguments
    assert f"--grpc-port={service['ports'][0]['port']}" in arguments
    scaled = only("HorizontalPodAutoscaler")["spec"]["scaleTargetRef"]
    assert scaled["name"] == deployment["metadata"]["name"]


def test_a_group_of_hosts_is_of_one_piece(tmp_path):
    group = only("LeaderWorkerSet", "chairlift-hosts")["spec"]["leaderWorkerTemplate"]
    leader, worker = (group[f"{name}Template"] for name in ("leader", "worker"))
    (server,), (rank,) = (template["spec"]["containers"] for template in (leader, worker))
    given = {entry["name"]: entry["value"] for entry in server["env"]}
    assert given["CHAIRLIFT_TENSOR_PARALLEL"] == str(group["size"])
    # The worker takes what Kubernetes and its variables give: it misses the key alone.
    variables = {entry["name"]: entry["value"] for entry in rank["env"]}
    assert variables["CHAIRLIFT_RANK_KEY"] == given["CHAIRLIFT_RANK_KEY"]
    variables |= {"LWS_LEADER_ADDRESS": "chairlift-hosts-0", "LWS_WORKER_INDEX": "1"}
    plain = {k: v for k, v in os.environ.items() if not k.startswith("CHAIRLIFT_")}
    ran = run_python("-m", "chairlift", *rank["args"], env=plain | variables, cwd=tmp_path)
    assert ran.returncode == 2
    assert "/key/ranks.key: No such file or directory" in ran.stderr
    labels = leader["metadata"]["labels"]
    service = only("Service", "chairlift-hosts-server")["spec"]
    assert service["selector"].items() <= labels.items()
    policy = only("NetworkPolicy", "chairlift-hosts")["spec"]
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    open_ports = {port["port"] for rule in policy["ingress"] for port in rule.get("ports", [])}
    assert open_ports == {port["port"] for port in service["ports"]}


def test_the_route_names_what_the_server_serves_and_nothing_more():
    services = [
        generation_pb2.DESCRIPTOR.services_by_name["GenerationService"],
        server_pb2.DESCRIPTOR.services_by_name["ServerService"],
        tokenizer_pb2.DESCRIPTOR.services_by_name["TokenizerService"],
        vllm_engine_pb2.DESCRIPTOR.services_by_name["VllmEngine"],
    ]
    known = {f"/{service.full_name}" for service in services} | {"/v1"}
    known |= {
        f"/{service.full_name}/{method.name}" for service in services for method in service.methods
    }
    to_pool, past_it = only("HTTPRoute")["spec"]["rules"]
    for rule in (to_pool, past_it):
        assert {match["path"]["value"] for match in rule["matches"]} <= known
    assert to_pool["backendRefs"][0]["name"] == only("InferencePool")["metadata"]["name"]
    (backend,) = past_it["backendRefs"]
    assert only("Service", backend["name"])["spec"]["ports"][0]["port"] == backend["port"]
    # A stream of many requests does not end: a picker that waits for its end never answers.
    paths = [match["path"] for match in to_pool["matches"]]
    exact = [path for path in paths if path["type"] == "Exact"]
    assert exact == [{"type": "Exact", "value": "/chairlift.v1.GenerationService/GenerateOne"}]
    assert not [path for path in paths if path["value"].endswith("GenerationService")]


def plugins():
    config = next(one for one in of_kind("EndpointPickerConfig") if "requestHandler" in one)
    return {plugin["type"]: plugin for plugin in config["plugins"]}


@pytest.mark.parametrize("config", of_kind("EndpointPickerConfig"))
def test_a_picker_refers_to_plugins_that_it_declares(config):
    declared = {plugin.get("name", plugin["type"]) for plugin in config["plugins"]}
    named = [p["pluginRef"] for profile in config["schedulingProfiles"] for p in profile["plugins"]]
    parsers = [p["pluginRef"] for p in config.get("requestHandler", {}).get("parsers", [])]
    assert {*named, *parsers} <= declared
    # What stands behind a parser that claims every path is never asked.
    assert "passthrough-parser" not in parsers[:-1]


@pytest.fixture
async def exposed(serve, free_port, tmp_path):
    """Names of metrics that a server with room for adapters exposes after a request."""
    room = {"adapter_folder": str(tmp_path), "max_adapters": 1}
    async with serve(server={"metrics_listen": f"127.0.0.1:{free_port}"}, **room) as server:
        await server.say(start("a"))
        with urllib.request.urlopen(f"http://127.0.0.1:{free_port}/metrics") as response:
            text = response.read().decode()
    return {re.split(r"[ {]", line)[0] for line in text.splitlines() if not line.startswith("#")}


async def test_picker_and_autoscaler_name_metrics_that_the_server_has(exposed):
    (engine,) = plugins()["core-metrics-extractor"]["parameters"]["engineConfigs"]
    specs = [value for name, value in engine.items() if name.endswith("Spec")]
    specs += [one["metricSpec"] for one in engine["customMetrics"]]
    assert len(specs) == 6
    assert set(specs) <= exposed

    rules = yaml.safe_load(only("ConfigMap", "chairlift-adapter-rules")["data"]["config.yaml"])
    named = set()
    for rule in rules["rules"]:
        series = re.match(r"[a-z_]+", rule["seriesQuery"])[0]
        assert series in exposed
        name = rule.get("name", {"matches": "(.*)", "as": "${1}"})
        named.add(re.sub(name["matches"], name["as"].replace("${1}", r"\1"), series))
    metrics = only("HorizontalPodAutoscaler")["spec"]["metrics"]
    assert {one["pods"]["metric"]["name"] for one in metrics} == named
