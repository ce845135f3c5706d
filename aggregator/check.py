"""Validate settings and connections before a start: what `--check` prints."""

from __future__ import annotations

from aggregator.adapters.addresses import changes
from aggregator.adapters.kafka_connection import check as check_kafka
from aggregator.adapters.modelservers import describe
from aggregator.errors import StartError, TokenbatchError
from aggregator.runtime.settings import as_text
from aggregator.settings import AggregatorSettings


async def check(settings: AggregatorSettings) -> int:
    """Print the settings (secrets masked) and what every connection says; 0 when all is well, else 1."""
    print(as_text(settings))
    problems: list[str] = []
    timeout_s = settings.lifecycle.connect_timeout_s
    if settings.kafka.enabled:
        try:
            for warning in await check_kafka(settings.kafka, timeout_s):
                print(f"warning: {warning}")
            print(f"kafka {settings.kafka.bootstrap_servers}: ok")
        except StartError as error:
            problems.append(str(error))
    for model in settings.models:
        for address in model.servers:
            if changes(address):
                continue  # they come and go; readiness says whether there are any
            try:
                found = await describe(address, timeout_s)
            except TokenbatchError as error:
                problems.append(f"model server {address}: {error}")
                continue
            if found.model != model.name:
                problems.append(f"model server {address} serves {found.model}, not {model.name}")
            print(f"model server {address}: {found.model} {found.model_revision}, {found.dimensions} dimensions")
    for problem in problems:
        print(f"problem: {problem}")
    print("ok" if not problems else f"{len(problems)} problems")
    return 1 if problems else 0
