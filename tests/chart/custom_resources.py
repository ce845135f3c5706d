"""What others' operators take: their own definitions, as published with their Go modules, less the prose.

`python -m tests.chart.custom_resources` writes them anew, of the versions below; it needs Go.
"""

from __future__ import annotations

import functools
import json
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import yaml
from jsonschema.exceptions import best_match

Object = dict[str, Any]

DEFINITIONS = Path(__file__).parent / "custom"
MODULES = {
    "github.com/cert-manager/cert-manager@v1.21.2": (
        "deploy/crds/cert-manager.io_certificates.yaml",
        "deploy/crds/cert-manager.io_issuers.yaml",
    ),
    "github.com/kedacore/keda/v2@v2.21.0": ("config/crd/bases/keda.sh_scaledobjects.yaml",),
    "sigs.k8s.io/gateway-api@v1.4.0": (
        "config/crd/standard/gateway.networking.k8s.io_grpcroutes.yaml",
        "config/crd/standard/gateway.networking.k8s.io_httproutes.yaml",
    ),
    "github.com/prometheus-operator/prometheus-operator@v0.85.0": (
        "example/prometheus-operator-crd/monitoring.coreos.com_podmonitors.yaml",
        "example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml",
        "example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml",
    ),
}
"""Where each definition comes from; all of them are under the Apache License 2.0."""


def validate(custom: Object) -> None:
    """Raises jsonschema.ValidationError where its operator would refuse the object, or drop a field of it."""
    checker = jsonschema.Draft202012Validator(_schemas()[custom["apiVersion"], custom["kind"]])
    found = best_match(checker.iter_errors(custom))
    if found is not None:
        raise found


@functools.cache
def _schemas() -> dict[tuple[str, str], Object]:
    """By apiVersion and kind."""
    found: dict[tuple[str, str], Object] = {}
    for file in DEFINITIONS.glob("*.json"):
        spec = json.loads(file.read_text(encoding="utf-8"))["spec"]
        for version in filter(lambda each: each["served"], spec["versions"]):
            key = (f"{spec['group']}/{version['name']}", spec["names"]["kind"])
            found[key] = _strict(version["schema"]["openAPIV3Schema"], whole=True)
    return found


def _strict(schema: Object, *, whole: bool = False) -> Object:
    """As JSON Schema, with unknown fields refused, which an API server only drops."""
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    strict = {key: value for key, value in schema.items() if not key.startswith("x-kubernetes-")}
    if "items" in strict:
        strict["items"] = _strict(strict["items"])
    if isinstance(strict.get("additionalProperties"), dict):
        strict["additionalProperties"] = _strict(strict["additionalProperties"])
    if "properties" in strict:
        strict["properties"] = {name: _strict(each) for name, each in strict["properties"].items()}
        if whole:  # which the API server knows by itself
            strict["properties"]["metadata"] = {"type": "object"}
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            strict.setdefault("additionalProperties", False)
    if strict.pop("nullable", False) and "type" in strict:
        strict["type"] = [strict["type"], "null"]
    return strict


def _without_prose(node: Any) -> Any:
    """A definition without descriptions; a field of that name, whose value is a schema, stays."""
    if isinstance(node, dict):
        return {
            key: _without_prose(value)
            for key, value in node.items()
            if not (key == "description" and isinstance(value, str))
        }
    return [_without_prose(each) for each in node] if isinstance(node, list) else node


def main() -> None:
    """Write every definition."""
    DEFINITIONS.mkdir(exist_ok=True)
    for module, paths in MODULES.items():
        done = subprocess.run(["go", "mod", "download", "-json", module], check=True, capture_output=True, text=True)
        folder = Path(json.loads(done.stdout)["Dir"])
        for path in paths:
            definition = _without_prose(yaml.safe_load((folder / path).read_text(encoding="utf-8")))
            file = DEFINITIONS / f"{Path(path).stem}.json"
            file.write_text(json.dumps(definition, sort_keys=True, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
