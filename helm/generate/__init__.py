"""Generate what follows from settings and values: the chart's schema, docs/configuration.md, the dashboard."""
