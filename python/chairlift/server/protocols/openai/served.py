"""The names that the field `model` may have: those of the model, and of adapters.

An adapter is named as a model of its own, as other servers have it. Requests of text may name one.
"""

from dataclasses import replace

from chairlift.server.calls.context import ServerContext
from chairlift.server.protocols.openai.job import Job


def served_names(server: ServerContext, tenant: str, value: object) -> tuple[str, ...]:
    """Return the names that the field `model` of a body may have.

    Args:
        server: The state that all calls share.
        tenant: The caller.
        value: The body, which is not checked yet.
    """
    names = server.model_names
    model = value.get("model") if isinstance(value, dict) else None
    if not isinstance(model, str) or model in names:
        return names
    return (*names, model) if server.adapter_loads.may_name(model, tenant) else names


def with_adapter(server: ServerContext, job: Job) -> Job:
    """Return a job whose requests name the adapter that its body calls the model."""
    if job.model in server.model_names:
        return job
    requests = [replace(request, adapter=job.model) for request in job.requests]
    return replace(job, requests=requests)
