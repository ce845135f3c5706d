"""Make the Grafana dashboard: rows in the order in which an operator asks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from grafana_foundation_sdk.builders import common, prometheus, stat, timeseries
from grafana_foundation_sdk.builders.dashboard import Dashboard as DashboardBuilder
from grafana_foundation_sdk.builders.dashboard import DatasourceVariable, QueryVariable, Row
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import (
    BigValueGraphMode,
    LegendDisplayMode,
    LegendPlacement,
    TooltipDisplayMode,
)
from grafana_foundation_sdk.models.dashboard import DataSourceRef, VariableOption, VariableRefresh

_SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
_RELEASE = "app_kubernetes_io_instance"
"""The label that the chart's monitors copy from pods; where it is absent, "All" selects what is there."""
_NS = f'namespace=~"$namespace",{_RELEASE}=~"$release"'
_MODEL = f'{_NS},model=~"$model"'
_GENERATION = f'{_NS},gen_ai_request_model=~"$model"'
_RATE = "[$__rate_interval]"


@dataclass(frozen=True, slots=True)
class Panel:
    """One graph, or one number with its graph behind it: queries by their legends."""

    title: str
    unit: str
    queries: dict[str, str]
    says: str = ""


def _quantile(share: float, metric: str, by: str = "", where: str = _NS) -> str:
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({share}, sum by ({labels}) (rate({metric}_bucket{{{where}}}{_RATE})))"


def _mean(metric: str, by: str = "") -> str:
    around = f"sum by ({by})" if by else "sum"
    total, count = (f"{around} (rate({metric}_{part}{{{_NS}}}{_RATE}))" for part in ("sum", "count"))
    return f"{total} / {count}"


def _rate(metric: str, by: str, where: str = _NS) -> str:
    return f"sum by ({by}) (rate({metric}{{{where}}}{_RATE}))"


def _sum(metric: str, by: str, where: str = _NS) -> str:
    return f"sum by ({by}) ({metric}{{{where}}})"


def _max(metric: str, by: str, where: str = _NS) -> str:
    return f"max by ({by}) ({metric}{{{where}}})"


def _increase(metric: str, by: str = "") -> str:
    return f"sum{f' by ({by}) ' if by else ''}(increase({metric}{{{_NS}}}{_RATE}))"


