"""Make the chart's values.schema.json from values.yaml and from the settings of the processes that it installs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from aggregator.all_settings import AllSettings
from aggregator.settings.aggregator import KafkaSettings
from aggregator.wings.batches.settings import BatchesSettings
from aggregator.wings.redis.settings import RedisSettings
from aggregator.wings.scaler.settings import ScalerSettings
from modelserver.all_settings import AllModelServerSettings

Schema = dict[str, Any]

SETTINGS: dict[str, type[BaseModel]] = {
    "kafka": KafkaSettings,
    "redis": RedisSettings,
    "batches": BatchesSettings,
    "aggregator": AllSettings,
    "modelserver": AllModelServerSettings,
    "scaler": ScalerSettings,
}

# What the chart sets itself: ports that Services and probes name, files that it mounts, addresses that it knows.
CHART_SETS: dict[str, frozenset[str]] = {
    "kafka": frozenset(
        {"enabled", "bootstrap_servers", "ssl"} | {"sasl.password", "sasl.password_file", "sasl.token_file"}
    ),
    "redis": frozenset({"enabled", "servers", "tls", "user.password", "user.password_file"}),
    "batches": frozenset({"store"}),
    "aggregator": frozenset(
        {"kafka", "redis", "batches", "models", "grpc.bind", "grpc.tls", "http.bind", "demand"}
        | {"grpc.authentication.tokens_file", "grpc.authentication.jwt.jwks_file"}
        | {"telemetry.metrics_bind", "tenants.aggregators", "tokenizer.cache"}
    ),
    "modelserver": frozenset(
        {"model.path", "model.name", "model.revision", "grpc.bind", "telemetry.metrics_bind", "profile.cache"}
    ),
    "scaler": frozenset({"kafka", "models", "aggregators.addresses", "peers", "api", "keda", "telemetry.metrics_bind"}),
}

_VALUES = Path(__file__).parents[1] / "tokenbatch/values.yaml"
_DEFINITIONS = Path(__file__).with_name("definitions.yaml")
_LINE = re.compile(r"(?P<indent> *)(?:# @schema (?P<said>\{.*\})|(?P<name>\w+):)")
_OF_TEXT = re.compile(r"(labels|annotations|nodeSelector)$", re.IGNORECASE)
_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string"}


def values_schema() -> Schema:
    """JSON Schema, draft 7, which the validators of Helm 3 and Helm 4 both know."""
    text = _VALUES.read_text(encoding="utf-8")
    whole = _group(yaml.safe_load(text), (), dict(_said(text.splitlines())))
    definitions: Schema = yaml.safe_load(_DEFINITIONS.read_text(encoding="utf-8"))
    definitions["ModelServer"] = whole["properties"]["modelServer"]
    for name in ("Canary", "Model"):
        definitions[name]["properties"] |= definitions["ModelServer"]["properties"]
    for name, settings in SETTINGS.items():
        definitions |= _settings_definitions(name, settings)
    whole["definitions"] = definitions
    whole["required"] = list(whole["properties"])  # each has a default, so it is missing only where null took it away
    whole["properties"]["modelServer"] = {"$ref": "ModelServer"}
    whole["properties"]["global"] = {"type": "object", "description": "read by Helm, not by this chart"}
    whole["properties"]["enabled"] = {"type": "boolean", "description": "for a parent chart's condition"}
    whole["$schema"] = "http://json-schema.org/draft-07/schema#"
    return dict(sorted(_draft7(whole).items()))


def _said(lines: list[str]) -> Iterator[tuple[tuple[str, ...], Schema]]:
    """The schemas in the lines with @schema, by the path of the value below each."""
    path: tuple[str, ...] = ()
    pending: Schema = {}
    for line in lines:
        match = _LINE.match(line)
        if match is None:
            continue
        if match["said"]:
            pending = yaml.safe_load(match["said"])
            continue
        path = (*path[: len(match["indent"]) // 2], match["name"])
        if pending:
            yield path, pending
            pending = {}


def _group(values: Mapping[str, Any], path: tuple[str, ...], said: Mapping[tuple[str, ...], Schema]) -> Schema:
    properties = {name: _value((*path, name), value, said) for name, value in values.items()}
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _value(path: tuple[str, ...], value: Any, said: Mapping[tuple[str, ...], Schema]) -> Schema:
    given = said.get(path, {})
    if "$ref" in given or "type" in given:
        return given
    if isinstance(value, dict):
        text = {"additionalProperties": {"type": "string"}} if _OF_TEXT.search(path[-1]) else {}
        free = not value or text or "additionalProperties" in given
        return {"type": "object", **text, **given} if free else _group(value, path, said)
    if isinstance(value, list):
        return {"type": "array", "items": {"type": "object"}} | given
    least = {"minimum": 0} if type(value) is int else {}
    return {"type": _TYPES[type(value)]} | least | given


def _settings_definitions(name: str, settings: type[BaseModel]) -> Schema:
    whole = settings.model_json_schema(ref_template=f"{name}.{{model}}")
    definitions: Schema = whole.pop("$defs", {})
    for path in sorted(CHART_SETS[name]):
        _drop(whole, definitions, path.split("."))
    text = json.dumps([whole, definitions])
    used = {f"{name}.{key}": value for key, value in definitions.items() if f'"{name}.{key}"' in text}
    return {f"settings.{name}": whole} | used


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
    """Pydantic writes a later draft; values.yaml has the defaults, and null removes a default for Helm."""
    if isinstance(schema, list):
        return [_draft7(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if isinstance(name := schema.get("$ref"), str):
        return {"$ref": f"#/definitions/{name}"}
    changed = {key: _draft7(value) for key, value in schema.items() if key not in {"default", "format", "title"}}
    if "prefixItems" in changed:
        changed["items"] = changed.pop("prefixItems")
    if isinstance(changed.get("properties"), dict):
        changed["properties"] = {key: _draft7(value) for key, value in schema["properties"].items()}
    return changed
