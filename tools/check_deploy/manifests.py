"""Validates manifests: core kinds by the schemas of Kubernetes, others by `schemas/` and by CRDs.

    python -m tools.check_deploy.manifests MANIFESTS [CRDS]

`schemas/` has, for each kind of another project, the fields that the manifests use, written after
its CustomResourceDefinition. A folder of the definitions themselves says more: `kubectl get crds
--output yaml` writes those of a cluster. What they say in CEL (`x-kubernetes-validations`) is not
checked.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import jsonschema
import yaml

KUBERNETES: Final = "1.37"
"""Whose schemas of core kinds are used."""
SCHEMAS: Final = Path(__file__).parent / "schemas"
POD_SPEC: Final = "x-chairlift-pod-spec"
"""In `schemas/`: the value is the specification of a pod, which Kubernetes' own schema checks."""

_CHOICES: Final = {"allOf", "anyOf", "oneOf", "not"}
"""Their schemas say a part of an object: they stay open."""
_NOTES: Final = {"default", "description", "format", "nullable"}

Value = Any
"""What a file of YAML has at any place."""
Document = dict[str, Any]
Kind = tuple[str, str]
"""apiVersion and kind."""


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with one value."""

    document: str
    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.document}: {self.path or '(document)'}: {self.message}"


def main() -> int:
    """Print a line per document, and per problem; return 1 where there is one."""
    folder, definitions = Path(sys.argv[1]), sys.argv[2:]
    schemas = own_schemas()
    full = {k: v for path in definitions for k, v in crd_schemas(Path(path)).items()}
    has_failed = False
    for name, document in documents(folder):
        kind = kind_of(document)
        problems = list(schema_problems(name, document, schemas))
        problems += schema_problems(name, document, full)
        sources = [s for s, known in (("schemas/", schemas), ("a CRD", full)) if kind in known]
        for path, core in core_parts(document, schemas):
            problems += core_problems(name, path, core)
            sources.append(f"Kubernetes {KUBERNETES}{path and f' at {path}'}")
        has_failed |= bool(problems)
        print(f"{name}: {kind[1]}: {'INVALID' if problems else 'valid'} ({', '.join(sources)})")
        for problem in problems:
            print(f"    {problem}")
    return int(has_failed)


def documents(folder: Path) -> Iterator[tuple[str, Document]]:
    """Yield the documents of a folder, with those that are values of others."""
    for path in sorted(folder.glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            yield path.name, document
            for inner in _inner(document):
                yield path.name, inner


def kind_of(document: Document) -> Kind:
    """Return apiVersion and kind."""
    return document.get("apiVersion", ""), document.get("kind", "")


def _inner(value: Value) -> Iterator[Document]:
    """Yield configurations: texts of a ConfigMap, or fields of a resource."""
    if isinstance(value, dict):
        for name, field in value.items():
            if name == "inline" and isinstance(field, dict):
                yield field
            elif isinstance(field, str) and "\nkind: " in field:
                yield yaml.safe_load(field)
            else:
                yield from _inner(field)
    elif isinstance(value, list):
        for one in value:
            yield from _inner(one)


def own_schemas() -> dict[Kind, Document]:
    """Return the schemas of `schemas/`."""
    schemas = {}
    for path in SCHEMAS.glob("*.yaml"):
        entry = yaml.safe_load(path.read_text(encoding="utf-8"))
        schemas[kind_of(entry)] = closed(entry["schema"])
    return schemas


def crd_schemas(folder: Path) -> dict[Kind, Document]:
    """Return the schemas of all versions of the definitions in a folder."""
    schemas = {}
    for path in sorted(folder.glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            for definition in (document or {}).get("items", [document]):
                if kind_of(definition or {})[1] == "CustomResourceDefinition":
                    spec = definition["spec"]
                    for version in spec["versions"]:
                        kind = f"{spec['group']}/{version['name']}", spec["names"]["kind"]
                        schemas[kind] = closed(version["schema"]["openAPIV3Schema"])
    return schemas


def closed(schema: Value) -> Value:
    """Return a schema of Kubernetes as one of JSON that refuses unknown fields.

    A cluster drops them in silence.
    """
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    made = {}
    for name, value in schema.items():
        if name == "properties":
            made[name] = {field: closed(one) for field, one in value.items()}
        elif name in _CHOICES:
            made[name] = value
        elif name not in _NOTES:
            made[name] = closed(value)
    if "properties" in made:
        is_open = schema.get("x-kubernetes-preserve-unknown-fields", False)
        made.setdefault("additionalProperties", is_open)
        if "kind" in made["properties"] and "metadata" in made["properties"]:
            # The definition says no more of it than that it is an object.
            made["properties"]["metadata"] = {"type": "object"}
    return made


def schema_problems(
    name: str, document: Document, schemas: dict[Kind, Document]
) -> Iterator[Problem]:
    """Yield what a schema says against a document; nothing where there is no schema of its kind."""
    schema = schemas.get(kind_of(document))
    if schema is not None:
        for error in jsonschema.Draft202012Validator(schema).iter_errors(document):
            path = ".".join(map(str, error.absolute_path))
            yield Problem(name, path, error.message[:300])


def core_parts(document: Document, schemas: dict[Kind, Document]) -> Iterator[tuple[str, Document]]:
    """Yield the documents that the schemas of Kubernetes check: this one, or the pods in it."""
    schema = schemas.get(kind_of(document))
    if schema is None:
        yield "", document
        return
    for path, spec in _pod_specs(document, schema, ""):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": spec}
        yield path, pod


def _pod_specs(value: Value, schema: Document, path: str) -> Iterator[tuple[str, Document]]:
    if schema.get(POD_SPEC):
        yield path, value
    elif isinstance(value, dict):
        for name, field in schema.get("properties", {}).items():
            if name in value:
                yield from _pod_specs(value[name], field, f"{path}.{name}".lstrip("."))


def core_problems(name: str, path: str, document: Document) -> Iterator[Problem]:
    """Yield what the schema of a core kind says against a document."""
    import kubernetes_validate

    try:
        kubernetes_validate.validate(document, KUBERNETES, strict=True)
    except kubernetes_validate.ValidationError as error:
        where = ".".join(filter(None, [path, *map(str, error.absolute_path)]))
        yield Problem(name, where, error.message[:300])
    except kubernetes_validate.SchemaNotFoundError:
        yield Problem(name, path, f"no schema of {' '.join(kind_of(document))}")


if __name__ == "__main__":
    sys.exit(main())