NUMBERS = (
    Panel(
        "Questions a second",
        "short",
        {"": f"sum(rate(tokenbatch_batch_queries_sum{{{_NS}}}{_RATE}))"},
        "Inputs of batches that were sent.",
    ),
    Panel(
        "p99", "s", {"": _quantile(0.99, "tokenbatch_e2e_duration_seconds")}, "From intake to the answer, all sources."
    ),
    Panel("Fill", "percentunit", {"": _mean("tokenbatch_batch_fill_ratio")}, "Tokens of batches over their budgets."),
    Panel("Waiting", "short", {"": f"sum(tokenbatch_queue_tokens{{{_MODEL}}})"}, "Tokens in the queues."),
)
ROWS: dict[str, tuple[Panel, ...]] = {
    "What callers see": (
        Panel("Requests", "reqps", {"{{source}} {{code}}": _rate("tokenbatch_requests_total", "source, code")}),
        Panel(
            "Time to the answer",
            "s",
            {
                "p50 {{source}}": _quantile(0.5, "tokenbatch_e2e_duration_seconds", "source"),
                "p99 {{source}}": _quantile(0.99, "tokenbatch_e2e_duration_seconds", "source"),
            },
            "From intake to the acknowledged reply, or to the answer of the call.",
        ),
        Panel(
            "Late, expired, dead",
            "reqps",
            {
                "late {{source}}": _rate("tokenbatch_slo_violations_total", "source"),
                "expired": f"sum(rate(tokenbatch_expired_total{{{_NS}}}{_RATE}))",
                "dead letters {{code}}": _rate("tokenbatch_dead_letters_total", "code"),
            },
        ),
    ),
    "Doors": (
        Panel(
            "Statuses",
            "reqps",
            {
                "HTTP {{status}}": _rate("tokenbatch_http_responses_total", "status"),
                "gRPC {{rpc_response_status_code}}": _rate(
                    "rpc_server_call_duration_seconds_count", "rpc_response_status_code"
                ),
            },
        ),
        Panel(
            "Refused before they were read",
            "cps",
            {"{{limit}}": _rate("tokenbatch_calls_refused_total", "limit")},
            "By the limit that refuses; the callers are told when to try again.",
        ),
        Panel(
            "Held by callers",
            "bytes",
            {"bytes of requests and replies {{pod}}": _sum("tokenbatch_calls_held_bytes", "pod")},
        ),
    ),
    "What waits": (
        Panel(
            "Lag",
            "short",
            {"{{topic}}": _sum("tokenbatch_consumer_lag", "topic")},
            "Records in the log that are not fetched yet.",
        ),
        Panel("Queue", "short", {"{{model}} {{priority}}": _sum("tokenbatch_queue_tokens", "model, priority", _MODEL)}),
        Panel(
            "Age of the oldest",
            "s",
            {"{{model}} {{priority}}": _max("tokenbatch_queue_age_seconds", "model, priority", _MODEL)},
        ),
        Panel(
            "Uncommitted span",
            "short",
            {"{{topic}}/{{partition}}": _max("tokenbatch_consumer_uncommitted_span", "topic, partition")},
        ),
        Panel(
            "Group",
            "short",
            {
                "rebalances": _increase("tokenbatch_consumer_rebalances_total"),
                "failed commits": _increase("tokenbatch_commit_failures_total"),
                "paused partitions": f"sum(tokenbatch_consumer_paused{{{_NS}}})",
            },
        ),
    ),
    "Batches": (
        Panel(
            "Fill",
            "percentunit",
            {"mean {{replica}}": _mean("tokenbatch_batch_fill_ratio", "replica")},
            "Tokens of a batch over the budget: near one under load, lower when there is nothing more to send.",
        ),
        Panel("Tokens of a batch", "short", {"mean {{replica}}": _mean("tokenbatch_batch_tokens", "replica")}),
        Panel("Why batches go", "cps", {"{{reason}}": _rate("tokenbatch_batch_sends_total", "reason")}),
        Panel("Retries", "cps", {"{{code}}": _rate("tokenbatch_retries_total", "code")}),
    ),
    "Model servers": (
        Panel(
            "Budget and saturation point",
            "short",
            {
                "budget {{replica}}": _max("tokenbatch_token_budget", "replica", _MODEL),
                "saturation point {{replica}}": _max("tokenbatch_saturation_point", "replica", _MODEL),
            },
        ),
        Panel(
            "Engine step", "s", {"p99 {{replica}}": _quantile(0.99, "tokenbatch_engine_duration_seconds", "replica")}
        ),
        Panel(
            "Engine idle between batches",
            "percentunit",
            {"{{replica}}": _rate("tokenbatch_engine_idle_seconds_total", "replica")},
            "Share of time. Under load it should stay below one percent.",
        ),
        Panel(
            "Tokens in flight",
            "short",
            {"{{replica}}": _sum("tokenbatch_replica_inflight_tokens", "replica", _MODEL)},
        ),
        Panel(
            "Engine trouble",
            "short",
            {
                "failed steps {{pod}}": _increase("tokenbatch_engine_failed_steps_total", "pod"),
                "rebuilds {{pod}}": _increase("tokenbatch_engine_rebuilds_total", "pod"),
            },
        ),
    ),
    "Generation": (
        Panel(
            "Time to the first token",
            "s",
            {
                "p50": _quantile(0.5, "gen_ai_server_time_to_first_token_seconds", where=_GENERATION),
                "p99": _quantile(0.99, "gen_ai_server_time_to_first_token_seconds", where=_GENERATION),
            },
        ),
        Panel(
            "Time between tokens",
            "s",
            {
                "p50": _quantile(0.5, "gen_ai_server_time_per_output_token_seconds", where=_GENERATION),
                "p99": _quantile(0.99, "gen_ai_server_time_per_output_token_seconds", where=_GENERATION),
            },
            "Of a text the mean after its first token.",
        ),
        Panel("Tokens a second", "short", {"{{kind}}": _rate("tokenbatch_generate_engine_tokens_total", "kind")}),
    ),
    "Redis": (
        Panel(
            "Entries answered",
            "reqps",
            {"{{code}}": _rate("tokenbatch_requests_total", "code", f'{_NS},source="redis"')},
        ),
        Panel(
            "Waiting in streams",
            "short",
            {"{{topic}}": _sum("tokenbatch_consumer_lag", "topic", f'{_NS},partition="redis"')},
        ),
        Panel(
            "Errors and losses",
            "cps",
            {"{{event}}": _rate("tokenbatch_source_events_total", "event", f'{_NS},source="redis"')},
            "docs/errors.md explains each.",
        ),
    ),
    "Batch API": (
        Panel("Batches that ended", "short", {"{{status}}": _increase("tokenbatch_batch_api_ended_total", "status")}),
        Panel(
            "Lines answered",
            "reqps",
            {"{{result}}": _rate("tokenbatch_batch_api_lines_total", "result")},
            "ended: the batch was cancelled, or its window has passed.",
        ),
        Panel("Bytes", "Bps", {"{{kind}}": _rate("tokenbatch_batch_api_size_bytes_total", "kind")}),
    ),
    "Costs": (
        Panel(
            "Engine time by tenant",
            "percentunit",
            {"{{tenant}} {{task}}": _rate("tokenbatch_engine_seconds_total", "tenant, task", _MODEL)},
            "Engines kept busy by each tenant: 1 is one model server. docs/metrics.md makes prices of it.",
        ),
        Panel(
            "Tokens a second by tenant",
            "short",
            {"{{tenant}} {{task}}": _rate("tokenbatch_tokens_total", "tenant, task", _MODEL)},
            "Of inputs, prompts and texts that were computed.",
        ),
        Panel(
            "Engine seconds a million tokens",
            "s",
            {
                "{{model}} {{task}}": f"1e6 * {_rate('tokenbatch_engine_seconds_total', 'model, task', _MODEL)}"
                f" / {_rate('tokenbatch_tokens_total', 'model, task', _MODEL)}"
            },
            "Times the price of an engine's second it is the price of a million tokens.",
        ),
    ),
    "Scaling": (
        Panel(
            "Replicas",
            "short",
            {
                "required {{model}}": _max("tokenbatch_required_replicas", "model", _MODEL),
                "serving {{model}}": f"count by (model) ({_max('tokenbatch_replica_state', 'model, replica', _MODEL)})",
            },
        ),
        Panel(
            "Age of the scaler's inputs",
            "s",
            {"{{model}}": _max("tokenbatch_scaler_input_age_seconds", "model", _MODEL)},
            "Above its limit the scaler answers with an error, and replicas stay as they are.",
        ),
        Panel(
            "Uptime",
            "s",
            {"{{pod}}": _max("process_uptime_seconds", "pod")},
            "Of each process; a fall is a restart.",
        ),
    ),
}
_VARIABLES = (
    ("namespace", "Namespace", "label_values(process_uptime_seconds, namespace)"),
    ("release", "Release", f'label_values(process_uptime_seconds{{namespace=~"$namespace"}}, {_RELEASE})'),
    ("model", "Model", f"label_values(tokenbatch_queue_tokens{{{_NS}}}, model)"),
)


