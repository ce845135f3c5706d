"""Write the chart's README: how to install it, and every value."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from helm.generate.parts import Hpa
from helm.generate.values import ChartValues, Model
from helm.generate.values_yaml import plain

_HEAD = """\
# Helm chart tokenbatch

<!-- Generated from helm/generate/ by `make chart`: change it there. -->

Batches short texts by their token count between Kafka or gRPC and vLLM embedding servers, and scales those servers by
the token work that is asked of them.

    helm install tokenbatch helm/tokenbatch --set kafka.bootstrapServers=my-kafka:9092
    helm test tokenbatch --logs

Needs Kubernetes 1.29 or newer, Helm 3 or 4, a Kafka, and nodes with GPUs (`modelServer.gpu.count: 0` does without).
[docs/install.md](../../docs/install.md) goes through it, [docs/scaling.md](../../docs/scaling.md) says how the number
of replicas comes about, [docs/configuration.md](../../docs/configuration.md) has the settings that `config` groups
take.

Every pod meets the `restricted` Pod Security Standard. A value that is not in this table is refused.

## Values

| value | default | what it is |
|---|---|---|
"""


def readme_md() -> str:
    """The whole page."""
    return _HEAD + "".join(f"| `{name}` | {default} | {text} |\n" for name, default, text in _rows(ChartValues(), ""))


def _rows(values: BaseModel, prefix: str) -> Iterator[tuple[str, str, str]]:
    for name, field in type(values).model_fields.items():
        path = f"{prefix}{field.alias}"
        value = getattr(values, name)
        if isinstance(value, BaseModel):
            yield from _rows(value, f"{path}.")
            continue
        yield path, _default(value, isinstance(values, Hpa)), _cell(field.description or "")
        if isinstance(value, list) and value and isinstance(value[0], Model):
            yield from _rows(Model.model_construct(name="-"), f"{path}[].")


def _default(value: Any, temper: bool) -> str:  # noqa: FBT001 - an inner detail of the table
    if temper and isinstance(value, dict):
        return "see values.yaml"
    shown = plain(value)
    return "" if shown in ("", None, {}, [], "-") else f"`{_cell(json.dumps(shown, ensure_ascii=False))}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
