"""What Prometheus reads of one server; docs/operations.md lists the names."""

from chairlift.metrics.instruments import Metrics
from chairlift.metrics.load import LoadSnapshot, ServedModel
from chairlift.metrics.tenants import TenantLabels

__all__ = ["LoadSnapshot", "Metrics", "ServedModel", "TenantLabels"]
