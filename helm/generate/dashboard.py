"""Make the Grafana dashboard: rows in the order in which an operator asks."""

from __future__ import annotations

from dataclasses import dataclass

from grafana_foundation_sdk.builders import common, prometheus, timeseries
from grafana_foundation_sdk.builders.dashboard import Dashboard as DashboardBuilder
from grafana_foundation_sdk.builders.dashboard import DatasourceVariable, QueryVariable, Row
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import LegendDisplayMode, LegendPlacement, TooltipDisplayMode
from grafana_foundation_sdk.models.dashboard import DataSourceRef

_SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
_NS = 'namespace=~"$namespace"'
_RATE = "[$__rate_interval]"


@dataclass(frozen=True, slots=True)
class Panel:
    """One graph: queries by their legends."""

    title: str
    unit: str
    queries: dict[str, str]
    says: str = ""


def _quantile(share: float, metric: str, by: str) -> str:
    return f"histogram_quantile({share}, sum by (le, {by}) (rate({metric}_bucket{{{_NS}}}{_RATE})))"


def _mean(metric: str, by: str) -> str:
    return f"sum by ({by}) (rate({metric}_sum{{{_NS}}}{_RATE})) / sum by ({by}) (rate({metric}_count{{{_NS}}}{_RATE}))"


def _rate(metric: str, by: str) -> str:
    return f"sum by ({by}) (rate({metric}{{{_NS}}}{_RATE}))"


ROWS: dict[str, tuple[Panel, ...]] = {
    "What callers see": (
        Panel("Requests", "reqps", {"{{source}} {{code}}": _rate("embed_requests_total", "source, code")}),
        Panel(
            "Time to the answer",
            "s",
            {
                "p50 {{source}}": _quantile(0.5, "embed_e2e_duration_seconds", "source"),
                "p99 {{source}}": _quantile(0.99, "embed_e2e_duration_seconds", "source"),
            },
            "From intake to the acknowledged reply, or to the answer of the call.",
        ),
        Panel(
            "Late, expired, dead",
            "reqps",
            {
                "late {{source}}": _rate("embed_slo_violations_total", "source"),
                "expired": f"sum(rate(embed_expired_total{{{_NS}}}{_RATE}))",
                "dead letters {{code}}": _rate("embed_dead_letters_total", "code"),
            },
        ),
    ),
    "What waits": (
        Panel(
            "Lag",
            "short",
            {"{{topic}}": f"sum by (topic) (embed_consumer_lag{{{_NS}}})"},
            "Records in the log that are not fetched yet.",
        ),
        Panel("Queue", "short", {"{{model}} {{priority}}": f"sum by (model, priority) (embed_queue_tokens{{{_NS}}})"}),
        Panel(
            "Age of the oldest",
            "s",
            {"{{model}} {{priority}}": f"max by (model, priority) (embed_queue_age_seconds{{{_NS}}})"},
        ),
        Panel(
            "Uncommitted span",
            "short",
            {"{{topic}}/{{partition}}": f"max by (topic, partition) (embed_consumer_uncommitted_span{{{_NS}}})"},
        ),
        Panel(
            "Group",
            "short",
            {
                "rebalances": f"sum(increase(embed_consumer_rebalances_total{{{_NS}}}{_RATE}))",
                "failed commits": f"sum(increase(embed_commit_failures_total{{{_NS}}}{_RATE}))",
                "paused partitions": f"sum(embed_consumer_paused{{{_NS}}})",
            },
        ),
    ),
    "Batches": (
        Panel(
            "Fill",
            "percentunit",
            {"mean {{replica}}": _mean("embed_batch_fill_ratio", "replica")},
            "Tokens of a batch over the budget: near one under load, lower when there is nothing more to send.",
        ),
        Panel("Tokens of a batch", "short", {"mean {{replica}}": _mean("embed_batch_tokens", "replica")}),
        Panel("Why batches go", "cps", {"{{reason}}": _rate("embed_batch_sends_total", "reason")}),
        Panel("Retries", "cps", {"{{code}}": _rate("embed_retries_total", "code")}),
    ),
    "Model servers": (
        Panel(
            "Budget and saturation point",
            "short",
            {
                "budget {{replica}}": f"max by (replica) (embed_token_budget{{{_NS}}})",
                "saturation point {{replica}}": f"max by (replica) (embed_saturation_point{{{_NS}}})",
            },
        ),
        Panel("Engine step", "s", {"p99 {{replica}}": _quantile(0.99, "embed_engine_duration_seconds", "replica")}),
        Panel(
            "Engine idle between batches",
            "percentunit",
            {"{{replica}}": _rate("embed_engine_idle_seconds_total", "replica")},
            "Share of time. Under load it should stay below one percent.",
        ),
        Panel(
            "Tokens in flight", "short", {"{{replica}}": f"sum by (replica) (embed_replica_inflight_tokens{{{_NS}}})"}
        ),
        Panel(
            "Engine trouble",
            "short",
            {
                "failed steps {{pod}}": f"sum by (pod) (increase(embed_engine_failed_steps_total{{{_NS}}}{_RATE}))",
                "rebuilds {{pod}}": f"sum by (pod) (increase(embed_engine_rebuilds_total{{{_NS}}}{_RATE}))",
            },
        ),
    ),
    "Tenants": (
        Panel(
            "Engine time",
            "percentunit",
            {"{{tenant}} {{task}}": _rate("tokenbatch_engine_seconds_total", "tenant, task")},
            "Engines kept busy by each tenant: 1 is one model server. docs/metrics.md makes prices of it.",
        ),
        Panel(
            "Tokens a second",
            "short",
            {"{{tenant}} {{task}}": _rate("tokenbatch_tokens_total", "tenant, task")},
            "Of inputs, prompts and texts that were computed.",
        ),
    ),
    "Scaling": (
        Panel(
            "Replicas",
            "short",
            {
                "required {{model}}": f"max by (model) (embed_required_replicas{{{_NS}}})",
                "serving {{model}}": f"count by (model) (count by (model, replica) (embed_replica_state{{{_NS}}}))",
            },
        ),
        Panel(
            "Age of the scaler's inputs",
            "s",
            {"{{model}}": f"max by (model) (embed_scaler_input_age_seconds{{{_NS}}})"},
            "Above its limit the scaler answers with an error, and replicas stay as they are.",
        ),
    ),
}


