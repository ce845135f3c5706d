"""Generate what follows from the settings: the chart's values, their schema and table, docs, dashboard."""