def dashboard_json() -> str:
    builder = (
        DashboardBuilder("tokenbatch")
        .uid("tokenbatch")
        .tags(["tokenbatch", "embeddings"])
        .refresh("30s")
        .time("now-1h", "now")
        .with_variable(DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
    )
    for name, label, query in _VARIABLES:
        builder = builder.with_variable(
            QueryVariable(name)
            .label(label)
            .datasource(_SOURCE)
            .query(query)
            .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
            .include_all(include_all=True)
            .multi(multi=True)
            .all_value(".*")
            .current(VariableOption(selected=True, text="All", value="$__all"))
        )
    for panel in NUMBERS:
        builder = builder.with_panel(_number(panel))
    for title, panels in ROWS.items():
        builder = builder.with_row(Row(title))
        for panel in panels:
            builder = builder.with_panel(_graph(panel))
    return JSONEncoder(sort_keys=True, indent=1).encode(builder.build()) + "\n"


def _number(panel: Panel) -> stat.Panel:
    shown = common.ReduceDataOptions().calcs(["lastNotNull"])
    built = stat.Panel().title(panel.title).description(panel.says).datasource(_SOURCE).unit(panel.unit)
    built = built.span(6).height(4).graph_mode(BigValueGraphMode.AREA).reduce_options(shown)
    return _with_queries(built, panel)


def _graph(panel: Panel) -> timeseries.Panel:
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
    return _with_queries(built, panel)


P = TypeVar("P", stat.Panel, timeseries.Panel)


def _with_queries(built: P, panel: Panel) -> P:
    for legend, expression in panel.queries.items():
        built = built.with_target(prometheus.Dataquery().expr(expression).legend_format(legend).datasource(_SOURCE))
    return built
