"""Write docs/configuration.md: every setting of every process."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel

from aggregator.all_settings import AllSettings
from aggregator.settings import aggregator
from aggregator.wings.scaler import settings as scaler
from helm.generate.schema import CHART_SETS
from k8s.pod.help import described
from k8s.pod.setting_names import Leaf, element_of, leaves
from modelserver import settings as modelserver
from modelserver.all_settings import AllModelServerSettings

_HEAD = """\
# Configuration

<!-- Generated from the settings of the code by `make chart`: change it there. -->

Every process takes settings from its environment, then from the YAML file of `--config`, then from these defaults. With
an unknown name it does not start, and names the nearest known one. In the file, groups are mappings and names are in
lower case:

    batching:
      token_budget: 1024

In the environment the same setting is `TOKENBATCH_AGGREGATOR_BATCHING__TOKEN_BUDGET=1024`; lists and mappings are JSON
there. `--help` prints all settings, `--show-settings` those in force, secrets masked. `--check` tries every file,
folder, port, name, broker, right and server that they name, says in a line each what is wrong and what to do, and exits
with 1 if anything is. It takes at most five seconds beside the start of the program, and creates nothing that stays.
The model server's also reads its model's files.

OpenTelemetry's own variables (`OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_SERVICE_NAME` and others) apply as well.

In the Helm chart the same names are under `aggregator.config`, `modelServer.config`, `scaler.config`,
`kafka.config`, `redis.config` and `batches.config`. The chart itself sets those with a † (ports, addresses, mounted
files), and its values do not take them. They also do not take `password`, `password_file` and `token_file` of
`kafka.sasl` and `redis.user`, `jwks_file` of `grpc.authentication.jwt`, and `cache` of `tokenizer` and `profile`.
"""

_PROCESSES: tuple[tuple[str, str, type[BaseModel], str], ...] = (
    ("Aggregator", "aggregator", AllSettings, aggregator.ENV_PREFIX),
    ("Model server", "modelserver", AllModelServerSettings, modelserver.ENV_PREFIX),
    ("Scaler", "aggregator scaler", scaler.ScalerSettings, scaler.ENV_PREFIX),
)


def configuration_md() -> str:
    return _HEAD + "".join(f"{line}\n" for process in _PROCESSES for line in _process(*process))


def _process(title: str, module: str, settings: type[BaseModel], prefix: str) -> Iterator[str]:
    yield ""
    yield f"## {title}"
    yield ""
    yield f"`python -m {module}`; variables begin with `{prefix}`."
    group: tuple[str, ...] | None = None
    for leaf in leaves(settings):
        if title != "Aggregator" and leaf.path[0] == "kafka":
            continue
        if leaf.path[:-1] != group:
            group = leaf.path[:-1]
            yield ""
            if group:
                yield f"### {title}: `{'.'.join(group)}`"
                yield ""
            yield "| setting | takes | default | what it is |"
            yield "|---|---|---|---|"
        yield from _rows(leaf, by_chart=_set_by_chart(module.rpartition(" ")[2], leaf.path))
    if title != "Aggregator" and "kafka" in settings.model_fields:
        yield ""
        yield "The group `kafka` is the aggregator's: the scaler reads the same topics and its group's offsets."


def _set_by_chart(process: str, path: tuple[str, ...]) -> bool:
    """Whether the chart sets it itself, or its group, so that its values do not take it."""
    process, path = (path[0], path[1:]) if path[0] in {"kafka", "redis", "batches"} else (process, path)
    return any(".".join(path[:length]) in CHART_SETS[process] for length in range(1, len(path) + 1))


def _rows(leaf: Leaf, *, by_chart: bool) -> Iterator[str]:
    yield _row(".".join(leaf.path), leaf, by_chart=by_chart)
    element = element_of(leaf.field.annotation)
    for part in leaves(element) if element is not None else ():
        yield _row(f"{'.'.join(leaf.path)}[].{'.'.join(part.path)}", part, by_chart=by_chart)


def _row(name: str, leaf: Leaf, *, by_chart: bool) -> str:
    kind, default = described(leaf)
    given = "**required**" if default is None else default if default == "empty" else f"`{default}`"
    return f"| `{name}`{' †' * by_chart} | {_cell(kind)} | {_cell(given)} | {_cell(leaf.field.description or '')} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
