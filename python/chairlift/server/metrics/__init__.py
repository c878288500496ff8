"""The Prometheus metrics of a server; docs/reference/metrics.md lists them."""

from chairlift.server.metrics.activity import TenantFigures
from chairlift.server.metrics.deliveries import FIRST_TOKEN_S, TOKEN_S, Deliveries
from chairlift.server.metrics.instruments import Metrics
from chairlift.server.metrics.load import ServedModel
from chairlift.server.metrics.tenants import MAX_NAMES, OTHER, TenantLabels
from chairlift.server.metrics.vllm import AdapterRequests

__all__ = [
    "FIRST_TOKEN_S",
    "MAX_NAMES",
    "OTHER",
    "TOKEN_S",
    "AdapterRequests",
    "Deliveries",
    "Metrics",
    "ServedModel",
    "TenantFigures",
    "TenantLabels",
]