def dashboard_json() -> str:
    builder = (
        DashboardBuilder("tokenbatch")
        .uid("tokenbatch")
        .tags(["tokenbatch", "embeddings"])
        .refresh("30s")
        .time("now-1h", "now")
        .with_variable(DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
        .with_variable(
            QueryVariable("namespace")
            .label("Namespace")
            .datasource(_SOURCE)
            .query("label_values(process_uptime_seconds, namespace)")
            .include_all(include_all=True)
            .multi(multi=True)
            .all_value(".*")
        )
    )
    for title, panels in ROWS.items():
        builder = builder.with_row(Row(title))
        for panel in panels:
            builder = builder.with_panel(_panel(panel))
    return JSONEncoder(sort_keys=True, indent=1).encode(builder.build()) + "\n"


def _panel(panel: Panel) -> timeseries.Panel:
    built = (
        timeseries.Panel()
        .title(panel.title)
        .description(panel.says)
        .datasource(_SOURCE)
        .unit(panel.unit)
        .min(0)
        .span(8)
        .height(8)
        .fill_opacity(8)
        .tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI))
        .legend(
            common.VizLegendOptions()
            .show_legend(show_legend=True)
            .display_mode(LegendDisplayMode.LIST)
            .placement(LegendPlacement.BOTTOM)
        )
    )
    for legend, expression in panel.queries.items():
        built = built.with_target(prometheus.Dataquery().expr(expression).legend_format(legend).datasource(_SOURCE))
    return built
