"""Try the files, ports, names, brokers and model servers that the settings name, all at once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from aggregator.errors import TokenbatchError
from aggregator.replicas.pool import describe
from aggregator.request.kind import Kind
from aggregator.settings.addresses import DnsAddress, changes, parse
from aggregator.settings.aggregator import AggregatorSettings, GrpcSettings, KafkaSettings
from aggregator.sources.brokers import Trial
from aggregator.sources.calls.certificates import server_context, watch_certificates
from aggregator.wings.check.kafka import check_kafka
from k8s.kube.endpoints import check_access
from k8s.pod import checks
from k8s.pod.addresses import split_server
from k8s.pod.checks import PATIENCE_S, Findings
from k8s.pod.errors import StartError


async def check(
    settings: AggregatorSettings,
    kinds: Sequence[Kind],
    trials: Sequence[Trial],
    authenticate: Callable[[GrpcSettings], object],
    shortage: str,
    *,
    topics: Sequence[KafkaSettings | None],
) -> int:
    """Print what was found; 0 if all of it works, else 1.

    `kinds`: the tasks of this aggregator. `trials`: of further brokers and extensions. `topics`: those that extensions
    read and write. `authenticate` reads the credentials of callers. `shortage`: of files that may be open.
    """
    logging.disable()  # the libraries' lines, which come before the sentence that says what to do
    findings = Findings()
    if shortage:
        findings.warn(shortage)
    checks.environment(findings)
    checks.files(findings, settings, without=[name for name, group in settings.brokers.items() if not group.enabled])
    _credentials(findings, settings, authenticate)
    binds = {"grpc.bind": settings.grpc.bind, "http.bind": settings.http.bind, "demand.bind": settings.demand.bind}
    checks.ports(findings, binds, settings.telemetry.metrics_bind)
    work: list[Awaitable[None]] = []
    kafka = settings.kafka
    if kafka.enabled:
        name = f"kafka {kafka.bootstrap_servers}"
        work.append(findings.within(_broker(findings, name, check_kafka(kafka, PATIENCE_S)), name))
    for own in filter(None, topics):
        name = f"kafka topic {', '.join(topic.name for topic in own.topics)}"
        work.append(findings.within(_broker(findings, name, check_kafka(own, PATIENCE_S, replies=False)), name))
    for name, tried in filter(None, (trial(settings, PATIENCE_S - 1.0) for trial in trials)):
        work.append(findings.within(_broker(findings, name, tried), name))
    for place, model in enumerate(settings.models):
        for number, address in enumerate(model.servers):
            setting = f"models[{place}].servers[{number}]"
            if changes(address):
                serves = _endpoints(address, setting)
            else:
                serves = _serves(findings, kinds, address, model.name, setting)
            work.append(findings.within(serves, f"{address} ({setting})"))
    if changes(settings.tenants.aggregators):
        counted = _endpoints(settings.tenants.aggregators, "tenants.aggregators")
        work.append(findings.within(counted, f"{settings.tenants.aggregators} (tenants.aggregators)"))
    await asyncio.gather(*work)
    return findings.ended


def _credentials(
    findings: Findings, settings: AggregatorSettings, authenticate: Callable[[GrpcSettings], object]
) -> None:
    """The certificates, tokens and keys of callers, as a start reads them."""
    reads: Sequence[Callable[[], object]] = (
        lambda: watch_certificates(settings.grpc.tls, server_context),
        lambda: authenticate(settings.grpc),
    )
    for read in reads:
        try:
            read()
        except StartError as error:
            findings.problem(str(error))


async def _broker(findings: Findings, name: str, asking: Awaitable[Sequence[str]]) -> None:
    for warning in await asking:
        findings.warn(warning)
    findings.good(f"{name}: ok")


async def _serves(findings: Findings, kinds: Sequence[Kind], address: str, model: str, setting: str) -> None:
    """Raises StartError for a model server that is not there, or serves another model."""
    await checks.answers(setting, *split_server(address))
    try:
        found = await describe(address, kinds, PATIENCE_S)
    except TokenbatchError as error:
        raise StartError(f"model server {address} ({setting}): {error}") from None
    findings.good(f"model server {address}: {found.model} {found.model_revision}, {found.dimensions} dimensions")
    if found.model != model:
        raise StartError(f"model server {address} ({setting}) serves {found.model}, not {model}")


async def _endpoints(address: str, setting: str) -> None:
    """Raises StartError for a name without addresses, or a Service whose endpoints may not be listed."""
    parsed = parse(address)
    if isinstance(parsed, DnsAddress):
        await checks.resolves(setting, parsed.name, parsed.port)
    else:
        await check_access(parsed, setting)
