"""Make the chart's values.schema.json from its values and from the settings of the processes it installs."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel

from aggregator.settings.aggregator import AggregatorSettings, KafkaSettings
from helm.generate.values import ChartValues
from k8s.scaler.settings import ScalerSettings
from modelserver.settings import ModelServerSettings

Schema = dict[str, Any]

SETTINGS: dict[str, type[BaseModel]] = {
    "kafka": KafkaSettings,
    "aggregator": AggregatorSettings,
    "modelserver": ModelServerSettings,
    "scaler": ScalerSettings,
}

# What the chart sets itself: ports that Services and probes name, files that it mounts, addresses that it knows.
CHART_SETS: dict[str, frozenset[str]] = {
    "kafka": frozenset(
        {"enabled", "bootstrap_servers", "ssl"} | {"sasl.password", "sasl.password_file", "sasl.token_file"}
    ),
    "aggregator": frozenset(
        {"kafka", "models", "grpc.enabled", "grpc.bind", "grpc.tls", "demand"}
        | {"grpc.authentication.tokens_file", "grpc.authentication.jwt.jwks_file"}
        | {"telemetry.metrics_bind", "tenants.aggregators", "tokenizer.cache"}
    ),
    "modelserver": frozenset(
        {"model.path", "model.name", "model.revision", "grpc.bind", "telemetry.metrics_bind", "profile.cache"}
    ),
    "scaler": frozenset({"kafka", "models", "aggregators.addresses", "peers", "api", "keda", "telemetry.metrics_bind"}),
}


def values_schema() -> Schema:
    """JSON Schema, draft 7, which the validators of Helm 3 and Helm 4 both know."""
    schema = ChartValues.model_json_schema(by_alias=True, ref_template="#/definitions/{model}")
    definitions: Schema = schema.pop("$defs")
    for name in ("Model", "Canary"):
        definitions[name]["properties"] |= definitions["ModelServer"]["properties"]
    for name, settings in SETTINGS.items():
        definitions |= _settings_definitions(name, settings)
    schema["definitions"] = definitions
    schema["required"] = list(schema["properties"])  # each has a default, so it is missing only where null took it away
    schema["properties"]["global"] = {"type": "object", "description": "read by Helm, not by this chart"}
    schema["$schema"] = "http://json-schema.org/draft-07/schema#"
    schema["title"] = "Values of the chart tokenbatch"
    return dict(sorted(_draft7(schema).items()))


def _settings_definitions(name: str, settings: type[BaseModel]) -> Schema:
    """The settings of one process as definitions of their own, without what the chart sets."""
    whole = settings.model_json_schema(ref_template=f"#/definitions/{name}.{{model}}")
    definitions: Schema = whole.pop("$defs", {})
    for path in sorted(CHART_SETS[name]):
        _drop(whole, definitions, path.split("."))
    used = {f"{name}.{key}": value for key, value in definitions.items() if _is_used(key, name, whole, definitions)}
    return {f"settings.{name}": whole} | used


def _is_used(key: str, name: str, whole: Schema, definitions: Schema) -> bool:
    text = json.dumps([whole, definitions])
    return f'"#/definitions/{name}.{key}"' in text


def _drop(whole: Schema, definitions: Schema, path: list[str]) -> None:
    schema = whole
    for group in path[:-1]:
        reference = schema["properties"].get(group)
        if reference is None:
            return
        schema = definitions[reference["$ref"].rpartition(".")[2]]
    schema["properties"].pop(path[-1], None)
    if path[-1] in schema.get("required", ()):
        schema["required"].remove(path[-1])


def _draft7(schema: Any) -> Any:
    """Pydantic writes a later draft; defaults stand in values.yaml, and null takes a default away for Helm."""
    if isinstance(schema, list):
        return [_draft7(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if name := schema.get("settings"):
        return {"$ref": f"#/definitions/settings.{name}"}
    changed = {key: _draft7(value) for key, value in schema.items() if key not in {"default", "format", "title"}}
    if "prefixItems" in changed:
        changed["items"] = changed.pop("prefixItems")
    if isinstance(changed.get("properties"), dict):
        changed["properties"] = {key: _draft7(value) for key, value in schema["properties"].items()}
    return {"$ref": changed["$ref"]} if "$ref" in changed else changed
